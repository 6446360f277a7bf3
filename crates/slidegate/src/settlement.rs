//! Corrections of past admissions, and their results.

use crate::{Key, Micros};

/// Sequence number of admissions that cannot be settled: attempts. No store gives this number to another admission.
pub(crate) const NEVER_SETTLED: u64 = u64::MAX;

/// One admission of a key: its instant, its sequence number and its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Instant of the admission.
    pub at: Micros,
    /// Sequence number among the admissions of the key.
    pub seq: u64,
    /// Permits that were charged.
    pub cost: u64,
}

impl Entry {
    /// Returns true if a store can settle this admission. Admissions of a rule with `count: attempts` cannot be settled.
    pub fn can_be_settled(&self) -> bool {
        self.seq != NEVER_SETTLED
    }
}

/// The correction of one admission of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The key that was charged.
    pub key: Key,
    /// The admission.
    pub entry: Entry,
    /// The correction.
    pub correction: Correction,
}

/// Change to an admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Correction {
    /// Sets the actual cost; 0 is a refund. Only the first such correction takes effect.
    Cost(u64),
    /// Extends a held permit: it counts from now on as if it were admitted now, under the same entry. Only for a `concurrency`
    /// limit; for any other limit the result is [`Settled::Gone`].
    Extend,
}

impl Settlement {
    /// Creates the correction that refunds an admission.
    pub fn refund(key: Key, entry: Entry) -> Self {
        Settlement { key, entry, correction: Correction::Cost(0) }
    }

    /// Returns true if the correction lowers the cost.
    pub(crate) fn frees(&self) -> bool {
        matches!(self.correction, Correction::Cost(permits) if permits < self.entry.cost)
    }
}

/// Result of one settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The admission now counts its actual cost.
    Done,
    /// The admission was settled before, and the first settlement stays in effect.
    Already,
    /// The admission no longer counts (it left the window, or its key was reset), so there is nothing to correct.
    Gone,
}

/// Reply of a store to settlements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Instant of the settlement, by the store's clock.
    pub at: Micros,
    /// The result of each settlement, in their order.
    pub settled: Vec<Settled>,
}
