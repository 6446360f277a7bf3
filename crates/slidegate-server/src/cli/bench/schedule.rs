//! When to ask, and which asks count. Pure: instants are microseconds of whatever clock the caller reads.

use std::sync::atomic::{AtomicU64, Ordering};

use super::options::Plan;

/// One run, from its first ask to its last.
#[derive(Debug)]
pub(super) struct Schedule {
    start: u64,
    /// Asks from this instant on count.
    counted: u64,
    /// From this instant on nothing is asked.
    end: AtomicU64,
    /// How many asks count, at most.
    requests: u64,
    /// How many should start in a second; none in a closed loop.
    rate: Option<u64>,
}

impl Schedule {
    /// What `plan` means if it starts at `now`.
    pub(super) fn new(plan: &Plan, now: u64) -> Self {
        let counted = now + plan.warm_up.get();
        Schedule {
            start: now,
            counted,
            end: AtomicU64::new(plan.duration.map_or(u64::MAX, |duration| counted + duration.get())),
            requests: plan.requests.unwrap_or(u64::MAX),
            rate: plan.rate,
        }
    }

    /// From when on asks count.
    pub(super) fn counted(&self) -> u64 {
        self.counted
    }

    pub(super) fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Ends the run before its time.
    pub(super) fn stop(&self, now: u64) {
        self.end.fetch_min(now, Ordering::Relaxed);
    }

    /// Whether nothing more may start at `now`.
    pub(super) fn over(&self, now: u64) -> bool {
        now >= self.end.load(Ordering::Relaxed)
    }

    /// Whether the n-th ask that counts is one too many.
    pub(super) fn enough(&self, n: u64) -> bool {
        n >= self.requests
    }

    /// How much of the run is over, from 0 to 1.
    pub(super) fn done(&self, now: u64, asked: u64) -> f64 {
        let end = self.end.load(Ordering::Relaxed);
        let by_time = now.saturating_sub(self.start) as f64 / (end - self.start).max(1) as f64;
        let by_requests = asked as f64 / self.requests.max(1) as f64;
        by_time.max(by_requests).min(1.0)
    }

    /// When the n-th arrival of an open loop is due, warm-up included.
    pub(super) fn due(&self, n: u64, rate: u64) -> u64 {
        after(self.start, n, rate)
    }

    /// How many arrivals belong to the warm-up.
    pub(super) fn warm_up(&self, rate: u64) -> u64 {
        arrivals(self.counted - self.start, rate)
    }

    /// How many arrivals that count were due by the end, or by `now` if the run has none.
    pub(super) fn arrivals(&self, now: u64, rate: u64) -> u64 {
        let end = self.end.load(Ordering::Relaxed).min(now);
        arrivals(end.saturating_sub(self.start), rate).saturating_sub(self.warm_up(rate)).min(self.requests)
    }

    /// The instant by which `arrivals` that count should have started.
    pub(super) fn span(&self, arrivals: u64, rate: u64) -> u64 {
        after(self.counted, arrivals, rate)
    }
}

/// The instant `n` arrivals after `instant`.
fn after(instant: u64, n: u64, rate: u64) -> u64 {
    let passed = u128::from(n) * 1_000_000 / u128::from(rate);
    u64::try_from(u128::from(instant) + passed).unwrap_or(u64::MAX)
}

/// How many arrivals are due before `elapsed` microseconds have passed; the first is due at once.
fn arrivals(elapsed: u64, rate: u64) -> u64 {
    let arrivals = (u128::from(elapsed) * u128::from(rate)).div_ceil(1_000_000);
    u64::try_from(arrivals).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_those_that_are_due() {
        for rate in [1, 3, 1_000, 999_999, 3_000_000] {
            for elapsed in [0, 1, 2, 999, 1_000_000, 1_000_001] {
                let counted = (0..).take_while(|n| after(0, *n, rate) < elapsed).count() as u64;
                assert_eq!(arrivals(elapsed, rate), counted, "{rate} a second, {elapsed} us");
            }
        }
    }
}
