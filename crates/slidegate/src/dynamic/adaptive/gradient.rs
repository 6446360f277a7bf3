//! Gradient controller: compares the latency with its long-run floor, in the spirit of Netflix's concurrency-limits.
//!
//! An overloaded server has a queue, and the wait in the queue grows per second by the excess load. A request that leaves now
//! with a latency of `w` arrived `w` ago, when the factor was `f`. If latencies change by `s` seconds per second, the
//! capacity of the server is `f * (1 - s)`. So the capacity follows from latencies alone, without the delay that makes a
//! limit oscillate if it only follows the length of latencies. The limit stays a little below the capacity until the queue
//! is empty. Without a queue the limit rises slowly, to probe for more capacity.
//!
//! The floor falls at once and rises slowly: a lasting increase of latency becomes the new floor after a while.

use std::collections::VecDeque;

/// Time constant of the latency average in normal operation, in seconds.
const AVERAGING_SECONDS: f64 = 2.0;

/// A latency this many floors above the tolerance is urgent: each second then counts for itself.
const URGENT_FLOORS: f64 = 2.0;

/// Weight of an urgent estimate after one second.
const URGENT_WEIGHT: f64 = 0.5;

/// Queue length in seconds at which nothing would be admitted. Shorter queues are drained in the same time.
const DRAIN_SECONDS: f64 = 20.0;

/// Largest share of the capacity that is withheld to drain a queue.
const MAX_WITHHELD: f64 = 0.4;

/// Rise of the capacity estimate per second without a queue.
const PROBE_RATE: f64 = 0.002;

/// Largest rise of the floor per second.
const FLOOR_RISE: f64 = 0.01;

/// Time constant of the return to the full limit without reports, in seconds.
const RECOVERY_SECONDS: f64 = 60.0;

/// Share of failures, in ten-thousandths, from which the server counts as overloaded; and the decrease per second then.
pub(super) const FAILURE_THRESHOLD: u32 = 1_000;
const FAILURE_DECREASE: f64 = 0.1;

/// Longest time for which past factors are remembered, in seconds.
const HISTORY_SECONDS: f64 = 120.0;

#[derive(Clone, Debug)]
pub(super) struct Gradient {
    /// Estimated capacity of the server, as a fraction of the limit.
    capacity: f64,
    /// Average latency in seconds.
    average: Option<f64>,
    /// Latency of the previous step.
    previous: Option<f64>,
    floor: f64,
    /// Seconds since the first step.
    time: f64,
    /// Past factors, each with the time from which it applied.
    history: VecDeque<(f64, f64)>,
}

/// Measurement of one step: the latency, its change per second, its delay, and its weight.
struct Measurement {
    wait: f64,
    slope: f64,
    delay: f64,
    weight: f64,
}

impl Gradient {
    pub(super) fn new(factor: f64) -> Self {
        let history = VecDeque::from([(0.0, factor)]);
        Gradient { capacity: factor, average: None, previous: None, floor: f64::INFINITY, time: 0.0, history }
    }

    /// Records the factor that applies from now on.
    pub(super) fn follow(&mut self, factor: f64) {
        self.history.push_back((self.time, factor));
        while self.history.get(1).is_some_and(|(since, _)| *since < self.time - HISTORY_SECONDS) {
            self.history.pop_front();
        }
    }

    /// Returns the factor for `elapsed` seconds after the previous step.
    pub(super) fn step(
        &mut self,
        elapsed: f64,
        latency: Option<f64>,
        failed: bool,
        tolerance: f64,
        smooth: f64,
    ) -> f64 {
        self.time += elapsed;
        let Some(latency) = latency else {
            self.capacity += (1.0 - self.capacity) * (1.0 - (-elapsed / RECOVERY_SECONDS).exp());
            return self.capacity;
        };
        let measurement = self.measure(elapsed, latency, tolerance, smooth);
        let excess = measurement.wait - tolerance * self.floor;
        if failed {
            self.capacity *= (-FAILURE_DECREASE * elapsed).exp();
        } else if excess > 0.0 {
            let estimate = self.factor_ago(measurement.wait + measurement.delay)
                * (1.0 - measurement.slope.clamp(-1.0, 0.9));
            self.capacity += (estimate.min(self.capacity * 1.2) - self.capacity) * measurement.weight;
        } else {
            self.capacity *= (PROBE_RATE * elapsed).exp();
        }
        self.capacity * (1.0 - (excess / DRAIN_SECONDS).clamp(0.0, MAX_WITHHELD))
    }

    pub(super) fn clamp(&mut self, min: f64, max: f64) {
        self.capacity = self.capacity.clamp(min, max);
    }

    fn measure(&mut self, elapsed: f64, latency: f64, tolerance: f64, smooth: f64) -> Measurement {
        let slope = |from: Option<f64>, to: f64| from.map_or(0.0, |from| (to - from) / elapsed);
        let (previous_average, previous) = (self.average, self.previous.replace(latency));
        let mut average = previous_average.map_or(latency, |average| {
            average + (latency - average) * (1.0 - (-elapsed / AVERAGING_SECONDS).exp())
        });
        if average < self.floor {
            self.floor = average;
        } else {
            self.floor *= 1.0 + (average / self.floor - 1.0).min(1.0) * FLOOR_RISE * elapsed;
        }
        let urgent = latency >= (tolerance + URGENT_FLOORS) * self.floor;
        if urgent {
            average = average.max(latency);
        }
        self.average = Some(average);
        if urgent {
            let weight = 1.0 - (1.0 - URGENT_WEIGHT).powf(elapsed);
            return Measurement { wait: latency, slope: slope(previous, latency), delay: 0.0, weight };
        }
        let weight = 1.0 - (-elapsed / smooth).exp();
        Measurement {
            wait: average,
            slope: slope(previous_average, average),
            delay: AVERAGING_SECONDS,
            weight,
        }
    }

    /// Returns the factor that applied `ago` seconds ago.
    fn factor_ago(&self, ago: f64) -> f64 {
        let then = self.time - ago;
        let since = self.history.iter().rev().find(|(since, _)| *since <= then);
        since.or(self.history.front()).map_or(1.0, |(_, factor)| *factor)
    }
}
