//! Audit of one key: the stored totals compared with the sum of its entries.

use std::fmt;

use crate::Micros;

/// Result of an audit of one key. See `RedisStore::audit` and [`MemoryStore::audit`](crate::MemoryStore::audit).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Instant of the audit, by the store's clock.
    pub at: Micros,
    /// Permits of the entries that still count.
    pub counted: u64,
    /// The running total without the permits that have left the window. Decisions use this number as the permits in
    /// use. It is 0 if more permits have left than the total contains.
    pub stored: u64,
    /// Time until the store deletes the key by itself; `None` if it never does.
    pub expires_after: Option<Micros>,
    /// Discrepancies that were found; empty if there are none.
    pub discrepancies: Vec<Discrepancy>,
    /// True if a discrepancy was repaired.
    pub repaired: bool,
}

/// A stored value of a key that disagrees with its entries, or that would lead to wrong decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Discrepancy {
    /// The running total is not the sum of the entries: decisions use a wrong number. Repair: the total is set to the sum.
    Total {
        /// The running total.
        stored: u64,
        /// The sum of the entries.
        counted: u64,
    },
    /// More permits count than the limit allows. No decision causes this, but it may be legitimate: the limit was lowered, a
    /// settlement raised a cost, or admissions that several nodes made without the store were written back. Not repaired.
    OverLimit {
        /// The sum of the entries.
        counted: u64,
        /// The limit.
        limit: u64,
    },
    /// The key never expires. Repair: it is given the expiry that a decision sets.
    NoExpiry,
    /// The key expires while it still counts. Repair: it is given the expiry that a decision sets.
    ShortExpiry {
        /// Time until the key expires.
        expires_after: Micros,
        /// Time for which the key still counts.
        needed: Micros,
    },
    /// The header has a wrong instant of the newest entry: the key may be deleted as idle, or its time may run ahead.
    /// Repaired.
    Newest {
        /// Instant in the header.
        stored: Micros,
        /// Instant of the newest entry; zero if there are none.
        counted: Micros,
    },
    /// The header of a packed log has a wrong instant of the oldest entry: the entry would leave too late. Repaired.
    Oldest {
        /// Instant in the header.
        stored: Micros,
        /// Instant of the oldest entry.
        counted: Micros,
    },
    /// The header states one cost for all entries, and an entry has another cost: the total would become wrong when that entry
    /// leaves. Repaired.
    Costs,
    /// The key has another type than expected, or members that this crate did not write. Not repaired, because the contents
    /// are unknown.
    Unreadable,
}

impl Discrepancy {
    /// All causes, as written by [`Discrepancy::as_str`].
    pub const CAUSES: [&str; 8] =
        ["total", "over-limit", "no-expiry", "short-expiry", "newest", "oldest", "costs", "unreadable"];

    /// Returns the name used in metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Discrepancy::Total { .. } => "total",
            Discrepancy::OverLimit { .. } => "over-limit",
            Discrepancy::NoExpiry => "no-expiry",
            Discrepancy::ShortExpiry { .. } => "short-expiry",
            Discrepancy::Newest { .. } => "newest",
            Discrepancy::Oldest { .. } => "oldest",
            Discrepancy::Costs => "costs",
            Discrepancy::Unreadable => "unreadable",
        }
    }
}

impl fmt::Display for Discrepancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Discrepancy::Total { stored, counted } => {
                write!(f, "the stored total is {stored}, but the entries add up to {counted}")
            }
            Discrepancy::OverLimit { counted, limit } => {
                write!(f, "{counted} permits count, but the limit is {limit}")
            }
            Discrepancy::NoExpiry => f.write_str("the key has no expiry"),
            Discrepancy::ShortExpiry { expires_after, needed } => {
                write!(f, "the key expires in {expires_after}, but counts for {needed}")
            }
            Discrepancy::Newest { stored, counted } | Discrepancy::Oldest { stored, counted } => {
                let (end, stored, counted) = (self.as_str(), stored.get(), counted.get());
                write!(f, "the stored time of the {end} entry is {stored} us, but it is {counted} us")
            }
            Discrepancy::Costs => {
                f.write_str("the header says that all entries cost the same, but they do not")
            }
            Discrepancy::Unreadable => f.write_str("the value was not written by Slidegate"),
        }
    }
}
