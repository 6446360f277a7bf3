//! Replies of a store: one verdict for each check.

use smallvec::SmallVec;

use crate::{Entry, Micros};

/// Outcome of one check.
// The type is as wide as the neighbouring fields of `Verdict`. A field of one byte with padding would be copied in
// pieces, and the next read of the field would stall.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The check fits and counts from now on, or it already counted under the same request id.
    Charged,
    /// The check would fit but is not counted: a peek, or another rule denied the request.
    Fits,
    /// The check does not fit now.
    Denied,
    /// The cost is above the limit, so the check never fits.
    Impossible,
    /// The check was not evaluated: another rule was known to deny the request.
    NotEvaluated,
}

impl Outcome {
    /// Returns true if an enforced rule with this outcome denies the request.
    pub fn denies(self) -> bool {
        matches!(self, Outcome::Denied | Outcome::Impossible)
    }
}

/// Precision of [`Verdict::retry_after`].
// The type is as wide as the neighbouring fields of `Verdict`: see `Outcome`.
#[repr(u64)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Shortest wait after which the same cost fits.
    #[default]
    Exact,
    /// The same cost does not fit before this wait has passed; it may take longer. Redis replies with this precision if
    /// the exact wait needs more entries than one call may read: see docs/explanation/algorithms.md. A full memory
    /// store with `OnFull::Deny` cannot know when there is room, and returns an estimate of at most a second with this
    /// precision.
    LowerBound,
}

/// Verdict on one check: the numbers after the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Outcome of the check.
    pub outcome: Outcome,
    /// The limit that was applied: the burst of a bucket, otherwise the limit of the quota.
    pub limit: u64,
    /// Permits in use. It can exceed `limit` after the limit was lowered or a settlement raised a cost.
    pub used: u64,
    /// Shortest wait after which the same cost fits if no other request arrives. Zero if the check was charged; the horizon of
    /// the quota if it never fits. If `precision` is `LowerBound`, this is a lower bound.
    pub retry_after: Micros,
    /// Precision of `retry_after`.
    pub precision: Precision,
    /// Wait after which nothing is in use if no request arrives.
    pub reset_after: Micros,
    /// The recorded entry; meaningful only if the check was charged.
    pub entry: Entry,
}

impl Verdict {
    /// Verdict on a check that was not evaluated, with the limit to report for it.
    pub(crate) fn not_evaluated(limit: u64) -> Self {
        Verdict {
            outcome: Outcome::NotEvaluated,
            limit,
            used: 0,
            retry_after: Micros::ZERO,
            precision: Precision::Exact,
            reset_after: Micros::ZERO,
            entry: Entry::default(),
        }
    }

    /// Returns the permits left.
    pub fn remaining(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// Reply of a store to one [`Checks`](crate::Checks).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdicts {
    /// Instant of the evaluation, by the store's clock. A test oracle replays the decision from this instant.
    pub at: Micros,
    /// The component that decided.
    pub source: Source,
    /// One verdict per check, in the same order.
    pub verdicts: SmallVec<[Verdict; 1]>,
}

crate::words! {
    /// The component that decided. If several components decided different rules of one request: the last variant, in the
    /// order of declaration, that took part.
    #[derive(Default, PartialOrd, Ord, Hash)]
    // The type is as wide as the neighbouring fields of `Verdicts`: see `Outcome`.
    #[repr(u64)]
    #[non_exhaustive]
    pub enum Source {
        /// This process: no counting or blocking rule applies, so the store was not called. See [`Decision::unmatched`](crate::Decision::unmatched).
        NoRule = "no-rule",
        /// This process: a rule blocks the request, so the store was not called.
        Blocked = "blocked",
        /// The store.
        #[default]
        Store = "store",
        /// This process: the store has denied the key, and the request cannot fit yet.
        DenyCache = "deny-cache",
        /// This process, with permits that it has taken from the store in advance.
        Lease = "lease",
        /// This process, with this node's share of the limit, because the store could not decide.
        Local = "local",
        /// The `on_error` setting: the store could not decide, and the rule allows in that case.
        FailOpen = "fail-open",
        /// The `on_error` setting: the store could not decide, and the rule denies in that case.
        FailClosed = "fail-closed",
    }
}

/// One [`Verdicts`] per [`Checks`](crate::Checks), in the same order.
pub type BatchVerdicts = SmallVec<[Verdicts; 1]>;

/// Stored state of one key; see [`Store::inspect`](crate::Store::inspect).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Instant of the inspection.
    pub at: Micros,
    /// Permits in use.
    pub used: u64,
    /// Wait after which nothing is in use if no request arrives.
    pub reset_after: Micros,
    /// The first [`MAX_INSPECTED`] entries that count, oldest first.
    pub entries: Vec<WindowEntry>,
    /// Size of a token bucket, which is stored with its level. Other algorithms store no limit.
    pub capacity: Option<u64>,
}

/// Largest number of entries in an inspection.
pub const MAX_INSPECTED: usize = 10_000;

/// Permits in a window that were recorded at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowEntry {
    /// Instant of the record.
    pub at: Micros,
    /// Permits.
    pub cost: u64,
    /// Time until the entry leaves the window.
    pub leaves_after: Micros,
}
