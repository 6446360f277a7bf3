//! The algorithms, as pure state machines: `(state, now, quota, cost) -> verdict`.
//!
//! A [`State`] is what is remembered of one key. It has no clock and no lock, so the same code decides in
//! the memory store, in simulations, and as the oracle that replays what Redis decided. All have the same
//! shape, [`Counter`]: *roll* to the present, say what is *used*, *record*, and say how long to *wait*.
pub(crate) mod audit;
pub(crate) mod evaluate;

mod counter;
mod event_log;
pub(crate) mod extensions;
mod fixed_window;
mod idempotency;
pub(crate) mod ids;
pub(crate) mod note_budget;
mod ranges;
mod ring_buffer;
mod sliding_window;
mod token_bucket;

use std::sync::Arc;

use self::counter::{Counter, View};
use self::fixed_window::Fixed;
use self::idempotency::Notes;
#[cfg(feature = "redis")]
use self::ids::Named;
use self::note_budget::NoteBudget;
use self::sliding_window::Window;
use self::token_bucket::Bucket;
#[cfg(feature = "redis")]
use crate::dynamic::warm_up::Warmth;
use crate::{Algorithm, Correction, Discrepancy, Micros, Quota, RequestId};
use crate::{Entry, Settled, Verdict};

/// What is remembered of one key.
///
/// ```
/// use slidegate::{Micros, Outcome, Quota, State};
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
    /// When something was last recorded or seen to leave: before that the key's time never runs back.
    last: Micros,
    /// The number of the next admission: which state of this key it is, and how many were recorded so far.
    seq: u64,
}

/// Below these bits of a sequence number is the count, above them the generation.
const COUNT_BITS: u32 = 40;

#[derive(Clone, Debug)]
enum Kind {
    Window(Window),
    Fixed(Fixed),
    Bucket(Bucket),
}

/// A check as its key sees it.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) quota: &'a Quota,
    pub(crate) cost: u64,
    pub(crate) id: Option<&'a RequestId>,
    /// Distinguishes the keys of a shared counter; 0 for a key with a counter of its own.
    pub(crate) scope: u64,
    /// Bound of the store that the key is in, if there is one.
    pub(crate) budget: Option<&'a Arc<NoteBudget>>,
}

/// What a key thinks of a check, before anything is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evaluation {
    /// There is room.
    Fits,
    /// There is no room now.
    Denied,
    /// There never will be.
    Impossible,
    /// This request was admitted before: it is not charged again.
    Repeated(Entry),
}

/// What a store keeps of a key.
#[cfg(feature = "redis")]
#[derive(Clone, Debug)]
pub(crate) struct StateSnapshot {
    pub(crate) last: Micros,
    pub(crate) counted: SnapshotCounts,
}

/// The count itself, by algorithm.
#[cfg(feature = "redis")]
#[derive(Clone, Debug)]
pub(crate) enum SnapshotCounts {
    /// A window: what was recorded, oldest first, one per instant.
    Entries(Vec<(Micros, u64)>),
    /// A fixed window.
    Used(u64),
    /// A bucket: what it lacks, and until when admissions have stopped mattering.
    Missing { units: u64, gone: Micros },
}

/// What the ask as a whole lets a key record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recording {
    /// The ask is admitted.
    All,
    /// The ask is denied, and this check was judged: its attempt counts.
    Attempts,
    /// A peek, or a check after the one that denied.
    Nothing,
}

impl Evaluation {
    pub(crate) fn denies(self) -> bool {
        matches!(self, Evaluation::Denied | Evaluation::Impossible)
    }
}

/// Finds out once which algorithm a state has, and goes on with code made for it.
macro_rules! with_view {
    ($state:expr, $view:ident => $go:expr) => {{
        let State { notes, kind, last, seq } = $state;
        match kind {
            Kind::Window(counter) => {
                let $view = View { counter, notes, last, seq };
                $go
            }
            Kind::Fixed(counter) => {
                let $view = View { counter, notes, last, seq };
                $go
            }
            Kind::Bucket(counter) => {
                let $view = View { counter, notes, last, seq };
                $go
            }
        }
    }};
}

/// The same for what only reads the counter.
macro_rules! with_counter {
    ($state:expr, $counter:ident => $go:expr) => {
        match &$state.kind {
            Kind::Window($counter) => $go,
            Kind::Fixed($counter) => $go,
            Kind::Bucket($counter) => $go,
        }
    };
}

impl State {
    /// A key that was never used.
    pub fn new(quota: &Quota) -> Self {
        Self::of_generation(quota, 0)
    }

    /// A key that may have been used before and was forgotten: its admissions are numbered apart from those of
    /// other generations, so that an old reservation settles nothing of a new one.
    pub fn of_generation(quota: &Quota, generation: u64) -> Self {
        let kind = match quota.algorithm() {
            Algorithm::SlidingWindow | Algorithm::TimeSlice { .. } | Algorithm::Concurrency => {
                Kind::Window(Window::new(quota))
            }
            Algorithm::FixedWindow => Kind::Fixed(Fixed::new(quota)),
            Algorithm::TokenBucket { .. } => Kind::Bucket(Bucket::new(quota)),
        };
        State { kind, last: Micros::ZERO, seq: generation << COUNT_BITS, notes: None }
    }

    /// Whether what is counted here is what `quota` counts. A new limit keeps the counts, and so do a new
    /// rate and burst; another algorithm or window starts anew.
    #[inline]
    pub fn suits(&self, quota: &Quota) -> bool {
        match (&self.kind, quota.algorithm()) {
            (
                Kind::Window(w),
                Algorithm::SlidingWindow | Algorithm::TimeSlice { .. } | Algorithm::Concurrency,
            ) => w.suits(quota),
            (Kind::Fixed(w), Algorithm::FixedWindow) => w.suits(quota),
            (Kind::Bucket(_), Algorithm::TokenBucket { .. }) => true,
            _ => false,
        }
    }

    /// Judges one check by itself, and records it if it is to be counted. Cost 0 is a peek.
    #[inline]
    pub fn admit(&mut self, now: Micros, quota: &Quota, cost: u64) -> Verdict {
        self.admit_alone(now, Asked { quota, cost, id: None, scope: 0, budget: None }).1
    }

    /// The same, and the instant it was judged at.
    #[inline(always)]
    pub(crate) fn admit_alone(&mut self, now: Micros, asked: Asked<'_>) -> (Micros, Verdict) {
        with_view!(self, view => view.admit(now, asked))
    }

    /// Moves to `now`, or stays where it is if that lies back. Says which.
    pub(crate) fn roll(&mut self, now: Micros, quota: &Quota) -> Micros {
        with_view!(self, view => { let mut view = view; view.roll(now, quota) })
    }

    /// Whether a check fits at the instant rolled to. Changes nothing.
    pub(crate) fn consider(&mut self, now: Micros, asked: Asked<'_>) -> Evaluation {
        with_view!(self, view => view.consider(now, asked))
    }

    /// Acts on an opinion: records what is to be counted, and reads the result.
    pub(crate) fn conclude(
        &mut self,
        now: Micros,
        asked: Asked<'_>,
        opinion: Evaluation,
        recording: Recording,
    ) -> Verdict {
        with_view!(self, view => { let mut view = view; view.conclude(now, asked, opinion, recording) })
    }

    /// Corrects one admission to what it really cost; 0 is a refund. The first settlement stands.
    ///
    /// What an admission really cost is a fact, so a correction upwards may take `used` above the limit; of a bucket, at most
    /// one capacity above it. An attempt is gone for this: it is not settled.
    pub fn settle(&mut self, now: Micros, entry: Entry, to: u64) -> Settled {
        self.correct(now, entry, Correction::Cost(to))
    }

    /// The same, or extends an admission of a `concurrency` limit: it counts from `now` on.
    pub fn correct(&mut self, now: Micros, entry: Entry, correction: Correction) -> Settled {
        self.correct_within(now, entry, correction, None)
    }

    /// The same within a byte budget for notes: a correction that cannot be remembered is [`Settled::Gone`].
    pub(crate) fn correct_within(
        &mut self,
        now: Micros,
        entry: Entry,
        correction: Correction,
        budget: Option<&Arc<NoteBudget>>,
    ) -> Settled {
        with_view!(self, view => view.settle(now, entry, correction, budget))
    }

    /// The instant that an admission counts from.
    #[cfg(feature = "redis")]
    pub(crate) fn counted_from(&self, entry: Entry) -> Micros {
        self.notes.as_ref().map_or(entry, |notes| notes.now(entry)).at
    }

    /// Counts from `now` on, whatever the limit, what was counted under another instant.
    #[cfg(feature = "redis")]
    pub(crate) fn count_again(&mut self, now: Micros, cost: u64) {
        with_view!(self, view => view.count_again(now, cost));
    }

    /// Counts an admission of an exact window from `now` on that was made at `entry.at`; nothing if it has left. For
    /// whoever knows that it was made in this state.
    #[cfg(feature = "redis")]
    pub(crate) fn postpone(&mut self, now: Micros, entry: Entry) {
        with_view!(self, view => view.postpone(now, entry));
    }

    #[cfg(feature = "redis")]
    pub(crate) fn warmth(&self) -> Option<Warmth> {
        self.notes.as_ref()?.warmth
    }

    #[cfg(feature = "redis")]
    pub(crate) fn set_warmth(&mut self, warmth: Option<Warmth>) {
        if warmth.is_some() || self.notes.is_some() {
            self.notes.get_or_insert_default().warmth = warmth;
        }
    }

    /// Permits in use at the instant last rolled to.
    #[inline]
    pub fn used(&self) -> u64 {
        with_counter!(self, counter => counter.used())
    }

    /// Permits in use at `now`, which a bucket reckons by the rate it was last asked with.
    pub(crate) fn inspect(&mut self, now: Micros) -> u64 {
        with_view!(&mut *self, view => { let mut view = view; view.advance(now) });
        self.used()
    }

    /// Permits in use at `now` by the running total, and by the entries; what of it does not agree.
    pub(crate) fn audit(&mut self, now: Micros) -> (u64, u64, Vec<Discrepancy>) {
        let kept = self.inspect(now);
        let Kind::Window(window) = &self.kind else { return (kept, kept, Vec::new()) };
        let (counted, ends) = window.recount();
        let total = (kept != counted).then_some(Discrepancy::Total { kept, counted });
        (kept, counted, total.into_iter().chain(ends).collect())
    }

    /// Whether nothing was ever recorded.
    pub(crate) fn is_blank(&self) -> bool {
        self.seq.trailing_zeros() >= COUNT_BITS
    }

    /// Whether an admission with this number may be one of this state.
    pub(crate) fn numbered(&self, seq: u64) -> bool {
        self.seq >> COUNT_BITS == seq >> COUNT_BITS && seq < self.seq
    }

    /// A state of another generation in which everything that counts here counts for as long as the newest of it: an
    /// upper bound, in a few words of memory.
    pub(crate) fn summary(&self, generation: u64) -> State {
        let kind = match &self.kind {
            Kind::Window(window) => Kind::Window(window.summary()),
            kind => kind.clone(),
        };
        State { kind, last: self.last, seq: generation << COUNT_BITS, notes: None }
    }

    /// Counts `cost` from `now` on, whatever the limit.
    pub(crate) fn charge(&mut self, now: Micros, cost: u64) {
        with_view!(self, view => view.charge(now, cost));
    }

    /// Makes it cold again.
    pub(crate) fn cool(&mut self) {
        if let Some(notes) = &mut self.notes {
            notes.warmth = None;
        }
    }

    /// When nothing recorded counts any more, if it is not used again.
    pub(crate) fn empty_at(&self) -> Micros {
        with_counter!(self, counter => counter.empty_at())
    }

    /// When this key has nothing left to remember, if it is not used again.
    pub fn idle_at(&self) -> Micros {
        let notes = self.notes.as_ref();
        let newest = notes.and_then(|notes| notes.newest());
        let warm = notes.and_then(|notes| notes.warmth).map_or(Micros::ZERO, |warmth| warmth.until);
        with_counter!(self, counter => {
            let noted = newest.map_or(Micros::ZERO, |at| counter.leaves(at));
            counter.empty_at().max(noted).max(warm)
        })
    }

    /// What counts now, each with the instant it was recorded under and when it leaves; oldest first.
    ///
    /// A bucket has no entries: it remembers only its level.
    pub fn entries(&self) -> Vec<(Micros, u64, Micros)> {
        with_counter!(self, counter => {
            counter.entries().into_iter().map(|(at, cost)| (at, cost, counter.leaves(at))).collect()
        })
    }

    /// A state as a store has kept it, with the ids that are asked about.
    #[cfg(feature = "redis")]
    pub(crate) fn restored(quota: &Quota, kept: StateSnapshot, ids: Vec<(RequestId, Entry)>) -> Self {
        let mut state = State::new(quota);
        match (&mut state.kind, kept.counted) {
            (Kind::Window(window), SnapshotCounts::Entries(entries)) => window.restore(&entries),
            (Kind::Fixed(fixed), SnapshotCounts::Used(used)) => fixed.restore(kept.last, used),
            (Kind::Bucket(bucket), SnapshotCounts::Missing { units, gone }) => {
                bucket.restore(kept.last, units, gone)
            }
            _ => {}
        }
        state.last = kept.last;
        for (id, entry) in ids {
            Notes::remember(&mut state.notes, &Named::unbounded(&id), entry);
        }
        state
    }

    /// What a store must keep of it.
    #[cfg(feature = "redis")]
    pub(crate) fn kept(&self) -> StateSnapshot {
        let counted = match &self.kind {
            Kind::Window(window) => SnapshotCounts::Entries(window.entries()),
            Kind::Fixed(fixed) => SnapshotCounts::Used(fixed.used()),
            Kind::Bucket(bucket) => bucket.kept(),
        };
        StateSnapshot { last: self.last, counted }
    }

    /// How many admissions and attempts were recorded so far, in this state.
    #[cfg(feature = "redis")]
    pub(crate) fn recorded(&self) -> u64 {
        self.seq & ((1 << COUNT_BITS) - 1)
    }

    /// Forgets up to `most` request ids whose admissions have left by `now`.
    pub(crate) fn forget_notes(&mut self, now: Micros, most: usize) {
        let Some(notes) = &mut self.notes else { return };
        let now = now.max(self.last);
        with_counter!(self, counter => notes.forget_some(|at| counter.left(at, now), most));
    }

    /// Gives back memory that a burst left behind.
    pub(crate) fn shrink(&mut self) {
        if let Kind::Window(window) = &mut self.kind {
            window.shrink();
        }
        if let Some(notes) = &mut self.notes {
            notes.shrink();
            if notes.is_empty() {
                self.notes = None;
            }
        }
    }

    /// How much it remembers one by one.
    pub(crate) fn events(&self) -> usize {
        match &self.kind {
            Kind::Window(window) => window.events(),
            _ => 0,
        }
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let log = match &self.kind {
            Kind::Window(window) => window.heap_bytes(),
            _ => 0,
        };
        log + self.notes.as_ref().map_or(0, |notes| notes.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, State};
    use crate::{Discrepancy, Micros, Quota};

    #[test]
    fn a_total_that_is_not_the_sum_is_told() {
        let quota = Quota::per_minute(100).unwrap();
        let mut state = State::new(&quota);
        for n in 1..=20 {
            state.admit(Micros::from_secs(n), &quota, 1 + n % 3);
        }
        // The first ten have left.
        let now = Micros::from_secs(70);
        assert_eq!(state.audit(now), (21, 21, Vec::new()));
        let Kind::Window(window) = &mut state.kind else { panic!() };
        window.spoil(7);
        let told = vec![Discrepancy::Total { kept: 7, counted: 21 }];
        assert_eq!(state.audit(now), (7, 21, told));
    }
}
