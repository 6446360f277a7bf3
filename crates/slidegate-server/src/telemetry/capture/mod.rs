//! Recordings: the requests that were decided, a line each, for `slidegate simulate` to decide again by other rules.
//!
//! A decision is written down where it was made, into memory that is bounded; a file or a client takes it from there. Who
//! takes too slowly loses lines, which are counted; nobody waits for him. While nobody records, a decision pays for one
//! load of a flag.

mod buffer;
mod file;
mod format;
mod options;
mod sampler;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use slidegate::{Decision, Error, Micros, Request};

pub(crate) use self::buffer::{Bounds, End, Reel};
use self::buffer::{Put, Tape};
pub(crate) use self::file::FileRecording;
use self::format::{Line, Verdict};
pub(crate) use self::options::{RecordArgs, read_share};
pub(crate) use self::sampler::Sample;

/// The most recordings at once.
const MOST: usize = 4;

/// Who records.
#[derive(Default)]
pub(crate) struct Recorder {
    /// Whether anybody does.
    on: AtomicBool,
    tapes: ArcSwap<Vec<Arc<Tape>>>,
    changing: Mutex<()>,
    /// By how many microseconds the store's clock is ahead of this server's, as of the last decision.
    ahead: AtomicI64,
    /// Of all that ever was recorded.
    recorded: AtomicU64,
    dropped: AtomicU64,
    /// Whether the server stops.
    closed: AtomicBool,
}

/// What was recorded since the server started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// Recordings under way.
    pub(crate) recordings: usize,
    /// Lines that were written down.
    pub(crate) lines: u64,
    /// Lines that were lost, because they were not taken fast enough.
    pub(crate) dropped: u64,
}

impl Recorder {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub(crate) fn recorded(&self) -> Recorded {
        Recorded {
            recordings: self.tapes.load().len(),
            lines: self.recorded.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }

    /// Records from now on, until the bounds are met or the reel is dropped; none if too many do, or the server stops.
    pub(crate) fn start(self: &Arc<Self>, sample: Sample, bounds: Bounds) -> Option<Reel> {
        let tape = Arc::new(Tape::new(sample, bounds));
        let started = self.change(|tapes| {
            let room = tapes.len() < MOST && !self.closed.load(Ordering::SeqCst);
            tapes.extend(room.then(|| Arc::clone(&tape)));
            room
        });
        started.then(|| Reel::new(Arc::clone(self), tape))
    }

    fn forget(&self, tape: &Arc<Tape>) {
        self.change(|tapes| tapes.retain(|known| !Arc::ptr_eq(known, tape)));
    }

    /// One at a time, so that the flag is that of the last.
    fn change<T>(&self, change: impl FnOnce(&mut Vec<Arc<Tape>>) -> T) -> T {
        let _one_at_a_time = self.changing.lock();
        let mut tapes = Vec::clone(&self.tapes.load());
        let changed = change(&mut tapes);
        self.on.store(!tapes.is_empty(), Ordering::Relaxed);
        self.tapes.store(Arc::new(tapes));
        changed
    }

    /// Ends what clients are sent: they are told that the server stops by the end of their answer.
    pub(crate) fn end_streams(&self) {
        // A recording starts before this, and is ended, or finds that the server stops.
        self.change(|_| self.closed.store(true, Ordering::SeqCst));
        self.end(|tape| tape.is_streamed());
    }

    /// Ends everything.
    pub(crate) fn end_all(&self) {
        self.end(|_| true);
    }

    fn end(&self, which: impl Fn(&Tape) -> bool) {
        self.tapes.load().iter().filter(|tape| which(tape)).for_each(|tape| tape.end(End::Stopped));
    }

    /// Writes down requests that were decided in one call, and what became of each. One that could not be decided is not
    /// written down; one that can never pass was denied.
    pub(crate) fn write(&self, now: Micros, requests: &[Request<'_>], answers: &[Result<Decision, Error>]) {
        // Where no store was asked, when those were judged that came with it.
        let judged = answers.iter().flatten().map(Decision::at).find(|at| *at > Micros::ZERO);
        for (request, answer) in requests.iter().zip(answers) {
            let (at, allowed, denied_by) = match answer {
                Ok(decision) => (decision.at(), decision.allowed(), decision.denied_by()),
                Err(error) if error.is_too_costly() => (Micros::ZERO, false, error.too_costly_for()),
                Err(_) => continue,
            };
            let at = if at == Micros::ZERO { judged.unwrap_or_default() } else { at };
            self.put(now, request, Verdict { at, allowed, denied_by });
        }
    }

    /// Writes down requests that were decided as one: what denies one of them denies them all.
    pub(crate) fn write_together(&self, now: Micros, requests: &[Request<'_>], decisions: &[Decision]) {
        let denied_by = decisions.iter().find_map(Decision::denied_by);
        let allowed = decisions.iter().all(Decision::allowed);
        let at = decisions.iter().map(Decision::at).max().unwrap_or_default();
        requests.iter().for_each(|request| self.put(now, request, Verdict { at, allowed, denied_by }));
    }

    fn put(&self, now: Micros, request: &Request<'_>, verdict: Verdict<'_>) {
        let at = self.instant(now, verdict.at);
        for tape in self.tapes.load().iter() {
            if tape.sample.takes(request) {
                let line = Line::new(request, Verdict { at, ..verdict }, &tape.sample);
                let counter = match tape.put(&line) {
                    Put::Written => &self.recorded,
                    Put::Dropped => &self.dropped,
                    Put::Over => continue,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// When a request was judged, by the store's clock. Where no store was asked that is now, and no later than whatever
    /// is asked next: lines in the order of decisions have their instants in order.
    fn instant(&self, now: Micros, at: Micros) -> Micros {
        if at == Micros::ZERO {
            return Micros::new(now.get().saturating_add_signed(self.ahead.load(Ordering::Relaxed)));
        }
        self.ahead.store(at.get().wrapping_sub(now.get()) as i64, Ordering::Relaxed);
        at
    }
}
