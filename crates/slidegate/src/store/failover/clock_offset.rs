//! What time it is on a server, as far as its answers tell.
//!
//! An answer judged at `at` was judged after it was asked for and before it came: so at that instant this
//! process's clock stood between the two. Of the answers of the last seconds the quickest says it best.

use crate::Micros;

/// How long the best answer is the best.
const FRESH: Micros = Micros::from_secs(10);

/// A server's clock, by ours.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clockwork {
    /// Of the answer that says it best: when it was asked for and when it came, by our clock, and when it was
    /// judged by the server's.
    best: Option<(Micros, Micros, Micros)>,
}

impl Clockwork {
    pub(super) fn answered(&mut self, sent: Micros, received: Micros, at: Micros) {
        if let Some((from, to, then)) = self.best
            && received.since(to) < FRESH
            && to.since(from) < received.since(sent)
            && agree((from, to, then), (sent, received, at))
        {
            return;
        }
        self.best = Some((sent, received, at));
    }

    /// The latest it can be there when it is `now` here.
    pub(super) fn latest(&self, now: Micros) -> Micros {
        match self.best {
            // It was judged right when it was asked for.
            Some((sent, _, at)) => shift(now, sent, at),
            None => now,
        }
    }

    /// How much earlier than the latest it may be.
    pub(super) fn spread(&self) -> Micros {
        self.best.map_or(Micros::ZERO, |(sent, received, _)| received.since(sent))
    }
}

/// `now`, on a clock that showed `there` when ours showed `here`.
fn shift(now: Micros, here: Micros, there: Micros) -> Micros {
    if there >= here { now.plus(there.since(here)) } else { now.since(here.since(there)) }
}

/// Whether both can be answers of one clock that was not set in between.
fn agree(one: (Micros, Micros, Micros), other: (Micros, Micros, Micros)) -> bool {
    let earliest = |(_, received, at): (Micros, Micros, Micros)| at.get() as i128 - received.get() as i128;
    let latest = |(sent, _, at): (Micros, Micros, Micros)| at.get() as i128 - sent.get() as i128;
    earliest(one) <= latest(other) && earliest(other) <= latest(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Micros = Micros::new;

    #[test]
    fn the_quickest_answer_says_it_best() {
        let mut clock = Clockwork::default();
        assert_eq!(clock.latest(US(5)), US(5));
        clock.answered(US(1_000), US(1_500), US(9_200));
        assert_eq!((clock.latest(US(1_000)), clock.spread()), (US(9_200), US(500)));
        clock.answered(US(2_000), US(2_100), US(10_050));
        assert_eq!((clock.latest(US(2_000)), clock.spread()), (US(10_050), US(100)));
        clock.answered(US(3_000), US(9_000), US(12_000));
        assert_eq!(clock.spread(), US(100), "a slow answer says less");
    }

    #[test]
    fn a_clock_that_was_set_is_believed_at_once() {
        let mut clock = Clockwork::default();
        clock.answered(US(40_000_000), US(40_000_100), US(80_000_050));
        clock.answered(US(41_000_000), US(41_000_900), US(51_000_000));
        assert_eq!(clock.latest(US(41_000_000)), US(51_000_000));
    }
}
