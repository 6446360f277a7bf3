//! Schedule of a run: when requests are due, and which of them are measured. Pure: times are microseconds of the
//! caller's clock.

use std::sync::atomic::{AtomicU64, Ordering};

use super::options::Plan;

/// Schedule of one run, from its first request to its last.
#[derive(Debug)]
pub(super) struct Schedule {
    start: u64,
    /// Time from which requests are measured.
    pub(super) measured_from: u64,
    /// Time from which no request is sent.
    end: AtomicU64,
    /// Upper bound on measured requests.
    requests: u64,
    /// Requests per second; none in a closed loop.
    pub(super) rate: Option<u64>,
}

impl Schedule {
    /// Creates the schedule of a run that starts at `now`.
    pub(super) fn new(plan: &Plan, now: u64) -> Self {
        let measured_from = now + plan.warm_up.get();
        Schedule {
            start: now,
            measured_from,
            end: AtomicU64::new(plan.duration.map_or(u64::MAX, |duration| measured_from + duration.get())),
            requests: plan.requests.unwrap_or(u64::MAX),
            rate: plan.rate,
        }
    }

    /// Ends the run early.
    pub(super) fn stop(&self, now: u64) {
        self.end.fetch_min(now, Ordering::Relaxed);
    }

    /// Returns true if no request may start at `now`.
    pub(super) fn ended(&self, now: u64) -> bool {
        now >= self.end.load(Ordering::Relaxed)
    }

    /// Returns true if the n-th measured request, from 0, exceeds the bound.
    pub(super) fn exceeds(&self, n: u64) -> bool {
        n >= self.requests
    }

    /// Returns the completed part of the run, from 0 to 1.
    pub(super) fn progress(&self, now: u64, sent: u64) -> f64 {
        let end = self.end.load(Ordering::Relaxed);
        let by_time = now.saturating_sub(self.start) as f64 / (end - self.start).max(1) as f64;
        let by_requests = sent as f64 / self.requests.max(1) as f64;
        by_time.max(by_requests).min(1.0)
    }

    /// Returns the time at which the n-th arrival of an open loop is due, including the warm-up.
    pub(super) fn due(&self, n: u64, rate: u64) -> u64 {
        after(self.start, n, rate)
    }

    /// Returns the number of arrivals in the warm-up.
    pub(super) fn warm_up(&self, rate: u64) -> u64 {
        arrivals(self.measured_from - self.start, rate)
    }

    /// Returns the number of measured arrivals that were due by the end, or by `now` if the run has no end.
    pub(super) fn arrivals(&self, now: u64, rate: u64) -> u64 {
        let end = self.end.load(Ordering::Relaxed).min(now);
        arrivals(end.saturating_sub(self.start), rate).saturating_sub(self.warm_up(rate)).min(self.requests)
    }

    /// Returns the time by which `arrivals` measured arrivals should have started.
    pub(super) fn span(&self, arrivals: u64, rate: u64) -> u64 {
        after(self.measured_from, arrivals, rate)
    }
}

/// Returns the time `n` arrivals after `instant`.
fn after(instant: u64, n: u64, rate: u64) -> u64 {
    let passed = u128::from(n) * 1_000_000 / u128::from(rate);
    u64::try_from(u128::from(instant) + passed).unwrap_or(u64::MAX)
}

/// Returns the number of arrivals that are due within `elapsed` microseconds; the first is due at once.
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
                let expected = (0..).take_while(|n| after(0, *n, rate) < elapsed).count() as u64;
                assert_eq!(arrivals(elapsed, rate), expected, "{rate} a second, {elapsed} us");
            }
        }
    }
}
