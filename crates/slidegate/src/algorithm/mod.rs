//! The algorithms, as pure state machines: `(state, now, quota, cost) -> verdict`.
//!
//! A [`State`] is what is remembered of one key. It has no clock and no lock, so the same code decides in
//! the memory store, in simulations, and as the oracle that replays what Redis decided. All four have the
//! same shape: *roll* to the present, say what is *used*, *record*, and say how long to *wait*.

mod bucket;
mod fixed;
mod log;
mod notes;
mod ring;
mod window;

use self::bucket::Bucket;
use self::fixed::Fixed;
pub use self::notes::Entry;
use self::notes::{Notes, Remembered};
use self::window::Window;
use crate::verdict::{Outcome, Settled, Verdict};
use crate::{Algorithm, Count, Micros, Quota, RequestId};

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
/// let refused = state.admit(at(1000), &quota, 1);
/// assert_eq!(refused.outcome, Outcome::Refused);
/// assert_eq!(refused.retry_after, at(100)); // at 1100 ms the first is a second old, and gone
/// # Ok::<(), slidegate::Error>(())
/// ```
#[repr(C)]
#[derive(Clone, Debug)]
pub struct State {
    notes: Option<Box<Notes>>,
    kind: Kind,
    /// When something was last recorded or seen to leave: before that the key's time never runs back.
    last: Micros,
    /// How many were recorded so far.
    seq: u64,
}

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
}

/// What a key thinks of a check, before anything is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opinion {
    /// There is room.
    Fits,
    /// There is no room now.
    Refused,
    /// There never will be.
    Impossible,
    /// This request was admitted before: it is not charged again.
    Repeated(Entry),
    /// This attempt was counted before; it is judged anew without counting twice.
    Retried { fits: bool },
}

/// What the ask as a whole lets a key record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recording {
    /// The ask is admitted.
    All,
    /// The ask is refused, and this check was judged: its attempt counts.
    Attempts,
    /// A peek, or a check after the one that refused.
    Nothing,
}

impl Opinion {
    pub(crate) fn refuses(self) -> bool {
        matches!(self, Opinion::Refused | Opinion::Impossible | Opinion::Retried { fits: false })
    }
}

impl State {
    /// A key that was never used.
    pub fn new(quota: &Quota) -> Self {
        let kind = match quota.algorithm() {
            Algorithm::SlidingWindow | Algorithm::TimeSlice { .. } => Kind::Window(Window::new(quota)),
            Algorithm::FixedWindow => Kind::Fixed(Fixed::new(quota)),
            Algorithm::TokenBucket { .. } => Kind::Bucket(Bucket::new(quota)),
        };
        State { kind, last: Micros::ZERO, seq: 0, notes: None }
    }

    /// Whether what is counted here is what `quota` counts. A new limit keeps the counts, and so do a new
    /// rate and burst; another algorithm or window starts anew.
    #[inline]
    pub fn suits(&self, quota: &Quota) -> bool {
        match (&self.kind, quota.algorithm()) {
            (Kind::Window(w), Algorithm::SlidingWindow | Algorithm::TimeSlice { .. }) => w.suits(quota),
            (Kind::Fixed(w), Algorithm::FixedWindow) => w.suits(quota),
            (Kind::Bucket(_), Algorithm::TokenBucket { .. }) => true,
            _ => false,
        }
    }

    /// Judges one check by itself, and records it if it is to be counted. Cost 0 is a peek.
    #[inline]
    pub fn admit(&mut self, now: Micros, quota: &Quota, cost: u64) -> Verdict {
        self.admit_alone(now, Asked { quota, cost, id: None }).1
    }

    #[inline(always)]
    pub(crate) fn admit_alone(&mut self, now: Micros, asked: Asked<'_>) -> (Micros, Verdict) {
        let now = self.roll(now, asked.quota);
        let opinion = self.consider(asked);
        let recording = if opinion.refuses() { Recording::Attempts } else { Recording::All };
        (now, self.conclude(now, asked, opinion, recording))
    }

    /// Moves to `now`, or stays where it is if that lies back. Says which.
    #[inline(always)]
    pub(crate) fn roll(&mut self, now: Micros, quota: &Quota) -> Micros {
        let now = self.advance(now);
        if let Kind::Bucket(bucket) = &mut self.kind {
            bucket.adopt(quota);
        }
        now
    }

    /// A refusal by a window writes nothing, so that cores that refuse one key do not fight over its memory.
    #[inline(always)]
    fn advance(&mut self, now: Micros) -> Micros {
        let now = now.max(self.last);
        let changed = match &mut self.kind {
            Kind::Window(window) => window.roll(now),
            Kind::Fixed(window) => window.roll(now),
            Kind::Bucket(bucket) => bucket.roll(now),
        };
        if changed {
            self.last = now;
        }
        if self.notes.is_some() {
            self.age_notes(now);
        }
        now
    }

    /// Whether a check fits at the instant rolled to. Changes nothing.
    #[inline(always)]
    pub(crate) fn consider(&self, asked: Asked<'_>) -> Opinion {
        let (cost, capacity) = (asked.cost, asked.quota.capacity());
        if cost > capacity {
            return Opinion::Impossible;
        }
        if let (Some(id), Some(notes)) = (asked.id, &self.notes)
            && let Some(known) = notes.find(id)
        {
            if known.admitted {
                return Opinion::Repeated(known.entry);
            }
            let others = self.used().saturating_sub(known.entry.cost);
            let fits = others + cost <= capacity;
            return Opinion::Retried { fits };
        }
        if self.used() + cost <= capacity { Opinion::Fits } else { Opinion::Refused }
    }

    /// Acts on an opinion: records what is to be counted, and reads the result.
    #[inline(always)]
    pub(crate) fn conclude(
        &mut self,
        now: Micros,
        asked: Asked<'_>,
        opinion: Opinion,
        recording: Recording,
    ) -> Verdict {
        let Asked { quota, cost, .. } = asked;
        let records = cost > 0
            && match recording {
                Recording::All => true,
                Recording::Attempts => quota.count() == Count::Attempts,
                Recording::Nothing => false,
            };
        let admitted = recording == Recording::All;
        let mut entry = Entry::default();
        let outcome = match opinion {
            Opinion::Impossible => Outcome::Impossible,
            Opinion::Repeated(known) => {
                entry = known;
                Outcome::Charged
            }
            Opinion::Retried { fits: false } => Outcome::Refused,
            Opinion::Retried { fits: true } if admitted => {
                entry = self.admit_attempt(asked.id);
                Outcome::Charged
            }
            Opinion::Retried { fits: true } => Outcome::Fits,
            Opinion::Fits | Opinion::Refused => {
                if records && (opinion == Opinion::Fits || quota.count() == Count::Attempts) {
                    entry = self.record(now, asked, admitted && opinion == Opinion::Fits);
                }
                match opinion {
                    Opinion::Refused => Outcome::Refused,
                    _ if admitted && records => Outcome::Charged,
                    _ => Outcome::Fits,
                }
            }
        };
        Verdict {
            outcome,
            limit: quota.capacity(),
            used: self.used(),
            retry_after: match outcome {
                Outcome::Charged => Micros::ZERO,
                _ => self.wait(now, quota, cost),
            },
            reset_after: self.empty_at().since(now),
            entry,
        }
    }

    #[inline(always)]
    fn record(&mut self, now: Micros, asked: Asked<'_>, admitted: bool) -> Entry {
        let Asked { quota, cost, id } = asked;
        let attempts = quota.count() == Count::Attempts;
        if attempts {
            self.keep_newest(quota.capacity() - cost);
        }
        let at = match &mut self.kind {
            Kind::Window(window) => window.record(now, quota, cost),
            Kind::Fixed(window) => window.record(now, cost),
            Kind::Bucket(bucket) => bucket.record(now, cost),
        };
        self.last = now;
        let entry = Entry { at, seq: self.seq, cost };
        self.seq += 1;
        if let Some(id) = id {
            let notes = self.notes.get_or_insert_default();
            notes.remember(id.clone(), Remembered { entry, admitted });
        }
        if attempts && let Some(notes) = &mut self.notes {
            notes.keep_newest(quota.capacity());
        }
        entry
    }

    fn admit_attempt(&mut self, id: Option<&RequestId>) -> Entry {
        let known = id.and_then(|id| self.notes.as_mut()?.find_mut(id));
        known.map_or(Entry::default(), |known| {
            known.admitted = true;
            known.entry
        })
    }

    /// Corrects one admission to what it really cost; 0 is a refund. The first settlement stands.
    ///
    /// What an admission really cost is a fact, so a correction upwards may take `used` above the limit.
    pub fn settle(&mut self, now: Micros, entry: Entry, to: u64) -> Settled {
        let now = self.advance(now);
        if self.left(entry.at, now) || entry.seq >= self.seq {
            return Settled::Gone;
        }
        if self.notes.as_ref().is_some_and(|notes| notes.is_settled(entry.seq)) {
            return Settled::Already;
        }
        let held = match &mut self.kind {
            Kind::Window(window) => window.amend(entry, to),
            Kind::Fixed(window) => window.amend(entry, to),
            Kind::Bucket(bucket) => bucket.amend(entry, to),
        };
        if !held {
            return Settled::Gone;
        }
        let notes = self.notes.get_or_insert_default();
        notes.settle(entry);
        if to == 0 {
            notes.release(entry);
        }
        Settled::Done
    }

    /// Permits in use at the instant last rolled to.
    #[inline(always)]
    pub fn used(&self) -> u64 {
        match &self.kind {
            Kind::Window(window) => window.used(),
            Kind::Fixed(window) => window.used(),
            Kind::Bucket(bucket) => bucket.used(),
        }
    }

    /// Permits in use at `now`, which a bucket reckons by the rate it was last asked with.
    pub(crate) fn inspect(&mut self, now: Micros) -> u64 {
        self.advance(now);
        self.used()
    }

    /// Whether nothing was ever recorded.
    pub(crate) fn is_blank(&self) -> bool {
        self.seq == 0
    }

    /// When this key has nothing left to remember, if it is not used again.
    pub fn idle_at(&self) -> Micros {
        let newest = self.notes.as_ref().and_then(|notes| notes.newest());
        let noted = newest.map_or(Micros::ZERO, |at| self.leaves(at));
        self.empty_at().max(noted)
    }

    /// What counts now, each with the instant it was recorded under and when it leaves; oldest first.
    ///
    /// A bucket has no entries: it remembers only its level.
    pub fn entries(&self) -> Vec<(Micros, u64, Micros)> {
        let entries = match &self.kind {
            Kind::Window(window) => window.entries(),
            Kind::Fixed(window) => window.entries(),
            Kind::Bucket(_) => Vec::new(),
        };
        entries.into_iter().map(|(at, cost)| (at, cost, self.leaves(at))).collect()
    }

    /// Gives back memory that a burst left behind.
    pub(crate) fn shrink(&mut self) {
        if let Kind::Window(window) = &mut self.kind {
            window.shrink();
        }
        if self.notes.as_ref().is_some_and(|notes| notes.is_empty()) {
            self.notes = None;
        }
    }

    /// Bytes on the heap, notes estimated.
    pub(crate) fn heap_bytes(&self) -> usize {
        let log = match &self.kind {
            Kind::Window(window) => window.heap_bytes(),
            _ => 0,
        };
        log + self.notes.as_ref().map_or(0, |notes| size_of::<Notes>() + notes.len() * 96)
    }

    #[inline(always)]
    fn wait(&self, now: Micros, quota: &Quota, cost: u64) -> Micros {
        match &self.kind {
            Kind::Window(window) => window.wait(now, quota, cost),
            Kind::Fixed(window) => window.wait(now, quota, cost),
            Kind::Bucket(bucket) => bucket.wait(cost),
        }
    }

    #[inline(always)]
    fn empty_at(&self) -> Micros {
        match &self.kind {
            Kind::Window(window) => window.empty_at(),
            Kind::Fixed(window) => window.empty_at(),
            Kind::Bucket(bucket) => bucket.empty_at(),
        }
    }

    fn keep_newest(&mut self, keep: u64) {
        match &mut self.kind {
            Kind::Window(window) => window.keep_newest(keep),
            Kind::Fixed(window) => window.keep_newest(keep),
            Kind::Bucket(bucket) => bucket.keep_newest(keep),
        }
    }

    /// When an admission recorded under `at` stops mattering.
    fn leaves(&self, at: Micros) -> Micros {
        match &self.kind {
            Kind::Window(window) => window.leaves(at),
            Kind::Fixed(window) => window.leaves(at),
            Kind::Bucket(bucket) => bucket.leaves(at),
        }
    }

    /// Whether an admission recorded under `at` has stopped mattering.
    fn left(&self, at: Micros, now: Micros) -> bool {
        match &self.kind {
            Kind::Bucket(bucket) => bucket.left(at),
            _ => self.leaves(at) <= now,
        }
    }

    #[cold]
    fn age_notes(&mut self, now: Micros) {
        let Some(mut notes) = self.notes.take() else { return };
        notes.forget(|at| self.left(at, now));
        self.notes = Some(notes);
    }
}
