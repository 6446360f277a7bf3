//! Following latency against its long-run floor, in the spirit of Netflix's concurrency-limits.
//!
//! A server that is given more than it can do has a queue, and the wait in it grows by as much a second as there is too
//! much: what leaves it now with a latency of `w` came `w` ago, when the factor was `f`; if latencies change by `s`
//! seconds a second, the server can do `f * (1 - s)`. So what it can do is known from latencies alone, without the delay
//! that would make a limit swing which only followed how long they are. The limit stays a little below that until the
//! queue is gone. While there is no queue the limit climbs slowly, to see whether there is more.
//!
//! The floor falls at once and climbs slowly: what takes longer for good is the new floor after a while.

use std::collections::VecDeque;

/// How long latencies are averaged while nothing is far off, in seconds.
const CALM: f64 = 2.0;

/// A latency so many floors above what is tolerated is far off: then each second counts for itself.
const URGENT: f64 = 2.0;

/// How much of an estimate is believed after a second then.
const BELIEVED: f64 = 0.5;

/// A queue of so many seconds would be emptied by admitting nothing; others in as long.
const DRAIN: f64 = 20.0;

/// The most that is held back to empty a queue.
const HELD_BACK: f64 = 0.4;

/// How fast it climbs, a second.
const CLIMB: f64 = 0.002;

/// How fast the floor climbs, a second, at most.
const CREEP: f64 = 0.01;

/// How fast it comes back to all of the limit if nothing is reported, in seconds.
const RELAX: f64 = 60.0;

/// From this share of failures on it is as if there were a queue, and how fast it falls then, a second.
pub(super) const FAILING: u32 = 1_000;
const FALL: f64 = 0.1;

/// The longest that factors are remembered, in seconds.
const REMEMBERED: f64 = 120.0;

#[derive(Clone, Debug)]
pub(super) struct Gradient {
    /// What the server can do, as a part of the limit.
    capacity: f64,
    /// The average, in seconds.
    calm: Option<f64>,
    /// The latency of the step before.
    before: Option<f64>,
    floor: f64,
    /// Seconds since the first step.
    time: f64,
    /// Factors in force, and since when.
    past: VecDeque<(f64, f64)>,
}

/// What is measured: a latency, how fast it changes, and how long ago what it says was so.
struct Measured {
    wait: f64,
    slope: f64,
    late: f64,
    believed: f64,
}

impl Gradient {
    pub(super) fn new(factor: f64) -> Self {
        let past = VecDeque::from([(0.0, factor)]);
        Gradient { capacity: factor, calm: None, before: None, floor: f64::INFINITY, time: 0.0, past }
    }

    /// From now on this is in force.
    pub(super) fn follow(&mut self, factor: f64) {
        self.past.push_back((self.time, factor));
        while self.past.get(1).is_some_and(|(since, _)| *since < self.time - REMEMBERED) {
            self.past.pop_front();
        }
    }

    /// What the factor should be, `elapsed` seconds after the step before.
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
            self.capacity += (1.0 - self.capacity) * (1.0 - (-elapsed / RELAX).exp());
            return self.capacity;
        };
        let measured = self.measure(elapsed, latency, tolerance, smooth);
        let excess = measured.wait - tolerance * self.floor;
        if failed {
            self.capacity *= (-FALL * elapsed).exp();
        } else if excess > 0.0 {
            let can = self.in_force(measured.wait + measured.late) * (1.0 - measured.slope.clamp(-1.0, 0.9));
            self.capacity += (can.min(self.capacity * 1.2) - self.capacity) * measured.believed;
        } else {
            self.capacity *= (CLIMB * elapsed).exp();
        }
        self.capacity * (1.0 - (excess / DRAIN).clamp(0.0, HELD_BACK))
    }

    pub(super) fn clamp(&mut self, min: f64, max: f64) {
        self.capacity = self.capacity.clamp(min, max);
    }

    fn measure(&mut self, elapsed: f64, latency: f64, tolerance: f64, smooth: f64) -> Measured {
        let slope = |from: Option<f64>, to: f64| from.map_or(0.0, |from| (to - from) / elapsed);
        let (calm, before) = (self.calm, self.before.replace(latency));
        let mut average =
            calm.map_or(latency, |calm| calm + (latency - calm) * (1.0 - (-elapsed / CALM).exp()));
        if average < self.floor {
            self.floor = average;
        } else {
            self.floor *= 1.0 + (average / self.floor - 1.0).min(1.0) * CREEP * elapsed;
        }
        let far = latency >= (tolerance + URGENT) * self.floor;
        if far {
            average = average.max(latency);
        }
        self.calm = Some(average);
        if far {
            let believed = 1.0 - (1.0 - BELIEVED).powf(elapsed);
            return Measured { wait: latency, slope: slope(before, latency), late: 0.0, believed };
        }
        let believed = 1.0 - (-elapsed / smooth).exp();
        Measured { wait: average, slope: slope(calm, average), late: CALM, believed }
    }

    /// The factor so many seconds ago.
    fn in_force(&self, ago: f64) -> f64 {
        let then = self.time - ago;
        let since = self.past.iter().rev().find(|(since, _)| *since <= then);
        since.or(self.past.front()).map_or(1.0, |(_, factor)| *factor)
    }
}
