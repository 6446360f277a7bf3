//! What a key keeps, compared with what its entries say.

use std::fmt;

use crate::Micros;

/// One key, counted again. See `RedisStore::audit` and [`MemoryStore::audit`](crate::MemoryStore::audit).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// The instant, by the store's clock.
    pub at: Micros,
    /// Permits of the entries that still count.
    pub counted: u64,
    /// Permits that the running total says, less those that have left: what a decision takes as used. A total that is
    /// too low by more than that is 0.
    pub kept: u64,
    /// How long until the store forgets the key by itself; none if it does not.
    pub expires_after: Option<Micros>,
    /// What does not agree; empty if all is well.
    pub discrepancies: Vec<Discrepancy>,
    /// Whether something was put right.
    pub repaired: bool,
}

/// Something about a key that does not agree with its entries, or that would make it go wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Discrepancy {
    /// The running total is not the sum of the entries: decisions go by a wrong number. Repaired: it is set to the sum.
    Total {
        /// What the total says.
        kept: u64,
        /// What the entries say.
        counted: u64,
    },
    /// More counts than the limit allows. No decision does that, but it may be right: the limit was lowered, an
    /// admission was settled upwards, or what several nodes admitted without the store was written back. Not repaired.
    OverLimit {
        /// What the entries say.
        counted: u64,
        /// What is allowed.
        limit: u64,
    },
    /// The store would never forget it. Repaired: it is given the expiry that a decision gives it.
    NoExpiry,
    /// The store would forget it while it still counts. Repaired likewise.
    ShortExpiry {
        /// How long until it is forgotten.
        expires_after: Micros,
        /// How long it counts.
        needed: Micros,
    },
    /// The newest entry is not where the header says: a key may be taken for idle and forgotten, or its time may run
    /// ahead. Repaired.
    Newest {
        /// What the header says.
        kept: Micros,
        /// What the entries say; zero if there are none.
        counted: Micros,
    },
    /// The oldest entry of a packed log is not where the header says: it would leave too late. Repaired.
    Oldest {
        /// What the header says.
        kept: Micros,
        /// What the entries say.
        counted: Micros,
    },
    /// The header says what every entry costs, and one costs something else: the total would go wrong when it
    /// leaves. Repaired.
    Costs,
    /// It is of another type than what is stored there, or has members that are not ours. Not repaired: nobody knows
    /// what it is.
    Unreadable,
}

impl Discrepancy {
    /// Every cause there is, as [`Discrepancy::as_str`] writes it.
    pub const CAUSES: [&str; 8] =
        ["total", "over-limit", "no-expiry", "short-expiry", "newest", "oldest", "costs", "unreadable"];

    /// As it is written in metrics.
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
            Discrepancy::Total { kept, counted } => {
                write!(f, "the total says {kept}, and the entries {counted}")
            }
            Discrepancy::OverLimit { counted, limit } => {
                write!(f, "{counted} count, and the limit is {limit}")
            }
            Discrepancy::NoExpiry => f.write_str("it would never be forgotten"),
            Discrepancy::ShortExpiry { expires_after, needed } => {
                write!(f, "it would be forgotten in {expires_after}, and counts for {needed}")
            }
            Discrepancy::Newest { kept, counted } => {
                let (kept, counted) = (kept.get(), counted.get());
                write!(f, "the newest entry is said to be of {kept} us, and is of {counted} us")
            }
            Discrepancy::Oldest { kept, counted } => {
                let (kept, counted) = (kept.get(), counted.get());
                write!(f, "the oldest entry is said to be of {kept} us, and is of {counted} us")
            }
            Discrepancy::Costs => f.write_str("the entries are said to cost the same, and do not"),
            Discrepancy::Unreadable => f.write_str("something that is not ours is stored there"),
        }
    }
}
