//! What a store answers.

use smallvec::SmallVec;

use crate::{Entry, Micros};

/// What became of one check.
// As wide as its neighbours in a verdict: a byte and its padding are copied in pieces, and the next read stalls.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It fits and counts from now on; or it counted already, under the same request id.
    Charged,
    /// It would fit, but counts for nothing: a peek, or another rule denied the ask.
    Fits,
    /// It does not fit now.
    Denied,
    /// It costs more than the limit, so it never fits.
    Impossible,
    /// Nobody looked: another rule was known to deny the ask.
    Unjudged,
}

impl Outcome {
    /// Whether an enforced rule with this outcome denies the ask.
    pub fn denies(self) -> bool {
        matches!(self, Outcome::Denied | Outcome::Impossible)
    }
}

/// Precision of [`Verdict::retry_after`].
// As wide as its neighbours in a verdict: see `Outcome`.
#[repr(u64)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// The smallest wait after which the same cost fits.
    #[default]
    Exact,
    /// A wait before which the same cost does not fit. It may take longer. Redis answers so where finding the exact wait takes
    /// reading more entries than one call may read: see docs/algorithms.md. A full memory store with `OnFull::Deny` cannot
    /// know when there is room, and answers an estimate of at most a second under the same name.
    LowerBound,
}

/// One check, judged: the numbers after the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What became of it.
    pub outcome: Outcome,
    /// The limit it was judged by: a bucket's burst, otherwise the quota's limit.
    pub limit: u64,
    /// Permits in use. More than `limit` after the limit was lowered or a settlement corrected upwards.
    pub used: u64,
    /// The smallest wait after which the same cost fits, if nobody else asks. Zero if it was charged; for what
    /// never fits, the quota's horizon. A lower bound if `precision` says so.
    pub retry_after: Micros,
    /// Whether `retry_after` is exact.
    pub precision: Precision,
    /// The wait after which nothing is in use, if nobody asks.
    pub reset_after: Micros,
    /// As what it is recorded; meaningful if it was charged.
    pub entry: Entry,
}

impl Verdict {
    /// Permits left.
    pub fn remaining(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// What a store answers to one [`Checks`](crate::Checks).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdicts {
    /// The instant, by the store's clock, at which the ask was judged. An oracle replays it from this.
    pub at: Micros,
    /// Who judged it.
    pub source: Source,
    /// One verdict per check of the ask, in its order.
    pub verdicts: SmallVec<[Verdict; 1]>,
}

/// Who decided. Where several did, each for other rules, the last of these that took part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
// As wide as its neighbours in a reading: see `Outcome`.
#[repr(u64)]
#[non_exhaustive]
pub enum Source {
    /// This process: no rule that counts or blocks applies, so the store was not asked. See [`Decision::unmatched`](crate::Decision::unmatched).
    NoRule,
    /// This process, because a rule blocks the request, so nothing was asked.
    Blocked,
    /// The store.
    #[default]
    Store,
    /// This process, because the store had denied it and it cannot fit yet.
    DenyCache,
    /// This process, out of permits that it has taken from the store in advance.
    Lease,
    /// This process, because the store could not: by this node's share of the limit.
    Local,
    /// Nobody: the store could not, and the rule says to allow then.
    FailOpen,
    /// Nobody: the store could not, and the rule says to deny then.
    FailClosed,
}

impl Source {
    /// All there are, in their order.
    pub const ALL: [Source; 8] = [
        Source::NoRule,
        Source::Blocked,
        Source::Store,
        Source::DenyCache,
        Source::Lease,
        Source::Local,
        Source::FailOpen,
        Source::FailClosed,
    ];

    /// As it is written in answers and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::NoRule => "no-rule",
            Source::Blocked => "blocked",
            Source::Store => "store",
            Source::DenyCache => "deny-cache",
            Source::Lease => "lease",
            Source::Local => "local",
            Source::FailOpen => "fail-open",
            Source::FailClosed => "fail-closed",
        }
    }
}

/// One [`Verdicts`] per ask, in their order.
pub type BatchVerdicts = SmallVec<[Verdicts; 1]>;

/// One key, as a store holds it; see [`Store::inspect`](crate::Store::inspect).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The instant of the inspection.
    pub at: Micros,
    /// Permits in use.
    pub used: u64,
    /// The wait after which nothing is in use, if nobody asks.
    pub reset_after: Micros,
    /// What counts, oldest first: the first [`MAX_INSPECTED`].
    pub entries: Vec<WindowEntry>,
}

/// The most entries an inspection lists.
pub const MAX_INSPECTED: usize = 10_000;

/// What counts in a window, by the instant it was recorded under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowEntry {
    /// When it was recorded.
    pub at: Micros,
    /// Permits.
    pub cost: u64,
    /// How long it still counts.
    pub leaves_after: Micros,
}
