//! Byte budget for the notes of all keys of one store.
//!
//! A note is a request id, a settlement or an extension. Clients create notes, so without a bound a client could fill the
//! memory of the process. Behaviour when the budget is exhausted:
//!
//! - A request id that does not fit is not remembered. The request is decided as usual, and a retry is charged again.
//! - A settlement or extension that does not fit is not carried out. Otherwise it could be repeated, and a repeated
//!   refund would admit too many permits.
//!
//! Request ids may use three quarters of the budget, so that settlements have room. One key may use an eighth.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Divisor of the budget: one key may use an eighth of it.
const PER_KEY: usize = 8;

/// Bytes of notes in use, and their limit.
#[derive(Debug, Default)]
pub(crate) struct NoteBudget {
    max: usize,
    used: AtomicUsize,
    ids_dropped: AtomicU64,
    settlements_dropped: AtomicU64,
}

/// Purpose of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Id,
    Settlement,
}

impl NoteBudget {
    pub(crate) fn new(max: usize) -> Self {
        NoteBudget { max, ..NoteBudget::default() }
    }

    /// Returns the bytes of notes in use, the number of request ids that were not remembered, and the number of settlements and
    /// extensions that were not carried out.
    pub(crate) fn counts(&self) -> (usize, u64, u64) {
        let dropped = [&self.ids_dropped, &self.settlements_dropped].map(|n| n.load(Ordering::Relaxed));
        (self.used.load(Ordering::Relaxed), dropped[0], dropped[1])
    }

    /// Takes `more` bytes for a key that already uses `held`. If the bytes do not fit, returns false and counts the
    /// dropped note.
    fn take(&self, held: usize, more: usize, purpose: Purpose) -> bool {
        if more == 0 {
            return true;
        }
        let (most, dropped) = match purpose {
            Purpose::Id => (self.max / 4 * 3, &self.ids_dropped),
            Purpose::Settlement => (self.max, &self.settlements_dropped),
        };
        let add = |used: usize| used.checked_add(more).filter(|sum| *sum <= most);
        let fits = held.saturating_add(more) <= self.max / PER_KEY
            && self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok();
        if !fits {
            dropped.fetch_add(1, Ordering::Relaxed);
        }
        fits
    }

    fn change(&self, from: usize, to: usize) {
        if to > from {
            self.used.fetch_add(to - from, Ordering::Relaxed);
        } else if from > to {
            self.used.fetch_sub(from - to, Ordering::Relaxed);
        }
    }
}

/// Bytes that the notes of one key have taken from a budget. They return to the budget on drop.
#[derive(Debug, Default)]
pub(super) struct ReservedBytes {
    budget: Option<Arc<NoteBudget>>,
    bytes: usize,
}

impl ReservedBytes {
    /// Takes `more` bytes from `budget`; returns `None` if they do not fit. Without a budget everything fits.
    pub(super) fn new(
        budget: Option<&Arc<NoteBudget>>,
        held: usize,
        more: usize,
        purpose: Purpose,
    ) -> Option<Self> {
        let Some(budget) = budget else { return Some(ReservedBytes::default()) };
        let budget = budget.take(held, more, purpose).then(|| Arc::clone(budget))?;
        Some(ReservedBytes { budget: Some(budget), bytes: more })
    }

    /// Returns true if the bytes belong to a budget.
    pub(super) fn is_some(&self) -> bool {
        self.budget.is_some()
    }

    /// Adds the bytes of `other`.
    pub(super) fn add(&mut self, mut other: ReservedBytes) {
        let budget = other.budget.take();
        self.budget = self.budget.take().or(budget);
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Replaces an estimate by the actual size.
    pub(super) fn set(&mut self, bytes: usize) {
        if let Some(budget) = &self.budget {
            budget.change(self.bytes, bytes);
            self.bytes = bytes;
        }
    }
}

/// A clone is outside the store, so it takes no bytes of the budget.
impl Clone for ReservedBytes {
    fn clone(&self) -> Self {
        ReservedBytes::default()
    }
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{NoteBudget, Purpose, ReservedBytes};

    #[test]
    fn ids_use_three_quarters_and_one_key_uses_an_eighth() {
        let budget = Arc::new(NoteBudget::new(8_000));
        let take = |held, more, purpose| ReservedBytes::new(Some(&budget), held, more, purpose);
        let ids: Vec<_> = (0..20).map_while(|_| take(0, 1_000, Purpose::Id)).collect();
        assert_eq!((ids.len(), budget.counts()), (6, (6_000, 1, 0)));
        let mut settlement = take(0, 1_000, Purpose::Settlement).unwrap();
        assert!(take(1, 1_000, Purpose::Settlement).is_none(), "one key has more than its part");
        assert_eq!(budget.counts(), (7_000, 1, 1));
        settlement.set(1_500);
        settlement.add(take(0, 500, Purpose::Settlement).unwrap());
        assert!(take(0, 1, Purpose::Settlement).is_none());
        assert_eq!(budget.counts(), (8_000, 1, 2));
        drop(settlement.clone());
        assert_eq!(budget.counts().0, 8_000);
        drop((settlement, ids));
        assert_eq!(budget.counts().0, 0);
    }
}
