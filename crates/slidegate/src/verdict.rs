//! What a store answers.

use smallvec::SmallVec;

use crate::{Entry, Micros, Source};

/// What became of one check.
// As wide as its neighbours in a verdict: a byte and its padding are copied in pieces, and the next read stalls.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It fits and counts from now on; or it counted already, under the same request id.
    Charged,
    /// It would fit, but counts for nothing: a peek, or another rule refused the ask.
    Fits,
    /// It does not fit now.
    Refused,
    /// It costs more than the limit, so it never fits.
    Impossible,
    /// Nobody looked: another rule was known to refuse the ask.
    Unjudged,
}

impl Outcome {
    /// Whether an enforced rule with this outcome refuses the ask.
    pub fn refuses(self) -> bool {
        matches!(self, Outcome::Refused | Outcome::Impossible)
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

/// What a store answers to one [`Ask`](crate::Ask).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The instant, by the store's clock, at which the ask was judged. An oracle replays it from this.
    pub at: Micros,
    /// Who judged it.
    pub source: Source,
    /// One verdict per check of the ask, in its order.
    pub verdicts: SmallVec<[Verdict; 1]>,
}

/// One [`Reading`] per ask, in their order.
pub type Readings = SmallVec<[Reading; 1]>;

/// What became of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The admission now counts what it really cost.
    Done,
    /// It was settled before; the first settlement stands.
    Already,
    /// It no longer counts (it left the window, or its key was reset), so there is nothing to correct.
    Gone,
}

/// What a store answers to settlements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The instant, by the store's clock, at which they were settled.
    pub at: Micros,
    /// What became of each, in their order.
    pub settled: Vec<Settled>,
}

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
    pub entries: Vec<Counted>,
}

/// The most entries an inspection lists.
pub const MAX_INSPECTED: usize = 10_000;

/// What counts in a window, by the instant it was recorded under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// When it was recorded.
    pub at: Micros,
    /// Permits.
    pub cost: u64,
    /// How long it still counts.
    pub leaves_after: Micros,
}
