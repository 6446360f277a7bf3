//! `fixed-window`: one counter that restarts at every multiple of the window.

use super::counter::Counter;
use super::{CounterNumbers, SnapshotCounts};
use crate::quota::MAX_TOTAL;
use crate::{Algorithm, Entry, Micros, Quota};

#[derive(Clone, Debug)]
pub(super) struct FixedWindow {
    window: Micros,
    start: Micros,
    used: u64,
    /// Instant of the first admission in this state. A reservation from an earlier instant belongs to a dropped
    /// state of the key.
    born: Option<Micros>,
}

impl FixedWindow {
    pub(super) fn new(quota: &Quota) -> Self {
        FixedWindow { window: quota.window(), start: Micros::ZERO, used: 0, born: None }
    }

    #[inline]
    fn start_of(&self, at: Micros) -> Micros {
        Micros::new(at.get() - at.get() % self.window.get())
    }
}

impl Counter for FixedWindow {
    /// Advances to `now`; returns true if a new window began.
    #[inline]
    fn roll(&mut self, now: Micros) -> bool {
        let start = self.start_of(now);
        if start <= self.start {
            return false;
        }
        self.start = start;
        self.used = 0;
        true
    }

    #[inline]
    fn used(&self) -> u64 {
        self.used
    }

    #[inline]
    fn record(&mut self, now: Micros, _quota: &Quota, cost: u64) -> Micros {
        self.used += cost;
        self.born.get_or_insert(now);
        now
    }

    fn keep_newest(&mut self, keep: u64) {
        self.used = self.used.min(keep);
    }

    #[inline]
    fn wait(&self, now: Micros, _quota: &Quota, limit: u64, cost: u64) -> Micros {
        if self.used + cost <= limit {
            return Micros::ZERO;
        }
        self.start.plus(self.window).since(now)
    }

    fn empty_at(&self) -> Micros {
        if self.used == 0 {
            return Micros::ZERO;
        }
        self.start.plus(self.window)
    }

    fn amend(&mut self, entry: Entry, to: u64) -> bool {
        if self.start_of(entry.at) != self.start || self.born.is_none_or(|born| entry.at < born) {
            return false;
        }
        self.used = (self.used.saturating_sub(entry.cost) + to).min(MAX_TOTAL);
        true
    }

    /// Returns the end of the window that contains `at`.
    fn leaves(&self, at: Micros) -> Micros {
        self.start_of(at).plus(self.window)
    }

    fn entries(&self) -> Vec<(Micros, u64)> {
        if self.used == 0 {
            return Vec::new();
        }
        vec![(self.start, self.used)]
    }

    #[inline]
    fn suits(&self, quota: &Quota) -> bool {
        quota.algorithm() == Algorithm::FixedWindow && self.window == quota.window()
    }

    fn snapshot(&self) -> SnapshotCounts {
        SnapshotCounts::Numbers(CounterNumbers { used: self.used, second: 0 })
    }

    fn restore(&mut self, last: Micros, counts: &SnapshotCounts) {
        let SnapshotCounts::Numbers(numbers) = counts else { return };
        (self.start, self.used) = (self.start_of(last), numbers.used);
        self.born = Some(Micros::ZERO);
    }

    fn gone_until(&self) -> Micros {
        self.start.since(Micros::new(1))
    }
}
