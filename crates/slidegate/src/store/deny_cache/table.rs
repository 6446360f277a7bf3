//! Set-associative table of denials with a fixed size. A lookup writes no shared memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arc_swap::{ArcSwapOption, Guard};
use smallvec::SmallVec;

use super::Stamp;
use crate::{Check, Checks, Key, Micros, Precision, Quota, Source, Verdict, Verdicts};

/// Number of slots in which the denial of a key may be stored.
const WAYS: usize = 4;

/// A denial of the store, and the time until which it is valid.
pub(super) struct Denial {
    key: Key,
    pub(super) quota: Quota,
    pub(super) cost: u64,
    verdict: Verdict,
    /// Time of the evaluation, by the store's clock.
    at: Micros,
    /// Time at which the request was sent, by this node's clock.
    sent: Micros,
    pub(super) until: Micros,
    pub(super) stamp: Stamp,
}

pub(super) struct Table {
    sets: Box<[Set]>,
    /// Set by the first insertion.
    was_written: AtomicBool,
}

/// Slots of the keys with one hash. A tag from the hash is compared before the denial is read.
#[derive(Default)]
struct Set {
    tags: [AtomicU32; WAYS],
    denials: [ArcSwapOption<Denial>; WAYS],
}

impl Denial {
    pub(super) fn new(check: &Check, verdict: &Verdict, at: Micros, sent: Micros, stamp: Stamp) -> Self {
        let (key, until) = (check.key.clone(), sent.plus(verdict.retry_after));
        Denial { key, quota: check.quota, cost: check.cost, verdict: *verdict, at, sent, until, stamp }
    }

    /// Repeats the denial at `now`, for a request whose `i`-th check it denies.
    pub(super) fn repeat(&self, checks: &Checks, i: usize, now: Micros) -> Verdicts {
        // Zero if another caller sent the denied request after this caller read the clock.
        let elapsed = now.since(self.sent);
        // While one permit does not fit, no request fits, so the denial is still exact. After the denial of a larger
        // cost, a request with a smaller cost may have been admitted.
        let exact = checks.as_slice()[i].cost == 1 && !self.quota.is_held();
        let denied = Verdict {
            precision: if exact { self.verdict.precision } else { Precision::LowerBound },
            retry_after: self.verdict.retry_after.since(elapsed),
            reset_after: self.verdict.reset_after.since(elapsed),
            ..self.verdict
        };
        let other = |check: &Check| Verdict::not_evaluated(check.quota.capacity());
        let verdicts = match checks.as_slice() {
            [_] => SmallVec::from_buf([denied]),
            all => {
                all.iter().enumerate().map(|(n, check)| if n == i { denied } else { other(check) }).collect()
            }
        };
        Verdicts { at: self.at.plus(elapsed), source: Source::DenyCache, verdicts }
    }
}

impl Table {
    pub(super) fn new(capacity: usize) -> Self {
        let sets = if capacity == 0 { 0 } else { capacity.div_ceil(WAYS).next_power_of_two() };
        Table { sets: (0..sets).map(|_| Set::default()).collect(), was_written: AtomicBool::new(false) }
    }

    /// Returns the number of slots.
    pub(super) fn size(&self) -> usize {
        self.sets.len() * WAYS
    }

    /// Returns whether nothing was ever inserted.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        !self.was_written.load(Ordering::Relaxed)
    }

    /// Returns the denial of `key` if `matches` accepts it.
    #[inline]
    pub(super) fn find(
        &self,
        key: &Key,
        matches: impl Fn(&Denial) -> bool,
    ) -> Option<Guard<Option<Arc<Denial>>>> {
        let (set, tag) = self.set_and_tag(key);
        for (known, denial) in set.tags.iter().zip(&set.denials) {
            if known.load(Ordering::Relaxed) == tag {
                let found = denial.load();
                if found.as_ref().is_some_and(|denial| denial.key == *key && matches(denial)) {
                    return Some(found);
                }
            }
        }
        None
    }

    /// Inserts a denial. It replaces the older denial of its key, or else the denial in the set that ends first.
    pub(super) fn put(&self, denial: Denial, now: Micros) {
        let (set, tag) = self.set_and_tag(&denial.key);
        let (mut slot, mut soonest) = (0, Micros::new(u64::MAX));
        for (way, existing) in set.denials.iter().enumerate() {
            let existing = existing.load();
            if let Some(existing) = existing.as_ref().filter(|existing| existing.key == denial.key) {
                let still_valid =
                    existing.quota == denial.quota && existing.stamp == denial.stamp && now < existing.until;
                // The denial with the smaller cost applies to more requests.
                if still_valid && existing.cost < denial.cost {
                    return;
                }
                slot = way;
                break;
            }
            let until = existing.as_ref().map_or(Micros::ZERO, |existing| existing.until);
            if until < soonest {
                (slot, soonest) = (way, until);
            }
        }
        set.denials[slot].store(Some(Arc::new(denial)));
        set.tags[slot].store(tag, Ordering::Release);
        self.was_written.store(true, Ordering::Relaxed);
    }

    #[inline]
    fn set_and_tag(&self, key: &Key) -> (&Set, u32) {
        let hash = key.hash();
        let set = &self.sets[(hash as usize) & (self.sets.len() - 1)];
        // The tag is never 0, which marks an empty slot.
        (set, (hash >> 32) as u32 | 1)
    }
}
