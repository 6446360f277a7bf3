//! Recordings of decided requests, one per line, for `slidegate simulate` to replay with other rules.
//!
//! The deciding thread adds a line to a bounded buffer. A file or a client takes the lines from there. A slow receiver
//! loses lines, which are counted; deciding threads never wait for it. If no recording is active, a decision pays for
//! one load of a flag.

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

/// Upper bound on concurrent recordings.
const MOST: usize = 4;

/// All active recordings.
#[derive(Default)]
pub(crate) struct Recorder {
    /// True if a recording is active.
    on: AtomicBool,
    tapes: ArcSwap<Vec<Arc<Tape>>>,
    changing: Mutex<()>,
    /// Microseconds by which the store's clock is ahead of this server's, as of the last decision.
    ahead: AtomicI64,
    /// Number of lines of all recordings since the start.
    recorded: AtomicU64,
    dropped: AtomicU64,
    /// True if the server stops.
    closed: AtomicBool,
}

/// Statistics of all recordings since the server started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// Active recordings.
    pub(crate) recordings: usize,
    /// Recorded lines.
    pub(crate) lines: u64,
    /// Lines that were lost because the receiver was too slow.
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

    /// Starts a recording, which ends when its bounds are reached or the receiver is dropped. None if there are too
    /// many, or the server stops.
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

    /// Changes the list of recordings. Changes are serialized, so that the flag always matches the list.
    fn change<T>(&self, change: impl FnOnce(&mut Vec<Arc<Tape>>) -> T) -> T {
        let _one_at_a_time = self.changing.lock();
        let mut tapes = Vec::clone(&self.tapes.load());
        let changed = change(&mut tapes);
        self.on.store(!tapes.is_empty(), Ordering::Relaxed);
        self.tapes.store(Arc::new(tapes));
        changed
    }

    /// Ends the recordings that clients receive. The end of the response tells them that the server stops.
    pub(crate) fn end_streams(&self) {
        // A concurrent recording either starts before this and is ended, or sees that the server stops.
        self.change(|_| self.closed.store(true, Ordering::SeqCst));
        self.end(|tape| tape.is_streamed());
    }

    /// Ends all recordings.
    pub(crate) fn end_all(&self) {
        self.end(|_| true);
    }

    fn end(&self, which: impl Fn(&Tape) -> bool) {
        self.tapes.load().iter().filter(|tape| which(tape)).for_each(|tape| tape.end(End::Stopped));
    }

    /// Records the requests of one batch and their results. Requests that could not be decided are not recorded.
    /// Requests that can never be allowed are recorded as denied.
    pub(crate) fn write(&self, now: Micros, requests: &[Request<'_>], answers: &[Result<Decision, Error>]) {
        // A request that did not reach the store gets the time of another request of the batch that did.
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

    /// Records requests that were decided together: if one of them is denied, all are.
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

    /// Returns the time of a decision by the store's clock. Without a store call it is the current time of this server
    /// plus the known offset, so that lines in the order of decisions have increasing times.
    fn instant(&self, now: Micros, at: Micros) -> Micros {
        if at == Micros::ZERO {
            return Micros::new(now.get().saturating_add_signed(self.ahead.load(Ordering::Relaxed)));
        }
        self.ahead.store(at.get().wrapping_sub(now.get()) as i64, Ordering::Relaxed);
        at
    }
}
