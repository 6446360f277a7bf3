//! State of one key: one counter, and the notes on its admissions.

use std::sync::Arc;

use super::StateSnapshot;
use super::counter::{Counter, View};
use super::fixed_window::FixedWindow;
use super::idempotency::Notes;
use super::ids::ScopedId;
use super::note_budget::NoteBudget;
use super::sliding_counter::SlidingCounter;
use super::sliding_window::Window;
use super::token_bucket::TokenBucket;
use super::{CheckInput, Evaluation, Recording};
use crate::RequestId;
use crate::dynamic::warm_up::Warmth;
use crate::{Algorithm, Correction, Discrepancy, Micros, Quota};
use crate::{Entry, Settled, Verdict};

/// State of one key.
///
/// ```
/// use slidegate::{algorithm::State, store::Outcome, Micros, Quota};
///
/// let quota = Quota::per_second(2)?;
/// let mut state = State::new(&quota);
/// let at = Micros::from_millis;
/// assert_eq!(state.admit(at(100), &quota, 1).outcome, Outcome::Charged);
/// assert_eq!(state.admit(at(900), &quota, 1).outcome, Outcome::Charged);
///
/// let denied = state.admit(at(1000), &quota, 1);
/// assert_eq!(denied.outcome, Outcome::Denied);
/// assert_eq!(denied.retry_after, at(100)); // at 1100 ms the first is a second old, and gone
/// # Ok::<(), slidegate::Error>(())
/// ```
#[repr(C)]
#[derive(Clone, Debug)]
pub struct State {
    notes: Option<Box<Notes>>,
    kind: Kind,
    /// Instant of the last change: permits were recorded or left the window. Decisions about this key never use an
    /// earlier instant.
    last: Micros,
    /// Sequence number of the next admission: the generation of this state, and the number of records so far.
    seq: u64,
}

/// Number of low bits of a sequence number that hold the count. The bits above hold the generation.
pub(super) const COUNT_BITS: u32 = 40;

#[derive(Clone, Debug)]
enum Kind {
    Window(Window),
    FixedWindow(FixedWindow),
    SlidingCounter(SlidingCounter),
    TokenBucket(TokenBucket),
}

/// Determines the algorithm of a state once, and runs `$go` with code specialized for it.
macro_rules! with_counter {
    ($kind:expr, $counter:ident => $go:expr) => {
        match $kind {
            Kind::Window($counter) => $go,
            Kind::FixedWindow($counter) => $go,
            Kind::SlidingCounter($counter) => $go,
            Kind::TokenBucket($counter) => $go,
        }
    };
}

/// Does the same as `with_counter!` for code that changes the state.
macro_rules! with_view {
    ($state:expr, $view:ident => $go:expr) => {{
        let State { notes, kind, last, seq } = $state;
        with_counter!(kind, counter => {
            #[allow(unused_mut, reason = "not all methods of a view change it")]
            let mut $view = View { counter, notes, last, seq };
            $go
        })
    }};
}

impl State {
    /// Creates the state of a key that was never used.
    pub fn new(quota: &Quota) -> Self {
        Self::of_generation(quota, 0)
    }

    /// Creates the state of a key that may have been used before and was forgotten. The admissions of each generation
    /// have different numbers, so that an old reservation cannot settle an admission of a new state.
    pub fn of_generation(quota: &Quota, generation: u64) -> Self {
        let kind = match quota.algorithm() {
            Algorithm::SlidingWindow | Algorithm::TimeSlice { .. } | Algorithm::Concurrency => {
                Kind::Window(Window::new(quota))
            }
            Algorithm::FixedWindow => Kind::FixedWindow(FixedWindow::new(quota)),
            Algorithm::SlidingCounter => Kind::SlidingCounter(SlidingCounter::new(quota)),
            Algorithm::TokenBucket { .. } => Kind::TokenBucket(TokenBucket::new(quota)),
        };
        State { kind, last: Micros::ZERO, seq: generation << COUNT_BITS, notes: None }
    }

    /// Returns true if this state can count `quota`. A new limit, rate or burst keeps the counts; another algorithm or window
    /// starts new counts.
    #[inline]
    pub fn suits(&self, quota: &Quota) -> bool {
        with_counter!(&self.kind, counter => counter.suits(quota))
    }

    /// Evaluates a single check, and records it if it counts. Cost 0 is a peek.
    #[inline]
    pub fn admit(&mut self, now: Micros, quota: &Quota, cost: u64) -> Verdict {
        self.admit_alone(now, CheckInput { quota, cost, id: None, scope: 0, budget: None }).1
    }

    /// Evaluates a single check and also returns the instant of the evaluation.
    #[inline(always)]
    pub(crate) fn admit_alone(&mut self, now: Micros, input: CheckInput<'_>) -> (Micros, Verdict) {
        with_view!(self, view => view.admit(now, input))
    }

    /// Advances to `now`, or stays if `now` is in the past. Returns the resulting instant.
    pub(crate) fn roll(&mut self, now: Micros, quota: &Quota) -> Micros {
        with_view!(self, view => view.roll(now, quota))
    }

    /// Evaluates a check at the instant of the last roll. Changes nothing.
    pub(crate) fn consider(&mut self, now: Micros, input: CheckInput<'_>) -> Evaluation {
        with_view!(self, view => view.consider(now, input))
    }

    /// Acts on an evaluation: records the cost if it counts, and returns the verdict.
    pub(crate) fn conclude(
        &mut self,
        now: Micros,
        input: CheckInput<'_>,
        evaluation: Evaluation,
        recording: Recording,
    ) -> Verdict {
        with_view!(self, view => view.conclude(now, input, evaluation, recording))
    }

    /// Corrects one admission to its actual cost; 0 is a refund. Only the first settlement takes effect.
    ///
    /// The actual cost is a fact, so a correction upwards may raise `used` above the limit; in a bucket, at most one capacity
    /// above it. An attempt cannot be settled; the result is [`Settled::Gone`].
    pub fn settle(&mut self, now: Micros, entry: Entry, to: u64) -> Settled {
        self.correct(now, entry, Correction::Cost(to))
    }

    /// Corrects the cost of an admission, or extends an admission of a `concurrency` limit: it counts from `now` on.
    pub fn correct(&mut self, now: Micros, entry: Entry, correction: Correction) -> Settled {
        self.correct_within(now, entry, correction, None)
    }

    /// Corrects an admission within a byte budget for notes: a correction that cannot be remembered is [`Settled::Gone`].
    pub(crate) fn correct_within(
        &mut self,
        now: Micros,
        entry: Entry,
        correction: Correction,
        budget: Option<&Arc<NoteBudget>>,
    ) -> Settled {
        with_view!(self, view => view.settle(now, entry, correction, budget))
    }

    /// Returns the instant from which an admission counts.
    pub(crate) fn counted_from(&self, entry: Entry) -> Micros {
        self.notes.as_ref().map_or(entry, |notes| notes.current_entry(entry)).at
    }

    /// Counts a cost from `now` on, regardless of the limit. Its admission was recorded before, at another instant.
    pub(crate) fn count_again(&mut self, now: Micros, cost: u64) {
        with_view!(self, view => view.count_again(now, cost));
    }

    /// Counts an admission of a sliding window, made at `entry.at`, from `now` on; does nothing if it has left the
    /// window. The caller guarantees that the admission was made in this state.
    pub(crate) fn postpone(&mut self, now: Micros, entry: Entry) {
        with_view!(self, view => view.postpone(now, entry));
    }

    pub(crate) fn warmth(&self) -> Option<Warmth> {
        self.notes.as_ref()?.warmth
    }

    pub(crate) fn set_warmth(&mut self, warmth: Option<Warmth>) {
        if warmth.is_some() || self.notes.is_some() {
            self.notes.get_or_insert_default().warmth = warmth;
        }
    }

    /// Returns the permits in use at the instant of the last roll.
    #[inline]
    pub fn used(&self) -> u64 {
        with_counter!(&self.kind, counter => counter.used())
    }

    /// Returns the permits in use at `now`. A bucket uses the rate of its last check.
    pub(crate) fn inspect(&mut self, now: Micros) -> u64 {
        with_view!(&mut *self, view => view.advance(now));
        self.used()
    }

    /// Returns the permits in use at `now` according to the running total, those according to the entries, and the
    /// discrepancies.
    pub(crate) fn audit(&mut self, now: Micros) -> (u64, u64, Vec<Discrepancy>) {
        let stored = self.inspect(now);
        let Kind::Window(window) = &self.kind else { return (stored, stored, Vec::new()) };
        let (counted, ends) = window.recount();
        let total = (stored != counted).then_some(Discrepancy::Total { stored, counted });
        (stored, counted, total.into_iter().chain(ends).collect())
    }

    /// Returns the size of a token bucket. Other algorithms store no limit.
    pub(crate) fn capacity(&self) -> Option<u64> {
        match &self.kind {
            Kind::TokenBucket(bucket) => Some(bucket.burst()),
            _ => None,
        }
    }

    /// Returns true if nothing was ever recorded.
    pub(crate) fn is_blank(&self) -> bool {
        self.seq.trailing_zeros() >= COUNT_BITS
    }

    /// Returns true if an admission with this number may belong to this state.
    pub(crate) fn numbered(&self, seq: u64) -> bool {
        self.seq >> COUNT_BITS == seq >> COUNT_BITS && seq < self.seq
    }

    /// Returns a state of another generation in which all permits count as long as the newest entry: an upper bound, in a few
    /// words of memory.
    pub(crate) fn summary(&self, generation: u64) -> State {
        let kind = match &self.kind {
            Kind::Window(window) => Kind::Window(window.summary()),
            kind => kind.clone(),
        };
        State { kind, last: self.last, seq: generation << COUNT_BITS, notes: None }
    }

    /// Counts `cost` from `now` on, regardless of the limit.
    pub(crate) fn charge(&mut self, now: Micros, cost: u64) {
        with_view!(self, view => view.charge(now, cost));
    }

    /// Resets the warm-up: the key is cold again.
    pub(crate) fn cool(&mut self) {
        if let Some(notes) = &mut self.notes {
            notes.warmth = None;
        }
    }

    /// Returns the instant from which nothing counts any more, if the key is not used again.
    pub(crate) fn empty_at(&self) -> Micros {
        with_counter!(&self.kind, counter => counter.empty_at())
    }

    /// Returns the instant from which the state can be dropped, if the key is not used again.
    pub fn idle_at(&self) -> Micros {
        let notes = self.notes.as_ref();
        let newest = notes.and_then(|notes| notes.newest());
        let warm = notes.and_then(|notes| notes.warmth).map_or(Micros::ZERO, |warmth| warmth.until);
        with_counter!(&self.kind, counter => {
            let noted = newest.map_or(Micros::ZERO, |at| counter.leaves(at));
            counter.empty_at().max(noted).max(warm)
        })
    }

    /// Returns the entries that count now, each with its recorded instant, its permits and the instant at which it leaves;
    /// oldest first.
    ///
    /// A token bucket has no entries, only a level.
    pub fn entries(&self) -> Vec<(Micros, u64, Micros)> {
        with_counter!(&self.kind, counter => {
            counter.entries().into_iter().map(|(at, cost)| (at, cost, counter.leaves(at))).collect()
        })
    }

    /// Rebuilds a state from its stored form, with the request ids of the present checks.
    pub(crate) fn restored(quota: &Quota, snapshot: StateSnapshot, ids: Vec<(RequestId, Entry)>) -> Self {
        let mut state = State::new(quota);
        with_view!(&mut state, view => view.counter.restore(snapshot.last, &snapshot.counted));
        state.last = snapshot.last;
        for (id, entry) in ids {
            Notes::remember(&mut state.notes, &ScopedId::unbounded(&id), entry);
        }
        state
    }

    /// Returns the stored form of the state.
    pub(crate) fn snapshot(&self) -> StateSnapshot {
        StateSnapshot { last: self.last, counted: with_counter!(&self.kind, counter => counter.snapshot()) }
    }

    /// Returns the latest expired instant: admissions at or before it no longer affect decisions. Only for keys without
    /// entries.
    pub(crate) fn gone_until(&self) -> Micros {
        with_counter!(&self.kind, counter => counter.gone_until())
    }

    /// Returns true if an admission recorded at `at` affects decisions at `now`.
    pub(crate) fn still_counts(&self, at: Micros, now: Micros) -> bool {
        with_counter!(&self.kind, counter => at <= now.plus(counter.ahead()) && !counter.left(at, now))
    }

    /// Corrects an admission without notes. The caller guarantees that it was made in this state and not settled before.
    pub(crate) fn amend(&mut self, entry: Entry, to: u64) -> bool {
        with_view!(self, view => view.counter.amend(entry, to))
    }

    /// Returns the number of admissions and attempts recorded in this state.
    pub(crate) fn recorded(&self) -> u64 {
        self.seq & ((1 << COUNT_BITS) - 1)
    }

    /// Forgets up to `most` request ids whose admissions have left the window at `now`.
    pub(crate) fn forget_notes(&mut self, now: Micros, most: usize) {
        let Some(notes) = &mut self.notes else { return };
        let now = now.max(self.last);
        with_counter!(&self.kind, counter => notes.forget(|at| counter.left(at, now), most));
    }

    /// Frees memory that is no longer needed after a burst.
    pub(crate) fn shrink(&mut self) {
        if let Kind::Window(window) = &mut self.kind {
            window.log.shrink();
        }
        if let Some(notes) = &mut self.notes {
            notes.shrink();
            if notes.is_empty() {
                self.notes = None;
            }
        }
    }

    /// Returns the number of individually stored events.
    pub(crate) fn events(&self) -> usize {
        if let Kind::Window(window) = &self.kind { window.log.len() } else { 0 }
    }

    /// Heap bytes in use.
    pub(crate) fn heap_bytes(&self) -> usize {
        let log = if let Kind::Window(window) = &self.kind { window.log.heap_bytes() } else { 0 };
        log + self.notes.as_ref().map_or(0, |notes| notes.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, State};
    use crate::{Discrepancy, Micros, Quota};

    #[test]
    fn audit_reports_a_total_that_is_not_the_sum() {
        let quota = Quota::per_minute(100).unwrap();
        let mut state = State::new(&quota);
        for n in 1..=20 {
            state.admit(Micros::from_secs(n), &quota, 1 + n % 3);
        }
        // The first ten admissions have left the window.
        let now = Micros::from_secs(70);
        assert_eq!(state.audit(now), (21, 21, Vec::new()));
        let Kind::Window(window) = &mut state.kind else { panic!() };
        window.log.corrupt_total(7);
        let told = vec![Discrepancy::Total { stored: 7, counted: 21 }];
        assert_eq!(state.audit(now), (7, 21, told));
    }
}
