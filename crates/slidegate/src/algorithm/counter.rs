//! The `Counter` trait that all algorithms implement, and the decision procedure over it.

use std::sync::Arc;

use super::SnapshotCounts;
use super::idempotency::{FORGET_STEP, Notes};
use super::ids::ScopedId;
use super::note_budget::NoteBudget;
use super::state::COUNT_BITS;
use super::{CheckInput, Evaluation, Recording};
use crate::Entry;
use crate::dynamic::warm_up::Warmth;
use crate::settlement::NEVER_SETTLED;
use crate::{Correction, Count, Micros, Quota, RequestId, WarmUp};
use crate::{Outcome, Precision, Settled, Verdict};

/// One algorithm over one key. The caller never passes an instant before the last instant at which the counter changed.
pub(super) trait Counter {
    /// Advances to `now`; returns true if anything changed.
    fn roll(&mut self, now: Micros) -> bool;

    /// Applies a changed quota.
    #[inline]
    fn adopt(&mut self, _quota: &Quota) {}

    /// Permits in use at the instant of the last roll.
    fn used(&self) -> u64;

    /// Counts `cost`, and returns the instant under which it is recorded.
    fn record(&mut self, now: Micros, quota: &Quota, cost: u64) -> Micros;

    /// Removes the oldest permits until at most `keep` are in use.
    fn keep_newest(&mut self, keep: u64);

    /// Returns the shortest wait after which `cost` fits into `limit`; zero if it fits now.
    fn wait(&self, now: Micros, quota: &Quota, limit: u64, cost: u64) -> Micros;

    /// Instant from which nothing recorded counts any more.
    fn empty_at(&self) -> Micros;

    /// Corrects the cost of an admission; returns false if the admission has left the window.
    fn amend(&mut self, entry: Entry, to: u64) -> bool;

    /// Returns true if permits are held and can be extended.
    fn is_held(&self) -> bool {
        false
    }

    /// Counts `cost` from `now` on, regardless of the limit. Its admission was recorded before, at another instant.
    fn add(&mut self, _now: Micros, _cost: u64) {}

    /// Counts `cost` from `now` on, regardless of the limit.
    fn charge(&mut self, now: Micros, cost: u64) {
        self.amend(Entry { at: now, seq: 0, cost: 0 }, cost);
    }

    /// Longest time by which the recorded instant of an admission can be ahead of the actual instant.
    fn ahead(&self) -> Micros {
        Micros::ZERO
    }

    /// Instant from which an admission recorded at `at` no longer affects decisions.
    fn leaves(&self, at: Micros) -> Micros;

    /// Returns true if an admission recorded at `at` no longer affects decisions at `now`.
    #[inline]
    fn left(&self, at: Micros, now: Micros) -> bool {
        self.leaves(at) <= now
    }

    /// Permits that count, oldest first, by recorded instant.
    fn entries(&self) -> Vec<(Micros, u64)>;

    /// Returns true if this counter can continue with `quota`.
    fn suits(&self, quota: &Quota) -> bool;

    /// Returns the stored form of the counter.
    fn snapshot(&self) -> SnapshotCounts;

    /// Replaces the counts by those of a counter that last changed at `last`.
    fn restore(&mut self, last: Micros, counts: &SnapshotCounts);

    /// Returns the latest expired instant: admissions at or before it no longer affect decisions. Only for counters
    /// without entries.
    fn gone_until(&self) -> Micros {
        Micros::ZERO
    }
}

/// Borrowed parts of a [`State`](super::State) with a statically known algorithm.
pub(super) struct View<'s, C> {
    pub(super) counter: &'s mut C,
    pub(super) notes: &'s mut Option<Box<Notes>>,
    pub(super) last: &'s mut Micros,
    pub(super) seq: &'s mut u64,
}

impl<C: Counter> View<'_, C> {
    #[inline(always)]
    pub(super) fn admit(mut self, now: Micros, input: CheckInput<'_>) -> (Micros, Verdict) {
        let now = self.roll(now, input.quota);
        let evaluation = self.consider(now, input);
        let recording = if evaluation.denies() { Recording::Attempts } else { Recording::All };
        (now, self.conclude(now, input, evaluation, recording))
    }

    #[inline(always)]
    pub(super) fn roll(&mut self, now: Micros, quota: &Quota) -> Micros {
        let now = self.advance_counter(now);
        self.counter.adopt(quota);
        self.expire();
        now
    }

    #[inline(always)]
    pub(super) fn advance(&mut self, now: Micros) -> Micros {
        let now = self.advance_counter(now);
        self.expire();
        now
    }

    /// Advances the counter. A denial by a window writes nothing, so that cores that deny the same key do not contend for its
    /// cache line.
    #[inline(always)]
    fn advance_counter(&mut self, now: Micros) -> Micros {
        let now = now.max(*self.last);
        if self.counter.roll(now) {
            *self.last = now;
        }
        now
    }

    #[inline(always)]
    fn expire(&mut self) {
        if self.notes.is_some() {
            self.expire_notes();
        }
    }

    #[cold]
    /// Forgets the notes of admissions that have left the window. They cannot count again, because the time of a key
    /// never runs back before its last instant.
    fn expire_notes(&mut self) {
        if let Some(notes) = self.notes {
            notes.forget(|at| self.counter.left(at, *self.last), FORGET_STEP);
        }
    }

    #[inline(always)]
    pub(super) fn consider(&self, now: Micros, input: CheckInput<'_>) -> Evaluation {
        let (cost, capacity) = (input.cost, input.quota.capacity());
        if cost > capacity {
            return Evaluation::Impossible;
        }
        if let (Some(id), Some(notes)) = (input.id, &self.notes)
            && let Some(known) = notes.find(id, input.scope, cost)
            && !self.counter.left(known.at, now)
        {
            return Evaluation::Repeated(known);
        }
        match input.quota.warm_up() {
            Some(warm_up) => self.consider_warm_up(now, input, warm_up),
            None if self.counter.used() + cost <= capacity => Evaluation::Fits,
            None => Evaluation::Denied,
        }
    }

    /// Evaluates a check during warm-up. A request always fits if nothing else counts, so that a key can become warm.
    #[cold]
    fn consider_warm_up(&self, now: Micros, input: CheckInput<'_>, warm_up: WarmUp) -> Evaluation {
        let used = self.counter.used();
        let fits = used == 0 || used + input.cost <= self.limit(now, input.quota, warm_up);
        if fits { Evaluation::Fits } else { Evaluation::Denied }
    }

    fn warmth(&self) -> Option<Warmth> {
        self.notes.as_ref()?.warmth
    }

    /// Returns the limit at `now` during warm-up.
    fn limit(&self, now: Micros, quota: &Quota, warm_up: WarmUp) -> u64 {
        let climbed = self.warmth().and_then(|warmth| warmth.climbed(&warm_up, now));
        warm_up.limit(quota.capacity(), climbed.unwrap_or_default())
    }

    /// Returns an upper bound of the wait until `cost` fits during warm-up: the shorter of the wait until enough
    /// entries leave under the present limit, and the wait until the limit has risen enough. If the entries leave only
    /// after the key is cold again, the limit of a cold key applies instead of the present limit.
    #[cold]
    fn wait_in_warm_up(&self, now: Micros, quota: &Quota, cost: u64, warm_up: WarmUp) -> Micros {
        let (used, full) = (self.counter.used(), quota.capacity());
        let limit = self.limit(now, quota, warm_up);
        if used == 0 || used + cost <= limit {
            return Micros::ZERO;
        }
        let leaves = self.wait_within(limit, now, quota, cost);
        let Some(warmth) = self.warmth().filter(|warmth| warmth.climbed(&warm_up, now).is_some()) else {
            return leaves;
        };
        let cold = warmth.last.plus(warm_up.idle_for());
        let leaves = match now.plus(leaves) < cold {
            true => leaves,
            false => self.wait_within(warm_up.limit(full, Micros::ZERO), now, quota, cost),
        };
        if used + cost > full {
            return leaves;
        }
        let reached = warmth.since.plus(warm_up.reaches(full, used + cost));
        if reached < cold { leaves.min(reached.since(now)) } else { leaves }
    }

    /// Returns the wait until enough permits have left the window for `cost` to fit into `limit`.
    fn wait_within(&self, limit: u64, now: Micros, quota: &Quota, cost: u64) -> Micros {
        match cost > limit {
            true => self.counter.empty_at().since(now),
            false => self.counter.wait(now, quota, limit, cost),
        }
    }

    #[inline(always)]
    pub(super) fn conclude(
        &mut self,
        now: Micros,
        input: CheckInput<'_>,
        evaluation: Evaluation,
        recording: Recording,
    ) -> Verdict {
        let CheckInput { quota, cost, .. } = input;
        let records = cost > 0
            && match recording {
                Recording::All => true,
                Recording::Attempts => quota.count() == Count::Attempts,
                Recording::Nothing => false,
            };
        let admitted = recording == Recording::All;
        let mut entry = Entry::default();
        let outcome = match evaluation {
            Evaluation::Impossible if quota.adapts() => Outcome::Denied,
            Evaluation::Impossible => Outcome::Impossible,
            Evaluation::Repeated(known) => {
                entry = known;
                Outcome::Charged
            }
            Evaluation::Fits => {
                if records {
                    entry = self.record(now, input, admitted);
                }
                if admitted && records { Outcome::Charged } else { Outcome::Fits }
            }
            Evaluation::Denied => {
                if records && quota.count() == Count::Attempts {
                    self.record(now, input, false);
                }
                Outcome::Denied
            }
        };
        if outcome == Outcome::Charged && quota.count() == Count::Attempts {
            entry.seq = NEVER_SETTLED;
        }
        let limit = match quota.warm_up() {
            Some(warm_up) => self.limit(now, quota, warm_up),
            None => quota.capacity(),
        };
        Verdict {
            outcome,
            limit,
            used: self.counter.used(),
            retry_after: match outcome {
                Outcome::Charged => Micros::ZERO,
                _ if evaluation == Evaluation::Impossible => quota.horizon(),
                _ => match quota.warm_up() {
                    Some(warm_up) => self.wait_in_warm_up(now, quota, cost, warm_up),
                    None => self.counter.wait(now, quota, limit, cost),
                },
            },
            precision: Precision::Exact,
            reset_after: self.counter.empty_at().since(now),
            entry,
        }
    }

    #[inline(always)]
    fn record(&mut self, now: Micros, input: CheckInput<'_>, admitted: bool) -> Entry {
        let CheckInput { quota, cost, id, scope, budget } = input;
        let attempts = quota.count() == Count::Attempts;
        if attempts {
            self.counter.keep_newest(quota.capacity() - cost);
        }
        let at = self.counter.record(now, quota, cost);
        *self.last = now;
        let entry = Entry { at, seq: *self.seq, cost };
        *self.seq += 1;
        if admitted && let Some(id) = id {
            self.remember(id, scope, budget, entry);
        }
        if admitted && let Some(warm_up) = quota.warm_up() {
            self.warm(now, warm_up);
        }
        entry
    }

    #[cold]
    fn warm(&mut self, now: Micros, warm_up: WarmUp) {
        let notes = self.notes.get_or_insert_default();
        notes.warmth = Some(Warmth::admitted(notes.warmth, &warm_up, now));
    }

    #[cold]
    fn remember(&mut self, id: &RequestId, scope: u64, budget: Option<&Arc<NoteBudget>>, entry: Entry) {
        Notes::remember(self.notes, &ScopedId { id, scope, budget }, entry);
    }

    pub(super) fn settle(
        mut self,
        now: Micros,
        entry: Entry,
        correction: Correction,
        budget: Option<&Arc<NoteBudget>>,
    ) -> Settled {
        let now = self.advance(now);
        let ours = entry.seq >> COUNT_BITS == *self.seq >> COUNT_BITS && entry.seq < *self.seq;
        let not_in_future = entry.at <= now.plus(self.counter.ahead());
        let counted = self.notes.as_ref().map_or(entry, |notes| notes.current_entry(entry));
        if !ours || !not_in_future || self.counter.left(counted.at, now) {
            return Settled::Gone;
        }
        if self.notes.as_ref().is_some_and(|notes| notes.is_settled(entry.seq)) {
            return Settled::Already;
        }
        match correction {
            Correction::Extend => self.extend(now, counted, budget),
            Correction::Cost(to) => {
                // Without a note, the admission could be settled a second time.
                let Some(reserved) = Notes::reserve_for_settlement(self.notes.as_deref(), budget) else {
                    return Settled::Gone;
                };
                if !self.counter.amend(counted, to) {
                    return Settled::Gone;
                }
                let notes = self.notes.get_or_insert_default();
                notes.settle(counted, reserved);
                if to == 0 {
                    notes.release(entry);
                }
                Settled::Done
            }
        }
    }

    /// Extends an admission, so that it counts from `now` on. Moves at most the recorded permits, even if the caller
    /// claims a higher cost.
    fn extend(&mut self, now: Micros, counted: Entry, budget: Option<&Arc<NoteBudget>>) -> Settled {
        if !self.counter.is_held() || counted.cost == 0 {
            return Settled::Gone;
        }
        if counted.at < now {
            let Some(reserved) = Notes::reserve_for_extension(self.notes.as_deref(), budget) else {
                return Settled::Gone;
            };
            let before = self.counter.used();
            if !self.counter.amend(counted, 0) {
                return Settled::Gone;
            }
            self.counter.add(now, before - self.counter.used());
            *self.last = now;
            self.notes.get_or_insert_default().extend(counted.seq, now, reserved);
        }
        Settled::Done
    }

    pub(super) fn charge(mut self, now: Micros, cost: u64) {
        let now = self.advance(now);
        self.counter.charge(now, cost);
        *self.last = now;
    }

    pub(super) fn postpone(mut self, now: Micros, entry: Entry) {
        if self.counter.amend(entry, 0) {
            let now = self.advance(now);
            self.count_again(now, entry.cost);
        }
    }

    pub(super) fn count_again(self, now: Micros, cost: u64) {
        self.counter.add(now, cost);
        *self.last = now;
        *self.seq += 1;
    }
}
