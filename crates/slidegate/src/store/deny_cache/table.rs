//! A table of denials with a fixed number of places. Looking something up writes nothing that others read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arc_swap::{ArcSwapOption, Guard};
use smallvec::SmallVec;

use super::Stamp;
use crate::{Check, Checks, Entry, Key, Micros, Outcome, Precision, Quota, Source, Verdict, Verdicts};

/// How many places a key may be at.
const WAYS: usize = 4;

/// What was denied, and until when it is.
pub(super) struct Denial {
    key: Key,
    pub(super) quota: Quota,
    pub(super) cost: u64,
    verdict: Verdict,
    /// When it was judged, by the store's clock, and when it was sent, by ours.
    at: Micros,
    sent: Micros,
    pub(super) until: Micros,
    pub(super) stamp: Stamp,
}

pub(super) struct Table {
    sets: Box<[Set]>,
    /// Whether anything was ever put into it.
    used: AtomicBool,
}

/// Where a key may be: found by a part of its hash before anything else is read.
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

    /// The same again: to an ask whose `i`-th check it denies, at `now`.
    pub(super) fn again(&self, ask: &Checks, i: usize, now: Micros) -> Verdicts {
        // Nothing, if another has sent it since this one looked at the clock.
        let passed = now.since(self.sent);
        // Before the wait for one permit is over nothing else fits either. For more permits than one, something smaller may
        // have been admitted since.
        let exact = ask.checks()[i].cost == 1 && !self.quota.is_held();
        let denied = Verdict {
            precision: if exact { self.verdict.precision } else { Precision::LowerBound },
            retry_after: self.verdict.retry_after.since(passed),
            reset_after: self.verdict.reset_after.since(passed),
            ..self.verdict
        };
        let verdicts = match ask.checks() {
            [_] => SmallVec::from_buf([denied]),
            checks => checks
                .iter()
                .enumerate()
                .map(|(n, check)| if n == i { denied } else { unjudged(check) })
                .collect(),
        };
        Verdicts { at: self.at.plus(passed), source: Source::DenyCache, verdicts }
    }
}

fn unjudged(check: &Check) -> Verdict {
    Verdict {
        outcome: Outcome::Unjudged,
        limit: check.quota.capacity(),
        used: 0,
        retry_after: Micros::ZERO,
        precision: Precision::Exact,
        reset_after: Micros::ZERO,
        entry: Entry::default(),
    }
}

impl Table {
    pub(super) fn new(places: usize) -> Self {
        let sets = if places == 0 { 0 } else { places.div_ceil(WAYS).next_power_of_two() };
        Table { sets: (0..sets).map(|_| Set::default()).collect(), used: AtomicBool::new(false) }
    }

    /// How many places it has.
    pub(super) fn size(&self) -> usize {
        self.sets.len() * WAYS
    }

    /// Whether nothing was ever put into it.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        !self.used.load(Ordering::Relaxed)
    }

    /// What is remembered of `key`, if it holds.
    #[inline]
    pub(super) fn find(
        &self,
        key: &Key,
        holds: impl Fn(&Denial) -> bool,
    ) -> Option<Guard<Option<Arc<Denial>>>> {
        let (set, tag) = self.place(key);
        for (known, denial) in set.tags.iter().zip(&set.denials) {
            if known.load(Ordering::Relaxed) == tag {
                let found = denial.load();
                if found.as_ref().is_some_and(|denial| denial.key == *key && holds(denial)) {
                    return Some(found);
                }
            }
        }
        None
    }

    /// Remembers a denial in the place of an older one of its key, or of the one that ends first.
    pub(super) fn put(&self, denial: Denial, now: Micros) {
        let (set, tag) = self.place(&denial.key);
        let (mut place, mut soonest) = (0, Micros::new(u64::MAX));
        for (way, held) in set.denials.iter().enumerate() {
            let held = held.load();
            if let Some(held) = held.as_ref().filter(|held| held.key == denial.key) {
                let as_good = held.quota == denial.quota && held.stamp == denial.stamp && now < held.until;
                // Of two costs the smaller one denies more.
                if as_good && held.cost < denial.cost {
                    return;
                }
                place = way;
                break;
            }
            let until = held.as_ref().map_or(Micros::ZERO, |held| held.until);
            if until < soonest {
                (place, soonest) = (way, until);
            }
        }
        set.denials[place].store(Some(Arc::new(denial)));
        set.tags[place].store(tag, Ordering::Release);
        self.used.store(true, Ordering::Relaxed);
    }

    #[inline]
    fn place(&self, key: &Key) -> (&Set, u32) {
        let hash = key.hash();
        let set = &self.sets[(hash as usize) & (self.sets.len() - 1)];
        // Never 0, which is nobody's.
        (set, (hash >> 32) as u32 | 1)
    }
}
