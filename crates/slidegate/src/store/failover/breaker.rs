//! Whether a server is asked at all. Pure: time and chance are given to it.
//!
//! Closed, it is. After a row of failures the breaker opens: nobody waits for a server that does not answer.
//! After a pause it is half open, and probes are let through; when enough of them in a row were answered it
//! closes, and one that fails opens it again, for longer. Pauses are spread by chance, so that the nodes of a
//! deployment do not come back all at once.

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

/// A breaker's state, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerState {
    /// The server is asked.
    Closed,
    /// It is not.
    Open,
    /// It is being tried.
    HalfOpen,
}

impl BreakerState {
    /// As it is written in answers and metrics.
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

    /// A call was answered.
    pub(super) fn succeeded(&mut self) {
        if let State::Closed { failures } = &mut self.state {
            *failures = 0;
        }
    }

    /// A call failed; whether that opens the breaker. `chance` is any number.
    pub(super) fn failed(&mut self, now: Micros, chance: u64) -> bool {
        let State::Closed { failures } = &mut self.state else { return false };
        *failures += 1;
        if *failures < self.failures_allowed {
            return false;
        }
        self.open(now, chance);
        true
    }

    /// Opens at once; nothing changes if it is open already.
    pub(super) fn open(&mut self, now: Micros, chance: u64) {
        if matches!(self.state, State::Closed { .. }) {
            self.pause = self.first_pause;
            self.state = State::Open { until: now.plus(self.spread(chance)) };
        }
    }

    /// How long until a probe may be sent; none if the breaker is closed.
    pub(super) fn until_probe(&self, now: Micros) -> Option<Micros> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { until } => Some(until.since(now)),
            State::HalfOpen { .. } => Some(Micros::ZERO),
        }
    }

    /// A probe came to its end; whether that closes the breaker.
    pub(super) fn probed(&mut self, answered: bool, now: Micros, chance: u64) -> bool {
        let so_far = match self.state {
            State::Closed { .. } => return answered,
            State::Open { .. } => 0,
            State::HalfOpen { answered } => answered,
        };
        if !answered {
            self.pause = self.pause.plus(self.pause).min(self.longest_pause);
            self.state = State::Open { until: now.plus(self.spread(chance)) };
            return false;
        }
        if so_far + 1 < self.probes_needed {
            self.state = State::HalfOpen { answered: so_far + 1 };
            return false;
        }
        self.state = State::Closed { failures: 0 };
        true
    }

    /// Between half the pause and the whole of it.
    fn spread(&self, chance: u64) -> Micros {
        let half = self.pause.get() / 2;
        Micros::new(half + chance % (half + 1))
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
    fn only_failures_in_a_row_open_it() {
        let mut breaker = breaker();
        for _ in 0..10 {
            assert!(!breaker.failed(MS(0), 0));
            assert!(!breaker.failed(MS(0), 0));
            breaker.succeeded();
        }
        assert!(!breaker.failed(MS(1), 0) && !breaker.failed(MS(1), 0));
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert!(breaker.failed(MS(1), 0));
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[test]
    fn probes_in_a_row_close_it() {
        let mut breaker = breaker();
        breaker.open(MS(100), u64::MAX);
        assert!(!breaker.probed(true, MS(150), 0));
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert!(!breaker.probed(false, MS(150), 0));
        assert_eq!(breaker.state(), BreakerState::Open);
        assert!(!breaker.probed(true, MS(300), 0));
        assert!(breaker.probed(true, MS(300), 0));
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert_eq!(breaker.until_probe(MS(300)), None);
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_are_spread() {
        let mut breaker = breaker();
        breaker.open(MS(0), 0);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            pauses.push(breaker.until_probe(MS(0)).unwrap().get() / 1_000);
            breaker.probed(false, MS(0), 0);
        }
        assert_eq!(pauses, [25, 50, 100, 200, 250, 250]);
        for chance in 0..1_000 {
            breaker.probed(false, MS(0), chance * 7_919);
            let pause = breaker.until_probe(MS(0)).unwrap();
            assert!((MS(250)..=MS(500)).contains(&pause));
        }
    }
}
