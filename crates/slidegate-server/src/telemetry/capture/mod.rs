//! Recordings of decided requests, one per line, for `slidegate simulate` to replay with other rules.
//!
//! The deciding thread adds a line to a bounded buffer. A file or a client takes the lines from there. A slow
//! receiver loses lines, which are counted; deciding threads never wait for it. If no recording is active, the cost
//! for a decision is one load of a flag.

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

pub(crate) use self::buffer::{Bounds, EndReason, LineReceiver};
use self::buffer::{LineBuffer, PutResult};
pub(crate) use self::file::FileRecording;
use self::format::{Verdict, line};
pub(crate) use self::options::{RecordArgs, read_share};
pub(crate) use self::sampler::ClientSampler;

/// Upper bound on concurrent recordings.
const MAX_RECORDINGS: usize = 4;

/// All active recordings.
#[derive(Default)]
pub(crate) struct Recorder {
    /// True if a recording is active.
    active: AtomicBool,
    buffers: ArcSwap<Vec<Arc<LineBuffer>>>,
    change_lock: Mutex<()>,
    /// Microseconds by which the store's clock is ahead of this server's, as of the last decision.
    clock_offset: AtomicI64,
    /// Number of lines of all recordings since the server started.
    lines: AtomicU64,
    dropped: AtomicU64,
    /// True if the server stops.
    closed: AtomicBool,
}

impl Recorder {
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Returns the number of recordings in progress, and of lines that were written and dropped since the server started.
    pub(crate) fn stats(&self) -> (usize, u64, u64) {
        let [lines, dropped] = [&self.lines, &self.dropped].map(|count| count.load(Ordering::Relaxed));
        (self.buffers.load().len(), lines, dropped)
    }

    /// Starts a recording, which ends when its bounds are reached or the receiver is dropped. Returns None if there
    /// are too many recordings, or the server stops.
    pub(crate) fn start(self: &Arc<Self>, sampler: ClientSampler, bounds: Bounds) -> Option<LineReceiver> {
        let buffer = Arc::new(LineBuffer::new(sampler, bounds));
        let started = self.change(|buffers| {
            let room = buffers.len() < MAX_RECORDINGS && !self.closed.load(Ordering::SeqCst);
            buffers.extend(room.then(|| Arc::clone(&buffer)));
            room
        });
        started.then(|| LineReceiver::new(Arc::clone(self), buffer))
    }

    fn remove(&self, buffer: &Arc<LineBuffer>) {
        self.change(|buffers| buffers.retain(|known| !Arc::ptr_eq(known, buffer)));
    }

    /// Changes the list of recordings. Changes are serialized, so that the flag always matches the list.
    fn change<T>(&self, change: impl FnOnce(&mut Vec<Arc<LineBuffer>>) -> T) -> T {
        let _one_at_a_time = self.change_lock.lock();
        let mut buffers = Vec::clone(&self.buffers.load());
        let changed = change(&mut buffers);
        self.active.store(!buffers.is_empty(), Ordering::Relaxed);
        self.buffers.store(Arc::new(buffers));
        changed
    }

    /// Ends the recordings that clients receive. The end of the response tells them that the server stops.
    pub(crate) fn end_streams(&self) {
        // A concurrent `start` either adds its recording before this change, and the recording is ended below,
        // or sees that the server stops.
        self.change(|_| self.closed.store(true, Ordering::SeqCst));
        self.end(|buffer| buffer.is_streamed());
    }

    /// Ends all recordings.
    pub(crate) fn end_all(&self) {
        self.end(|_| true);
    }

    fn end(&self, which: impl Fn(&LineBuffer) -> bool) {
        self.buffers
            .load()
            .iter()
            .filter(|buffer| which(buffer))
            .for_each(|buffer| buffer.end(EndReason::Stopped));
    }

    /// Records the requests of one batch and their results. Requests that could not be decided are not recorded.
    /// Requests that can never be allowed are recorded as denied.
    pub(crate) fn write(&self, now: Micros, requests: &[Request<'_>], answers: &[Result<Decision, Error>]) {
        // A request that did not reach the store gets the time of another request of the batch that did.
        let evaluated_at = answers.iter().flatten().map(Decision::at).find(|at| *at > Micros::ZERO);
        for (request, answer) in requests.iter().zip(answers) {
            let (at, allowed, denied_by) = match answer {
                Ok(decision) => (decision.at(), decision.allowed(), decision.denied_by()),
                Err(error) if error.is_too_costly() => (Micros::ZERO, false, error.too_costly_for()),
                Err(_) => continue,
            };
            let at = if at == Micros::ZERO { evaluated_at.unwrap_or_default() } else { at };
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
        let at = self.decision_time(now, verdict.at);
        for buffer in self.buffers.load().iter() {
            if buffer.sampler.includes(request) {
                let line = line(request, Verdict { at, ..verdict }, &buffer.sampler);
                let counter = match buffer.put(&line) {
                    PutResult::Written => &self.lines,
                    PutResult::Dropped => &self.dropped,
                    PutResult::Over => continue,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the time of a decision by the store's clock. Without a store call it is the current time of this server
    /// plus the known offset, so that lines in the order of decisions have increasing times.
    fn decision_time(&self, now: Micros, at: Micros) -> Micros {
        if at == Micros::ZERO {
            return Micros::new(now.get().saturating_add_signed(self.clock_offset.load(Ordering::Relaxed)));
        }
        self.clock_offset.store(at.get().wrapping_sub(now.get()) as i64, Ordering::Relaxed);
        at
    }
}
