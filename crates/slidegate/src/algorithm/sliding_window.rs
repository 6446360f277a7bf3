//! `sliding-window` and `time-slice`: a log of admissions.
//!
//! Both are one algorithm. An admission at `t` counts until `t + window`. A slice counts in full until its last instant has
//! left the window, so an admission in a slice is dated at the end of the slice. With slices of one microsecond the two
//! algorithms are identical.

use super::SnapshotCounts;
use super::counter::Counter;
use super::event_log::EventLog;
use crate::quota::{MAX_TOTAL, slice};
use crate::{Algorithm, Discrepancy, Entry, Micros, Quota};

#[repr(C)]
#[derive(Clone, Debug)]
pub(super) struct Window {
    shape: Shape,
    pub(super) log: EventLog,
}

/// Value for the number of slices that marks a `concurrency` limit.
const CONCURRENCY_MARK: u32 = 0xffff;

/// Value for the number of slices that marks an algorithm without a log, so that no log suits its quota.
const NO_LOG_MARK: u32 = 0xfffe;

/// Window and number of slices (0 for the sliding window) packed into one number, so that a key fits two cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape(u64);

impl Shape {
    #[inline]
    fn of(quota: &Quota) -> Self {
        let slices = match quota.algorithm() {
            Algorithm::SlidingWindow => 0,
            Algorithm::TimeSlice { slices } => slices,
            Algorithm::Concurrency => CONCURRENCY_MARK,
            _ => NO_LOG_MARK,
        };
        Shape(quota.window().get() << 16 | u64::from(slices))
    }

    #[inline]
    fn window(self) -> Micros {
        Micros::new(self.0 >> 16)
    }

    #[inline]
    fn slices(self) -> u32 {
        let slices = (self.0 & 0xffff) as u32;
        if slices == CONCURRENCY_MARK { 0 } else { slices }
    }

    fn slice(self) -> u64 {
        slice(self.window(), self.slices()).get()
    }
}

impl Window {
    pub(super) fn new(quota: &Quota) -> Self {
        Window { log: EventLog::default(), shape: Shape::of(quota) }
    }

    /// Returns a window with the same total, recorded as one entry at the instant of the newest entry.
    pub(super) fn summary(&self) -> Self {
        let mut log = EventLog::default();
        if let Some(newest) = self.log.newest() {
            log.add(newest, self.log.total(), u64::MAX);
        }
        Window { shape: self.shape, log }
    }

    /// Returns the sum of the entries, and a discrepancy if the stored instant of the newest or the oldest entry is
    /// wrong.
    pub(super) fn recount(&self) -> (u64, Option<Discrepancy>) {
        let entries = self.log.entries();
        let counted = entries.iter().map(|(_, cost)| cost).sum();
        let (first, last) = (entries.first().map(|(at, _)| *at), entries.last().map(|(at, _)| *at));
        let said = |at: Option<Micros>| at.unwrap_or_default();
        let newest = Discrepancy::Newest { stored: said(self.log.newest()), counted: said(last) };
        let oldest = Discrepancy::Oldest { stored: said(self.log.oldest()), counted: said(first) };
        let wrong = [(self.log.newest() != last, newest), (self.log.oldest() != first, oldest)];
        (counted, wrong.into_iter().find_map(|(wrong, end)| wrong.then_some(end)))
    }

    /// Returns the instant under which an admission at `now` is recorded: `now`, or the last instant of its slice.
    #[inline]
    fn recorded_instant(&self, now: Micros) -> Micros {
        if self.shape.slices() == 0 {
            return now;
        }
        let slice = self.shape.slice();
        Micros::new((now.get() / slice).saturating_add(1).saturating_mul(slice) - 1)
    }
}

impl Counter for Window {
    /// Advances to `now`; returns true if an entry left the window.
    #[inline]
    fn roll(&mut self, now: Micros) -> bool {
        match now.get().checked_sub(self.shape.window().get()) {
            Some(left) => self.log.forget(Micros::new(left)),
            None => false,
        }
    }

    #[inline]
    fn used(&self) -> u64 {
        self.log.total()
    }

    /// Records `cost`, and returns the recorded instant.
    #[inline]
    fn record(&mut self, now: Micros, quota: &Quota, cost: u64) -> Micros {
        let at = self.recorded_instant(now);
        self.log.add(at, cost, quota.limit());
        at
    }

    fn keep_newest(&mut self, keep: u64) {
        self.log.keep_newest(keep);
    }

    #[inline]
    fn wait(&self, now: Micros, quota: &Quota, limit: u64, cost: u64) -> Micros {
        let needed = (self.used() + cost).saturating_sub(limit);
        if needed == 0 {
            return Micros::ZERO;
        }
        self.log.frees(needed).map_or(quota.horizon(), |at| self.leaves(at).since(now))
    }

    /// Instant from which nothing recorded counts any more.
    #[inline]
    fn empty_at(&self) -> Micros {
        self.log.newest().map_or(Micros::ZERO, |at| self.leaves(at))
    }

    /// Corrects the cost of an admission; returns false if the admission has left the window.
    fn amend(&mut self, entry: Entry, to: u64) -> bool {
        self.log.amend(entry.at, entry.cost, to, MAX_TOTAL)
    }

    fn entries(&self) -> Vec<(Micros, u64)> {
        self.log.entries()
    }

    fn is_held(&self) -> bool {
        self.shape.0 & 0xffff == u64::from(CONCURRENCY_MARK)
    }

    fn add(&mut self, now: Micros, cost: u64) {
        self.log.add(now, cost, MAX_TOTAL);
    }

    fn charge(&mut self, now: Micros, cost: u64) {
        self.log.add(self.recorded_instant(now), cost, MAX_TOTAL);
    }

    fn ahead(&self) -> Micros {
        if self.shape.slices() == 0 { Micros::ZERO } else { Micros::new(self.shape.slice() - 1) }
    }

    fn leaves(&self, at: Micros) -> Micros {
        at.plus(self.shape.window())
    }

    #[inline]
    fn suits(&self, quota: &Quota) -> bool {
        self.shape == Shape::of(quota)
    }

    fn snapshot(&self) -> SnapshotCounts {
        SnapshotCounts::Entries(self.entries())
    }

    fn restore(&mut self, _last: Micros, counts: &SnapshotCounts) {
        let SnapshotCounts::Entries(entries) = counts else { return };
        for &(at, cost) in entries {
            self.log.add(at, cost, u64::MAX);
        }
    }
}
