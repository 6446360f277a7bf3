//! Gradient controller: compares the latency with its *floor*, the long-run minimum of the average latency. Netflix's
//! concurrency-limits library uses a similar method.
//!
//! Requests wait in a queue while the server is overloaded, and this wait grows until the load falls below the
//! capacity. A request that completes now with a latency of `w` arrived `w` ago, when the factor was `f`. If latencies
//! change by `s` seconds per second, the capacity of the server is `f * (1 - s)`. The formula allows for the delay
//! between the arrival of a request and the measurement of its latency; a limit that ignores this delay oscillates. The
//! limit stays a little below the capacity until the queue is empty. Without a queue the limit rises slowly, to probe
//! for more capacity.
//!
//! The floor falls at once with the average latency and rises slowly: a lasting increase of latency becomes the new
//! floor after a while.

use std::collections::VecDeque;

/// Time constant of the latency average in normal operation, in seconds.
const AVERAGING_SECONDS: f64 = 2.0;

/// A latency of at least `(tolerance + URGENT_FLOORS) * floor` is urgent: the controller then uses the latency of the
/// present step instead of the average.
const URGENT_FLOORS: f64 = 2.0;

/// Weight of a new capacity estimate if the latency is urgent and the step is one second long.
const URGENT_WEIGHT: f64 = 0.5;

/// Time constant with which a queue is drained, in seconds: the share of the capacity that is withheld is the latency
/// above the tolerance, divided by this time.
const DRAIN_SECONDS: f64 = 20.0;

/// Largest share of the capacity that is withheld to drain a queue.
const MAX_WITHHELD: f64 = 0.4;

/// Rise of the capacity estimate per second without a queue, as a fraction of the estimate.
const PROBE_RATE: f64 = 0.002;

/// Largest rise of the floor per second, as a fraction of the floor.
const FLOOR_RISE: f64 = 0.01;

/// Time constant of the return to the full limit without reports, in seconds.
const RECOVERY_SECONDS: f64 = 60.0;

/// Share of failed reports, in ten-thousandths, from which the server counts as overloaded.
pub(super) const FAILURE_THRESHOLD: u32 = 1_000;

/// Decrease of the capacity estimate per second while too many reports fail, as a fraction of the estimate.
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
