//! Circuit breaker for one Redis server. It is pure: the caller passes the time and a random number.
//!
//! - Closed: decisions call the server. After several failures in a row the breaker opens.
//! - Open: decisions do not call the server. After a pause a probe may be sent.
//! - Half open: a probe was answered. The breaker closes after enough answered probes in a row. A failed probe opens
//!   it again, for longer.
//!
//! Pauses are jittered, so that the nodes of a deployment do not return to the server at the same time.

use super::FailoverOptions;
use crate::Micros;

#[derive(Clone, Debug)]
pub(super) struct Breaker {
    failures_allowed: u32,
    probes_needed: u32,
    first_pause: Micros,
    longest_pause: Micros,
    state: State,
    pause: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until: Micros },
    HalfOpen { answered: u32 },
}

/// State of a circuit breaker, without its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerState {
    /// Decisions call the server.
    Closed,
    /// Decisions do not call the server.
    Open,
    /// Probes test the server.
    HalfOpen,
}

impl BreakerState {
    /// Returns the name of the state in API responses and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::Open => "open",
            BreakerState::HalfOpen => "half-open",
        }
    }
}

impl Breaker {
    pub(super) fn new(options: &FailoverOptions) -> Self {
        Breaker {
            failures_allowed: options.failures,
            probes_needed: options.probes,
            first_pause: options.first_pause.into(),
            longest_pause: options.longest_pause.into(),
            state: State::Closed { failures: 0 },
            pause: options.first_pause.into(),
        }
    }

    pub(super) fn state(&self) -> BreakerState {
        match self.state {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// Records an answered call.
    pub(super) fn record_success(&mut self) {
        if let State::Closed { failures } = &mut self.state {
            *failures = 0;
        }
    }

    /// Records a failed call; returns whether that opens the breaker. `random` is the source of the jitter.
    pub(super) fn record_failure(&mut self, now: Micros, random: u64) -> bool {
        let State::Closed { failures } = &mut self.state else { return false };
        *failures += 1;
        if *failures < self.failures_allowed {
            return false;
        }
        self.open(now, random);
        true
    }

    /// Opens the breaker at once, unless it is open already.
    pub(super) fn open(&mut self, now: Micros, random: u64) {
        if matches!(self.state, State::Closed { .. }) {
            self.pause = self.first_pause;
            self.state = State::Open { until: now.plus(self.jittered_pause(random)) };
        }
    }

    /// Returns the time until a probe may be sent; none if the breaker is closed.
    pub(super) fn until_probe(&self, now: Micros) -> Option<Micros> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { until } => Some(until.since(now)),
            State::HalfOpen { .. } => Some(Micros::ZERO),
        }
    }

    /// Records the end of a probe; returns whether the breaker is closed now.
    pub(super) fn record_probe(&mut self, answered: bool, now: Micros, random: u64) -> bool {
        let answered_before = match self.state {
            State::Closed { .. } => return answered,
            State::Open { .. } => 0,
            State::HalfOpen { answered } => answered,
        };
        if !answered {
            self.pause = self.pause.plus(self.pause).min(self.longest_pause);
            self.state = State::Open { until: now.plus(self.jittered_pause(random)) };
            return false;
        }
        if answered_before + 1 < self.probes_needed {
            self.state = State::HalfOpen { answered: answered_before + 1 };
            return false;
        }
        self.state = State::Closed { failures: 0 };
        true
    }

    /// Returns a random duration between half the pause and the whole pause.
    fn jittered_pause(&self, random: u64) -> Micros {
        let half = self.pause.get() / 2;
        Micros::new(half + random % (half + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> Breaker {
        Breaker::new(&FailoverOptions { failures: 3, probes: 2, ..FailoverOptions::default() })
    }

    const MS: fn(u64) -> Micros = Micros::from_millis;

    #[test]
    fn opens_after_consecutive_failures_only() {
        let mut breaker = breaker();
        for _ in 0..10 {
            assert!(!breaker.record_failure(MS(0), 0));
            assert!(!breaker.record_failure(MS(0), 0));
            breaker.record_success();
        }
        assert!(!breaker.record_failure(MS(1), 0) && !breaker.record_failure(MS(1), 0));
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert!(breaker.record_failure(MS(1), 0));
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[test]
    fn closes_after_consecutive_answered_probes() {
        let mut breaker = breaker();
        breaker.open(MS(100), u64::MAX);
        assert!(!breaker.record_probe(true, MS(150), 0));
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert!(!breaker.record_probe(false, MS(150), 0));
        assert_eq!(breaker.state(), BreakerState::Open);
        assert!(!breaker.record_probe(true, MS(300), 0));
        assert!(breaker.record_probe(true, MS(300), 0));
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert_eq!(breaker.until_probe(MS(300)), None);
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_are_jittered() {
        let mut breaker = breaker();
        breaker.open(MS(0), 0);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            pauses.push(breaker.until_probe(MS(0)).unwrap().get() / 1_000);
            breaker.record_probe(false, MS(0), 0);
        }
        assert_eq!(pauses, [25, 50, 100, 200, 250, 250]);
        for random in 0..1_000 {
            breaker.record_probe(false, MS(0), random * 7_919);
            let pause = breaker.until_probe(MS(0)).unwrap();
            assert!((MS(250)..=MS(500)).contains(&pause));
        }
    }
}
