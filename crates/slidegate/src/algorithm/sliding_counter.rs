//! `sliding-counter`: two aligned windows. The current one counts in full, the previous one in part.
//!
//! `used = current + ceil(previous * (window - elapsed) / window)`, where `elapsed` is the time since the current window began.
//! The previous window is taken as if its admissions had been spread evenly over it, so the count is an approximation: it may
//! be too low if these admissions came late in the previous window, and too high if they came early. The state is two
//! numbers for any limit.
//!
//! Three facts hold in integer arithmetic: the weight is rounded up, so `used` is never below the exact value of the
//! formula; no aligned window admits more than the limit; and without new admissions `used` never rises, so the
//! computed wait is the shortest one.

use super::counter::Counter;
use super::{CounterNumbers, SnapshotCounts};
use crate::quota::MAX_TOTAL;
use crate::{Algorithm, Entry, Micros, Quota};

#[derive(Clone, Debug)]
pub(super) struct SlidingCounter {
    window: Micros,
    /// Start of the current window.
    start: Micros,
    /// Instant of the last roll, in the current window.
    now: Micros,
    current: u64,
    previous: u64,
    /// Instant of the first admission in this state. A reservation from an earlier instant belongs to a dropped
    /// state of the key.
    born: Option<Micros>,
}

impl SlidingCounter {
    pub(super) fn new(quota: &Quota) -> Self {
        SlidingCounter {
            window: quota.window(),
            start: Micros::ZERO,
            now: Micros::ZERO,
            current: 0,
            previous: 0,
            born: None,
        }
    }

    #[inline]
    fn start_of(&self, at: Micros) -> Micros {
        Micros::new(at.get() - at.get() % self.window.get())
    }

    /// Time until the current window ends.
    #[inline]
    fn remaining(&self) -> u64 {
        self.window.get() - self.now.since(self.start).get()
    }

    /// Permits of the previous window that still count, rounded up.
    #[inline]
    fn weight(&self) -> u64 {
        if self.previous == 0 {
            return 0;
        }
        let (window, remaining) = (self.window.get(), self.remaining());
        match self.previous.checked_mul(remaining) {
            Some(product) => product.div_ceil(window),
            None => saturate((u128::from(self.previous) * u128::from(remaining)).div_ceil(window.into())),
        }
    }

    /// Returns the time since the start of a window after which at most `keep` of the `permits` of the previous window
    /// still count.
    fn time_until(&self, permits: u64, keep: u64) -> Micros {
        if permits <= keep {
            return Micros::ZERO;
        }
        Micros::new(self.window.get() - scaled(self.window.get(), keep, permits))
    }
}

impl Counter for SlidingCounter {
    /// Advances to `now`; returns true if a new window began.
    #[inline]
    fn roll(&mut self, now: Micros) -> bool {
        self.now = now;
        let start = self.start_of(now);
        if start <= self.start {
            return false;
        }
        let adjacent = start.since(self.start) == self.window;
        self.previous = if adjacent { self.current } else { 0 };
        (self.start, self.current) = (start, 0);
        true
    }

    #[inline]
    fn used(&self) -> u64 {
        self.current + self.weight()
    }

    #[inline]
    fn record(&mut self, now: Micros, _quota: &Quota, cost: u64) -> Micros {
        self.current += cost;
        self.born.get_or_insert(now);
        now
    }

    /// Removes permits of the previous window first, because they are older.
    fn keep_newest(&mut self, keep: u64) {
        if self.used() > keep {
            self.current = self.current.min(keep);
            // The previous window keeps the most permits whose weight is at most `keep - self.current`.
            self.previous =
                scaled(keep - self.current, self.window.get(), self.remaining()).min(self.previous);
        }
    }

    #[inline]
    fn wait(&self, now: Micros, _quota: &Quota, limit: u64, cost: u64) -> Micros {
        if self.used() + cost <= limit {
            return Micros::ZERO;
        }
        let fits = match limit.checked_sub(self.current + cost) {
            // The weight of the previous window falls, and reaches zero at the end of the current window.
            Some(keep) => self.start.plus(self.time_until(self.previous, keep)),
            // When the current window has ended, it becomes the previous window.
            None => {
                let end = self.start.plus(self.window);
                end.plus(self.time_until(self.current, limit.saturating_sub(cost)))
            }
        };
        fits.since(now)
    }

    fn empty_at(&self) -> Micros {
        let end = self.start.plus(self.window);
        match (self.current, self.previous) {
            (0, 0) => Micros::ZERO,
            (0, _) => end,
            _ => end.plus(self.window),
        }
    }

    /// Corrects the sum of the window in which the admission was recorded.
    fn amend(&mut self, entry: Entry, to: u64) -> bool {
        if self.born.is_none_or(|born| entry.at < born) {
            return false;
        }
        let start = self.start_of(entry.at);
        let (sum, other) = if start == self.start {
            (&mut self.current, self.previous)
        } else if start.plus(self.window) == self.start {
            (&mut self.previous, self.current)
        } else {
            return false;
        };
        *sum = (sum.saturating_sub(entry.cost) + to).min(MAX_TOTAL.saturating_sub(other));
        true
    }

    /// Returns the end of the window after the one that contains `at`.
    fn leaves(&self, at: Micros) -> Micros {
        self.start_of(at).plus(self.window).plus(self.window)
    }

    /// Returns one entry per window, at its start: the weight of the previous window, and the permits of the current
    /// window.
    fn entries(&self) -> Vec<(Micros, u64)> {
        let windows = [(self.start.since(self.window), self.weight()), (self.start, self.current)];
        windows.into_iter().filter(|(_, permits)| *permits > 0).collect()
    }

    #[inline]
    fn suits(&self, quota: &Quota) -> bool {
        quota.algorithm() == Algorithm::SlidingCounter && self.window == quota.window()
    }

    fn snapshot(&self) -> SnapshotCounts {
        SnapshotCounts::Numbers(CounterNumbers { used: self.current, second: self.previous })
    }

    fn restore(&mut self, last: Micros, counts: &SnapshotCounts) {
        let SnapshotCounts::Numbers(numbers) = counts else { return };
        (self.current, self.previous) = (numbers.used, numbers.second);
        (self.start, self.now) = (self.start_of(last), last);
        self.born = Some(Micros::ZERO);
    }

    fn gone_until(&self) -> Micros {
        self.start.since(self.window).since(Micros::new(1))
    }
}

/// Returns `a * b / c`, rounded down, without overflow of the product.
fn scaled(a: u64, b: u64, c: u64) -> u64 {
    saturate(u128::from(a) * u128::from(b) / u128::from(c))
}

fn saturate(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
