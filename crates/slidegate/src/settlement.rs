//! Corrections of past admissions, and their results.

use crate::{Key, Micros};

/// Number of admissions that are not settled: attempts. No store gives it to anything else.
pub(crate) const NEVER_SETTLED: u64 = u64::MAX;

/// One admission of a key: when it was recorded, as which one, and what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The instant it was recorded at.
    pub at: Micros,
    /// Its number among the key's admissions.
    pub seq: u64,
    /// What it was charged.
    pub cost: u64,
}

impl Entry {
    /// Whether a store settles this admission. A rule with `count: attempts` has none that can be settled.
    pub fn can_be_settled(&self) -> bool {
        self.seq != NEVER_SETTLED
    }
}

/// The correction of one admission of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The key it was charged to.
    pub key: Key,
    /// Which admission.
    pub entry: Entry,
    /// What is to become of it.
    pub correction: Correction,
}

/// What is to become of an admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Correction {
    /// It counts what it really cost; 0 is a refund. The first of these stands.
    Cost(u64),
    /// It is still held, and counts from now on as if it were admitted now, under the name it has. Only of a
    /// `concurrency` limit; anything else is gone for it.
    Extend,
}

impl Settlement {
    /// Gives an admission back.
    pub fn refund(key: Key, entry: Entry) -> Self {
        Settlement { key, entry, correction: Correction::Cost(0) }
    }

    /// Whether it counts less than before.
    pub(crate) fn frees(&self) -> bool {
        matches!(self.correction, Correction::Cost(permits) if permits < self.entry.cost)
    }
}

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
