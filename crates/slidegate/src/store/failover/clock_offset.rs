//! Estimate of the current time on a server's clock, from the timestamps of its answers.
//!
//! The server evaluates a request after this node sent it and before this node received the answer. So when the
//! server's clock showed the timestamp, this node's clock was between the time of sending and the time of receipt. The
//! answer with the shortest round trip in the last seconds gives the best bound.

use crate::Micros;

/// Age of the best sample at which any newer sample replaces it.
const SAMPLE_LIFETIME: Micros = Micros::from_secs(10);

/// Bounds on the difference between a server's clock and this node's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClockOffset {
    best: Option<Sample>,
}

/// Timestamps of one call.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Start of the call, by this node's clock.
    sent: Micros,
    /// End of the call, by this node's clock.
    received: Micros,
    /// Time of the evaluation, by the server's clock.
    at: Micros,
}

impl Sample {
    fn round_trip(&self) -> Micros {
        self.received.since(self.sent)
    }

    /// Returns whether the server's clock can have given both timestamps without being set in between.
    fn agrees_with(&self, other: &Sample) -> bool {
        self.min_offset() <= other.max_offset() && other.min_offset() <= self.max_offset()
    }

    fn min_offset(&self) -> i128 {
        self.at.get() as i128 - self.received.get() as i128
    }

    fn max_offset(&self) -> i128 {
        self.at.get() as i128 - self.sent.get() as i128
    }
}

impl ClockOffset {
    pub(super) fn record(&mut self, sent: Micros, received: Micros, at: Micros) {
        let sample = Sample { sent, received, at };
        if let Some(best) = self.best
            && received.since(best.received) < SAMPLE_LIFETIME
            && best.round_trip() < sample.round_trip()
            && best.agrees_with(&sample)
        {
            return;
        }
        self.best = Some(sample);
    }

    /// Returns the latest possible time on the server when this node's clock shows `now`.
    pub(super) fn latest(&self, now: Micros) -> Micros {
        match self.best {
            // The server may have evaluated the request as soon as it was sent.
            Some(Sample { sent, at, .. }) => shift(now, sent, at),
            None => now,
        }
    }

    /// Returns how much earlier than [`latest`](Self::latest) the time on the server may be.
    pub(super) fn uncertainty(&self) -> Micros {
        self.best.map_or(Micros::ZERO, |best| best.round_trip())
    }
}

/// Converts `now` to a clock that showed `there` when this node's clock showed `here`.
fn shift(now: Micros, here: Micros, there: Micros) -> Micros {
    if there >= here { now.plus(there.since(here)) } else { now.since(here.since(there)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Micros = Micros::new;

    #[test]
    fn keeps_the_sample_with_the_shortest_round_trip() {
        let mut clock = ClockOffset::default();
        assert_eq!(clock.latest(US(5)), US(5));
        clock.record(US(1_000), US(1_500), US(9_200));
        assert_eq!((clock.latest(US(1_000)), clock.uncertainty()), (US(9_200), US(500)));
        clock.record(US(2_000), US(2_100), US(10_050));
        assert_eq!((clock.latest(US(2_000)), clock.uncertainty()), (US(10_050), US(100)));
        clock.record(US(3_000), US(9_000), US(12_000));
        assert_eq!(clock.uncertainty(), US(100), "a slow answer gives a weaker bound");
    }

    #[test]
    fn follows_a_server_clock_that_was_set_at_once() {
        let mut clock = ClockOffset::default();
        clock.record(US(40_000_000), US(40_000_100), US(80_000_050));
        clock.record(US(41_000_000), US(41_000_900), US(51_000_000));
        assert_eq!(clock.latest(US(41_000_000)), US(51_000_000));
    }
}
