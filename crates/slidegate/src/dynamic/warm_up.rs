//! Warm-up: a limit that climbs to its full height after a cold start.
//!
//! A key is cold when it was never admitted anything, or nothing for a while; the first admission starts the climb.
//! When that was is kept with the key and judged by the store's clock, so every node sees the same limit. All of it is
//! in whole numbers: a Redis script comes to the same limit.

use std::time::Duration;

use crate::{Error, Micros};

/// The longest climb.
const MAX_OVER: Micros = Micros::from_secs(24 * 3600);

/// The longest time until a key is cold again.
const MAX_IDLE: Micros = Micros::from_secs(30 * 24 * 3600);

/// What a limit is counted in while it climbs.
const WHOLE: u64 = 10_000;

/// How far a climb in steps has come in each quarter of its time, in eighths.
const STEPS: [u64; 4] = [0, 3, 6, 8];

/// How a limit climbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RampShape {
    /// Steadily.
    #[default]
    Linear,
    /// In four steps, one for each quarter of the time: from 20 % that is 20, 50, 80 and 100 %.
    Steps,
}

/// Lets a limit climb after a cold start, for what is behind it to get ready. It never passes the full limit.
///
/// A request that costs more than the limit of the moment passes if nothing else counts, up to the full limit: it
/// would never become warm otherwise. While it climbs, `retry_after` is an upper bound.
///
/// ```
/// use std::time::Duration;
/// use slidegate::{Micros, Outcome, Quota, State, WarmUp};
///
/// // 20, 50, 80, then 100 in a second.
/// let quota = Quota::per_second(100)?.with_warm_up(WarmUp::new(20, Duration::from_secs(4))?.in_steps())?;
/// let mut state = State::new(&quota);
/// let mut admitted = |second: u64| {
///     let now = Micros::from_secs(second);
///     (0..200).filter(|_| state.admit(now, &quota, 1).outcome == Outcome::Charged).count()
/// };
/// assert_eq!([1, 2, 3, 4, 5].map(&mut admitted), [20, 50, 80, 100, 100]);
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WarmUp {
    climb: RampShape,
    /// In percent.
    from: u8,
    /// In milliseconds, and so is `idle`: a quota is copied with every check.
    over: u32,
    /// 0 stands for a minute, or the window if that is longer.
    idle: u32,
}

impl WarmUp {
    /// From so many percent of the limit to all of it in `over`, steadily. A key is cold again when a minute has
    /// passed without any admission, or a window if that is longer.
    pub fn new(from: u32, over: Duration) -> Result<Self, Error> {
        if !(1..=99).contains(&from) {
            return Err(Error::invalid(format!("warm-up.from must be between 1% and 99%, not {from}%")));
        }
        let over = Micros::from(over);
        if !(Micros::from_millis(1)..=MAX_OVER).contains(&over) {
            return Err(Error::invalid(format!(
                "warm-up.over must be between 1ms and {MAX_OVER}, not {over}"
            )));
        }
        Ok(WarmUp { climb: RampShape::Linear, from: from as u8, over: millis(over), idle: 0 })
    }

    /// Climbs in steps.
    #[must_use]
    pub fn in_steps(mut self) -> Self {
        self.climb = RampShape::Steps;
        self
    }

    /// Cold again after so long without any admission: no shorter than the window.
    pub fn idle(mut self, idle: Duration) -> Result<Self, Error> {
        let idle = Micros::from(idle);
        if !(Micros::from_millis(1)..=MAX_IDLE).contains(&idle) {
            return Err(Error::invalid(format!(
                "warm-up.idle must be between 1ms and {MAX_IDLE}, not {idle}"
            )));
        }
        self.idle = millis(idle);
        Ok(self)
    }

    /// The same, for a quota whose admissions matter for `horizon`. What is cold has nothing left that counts.
    pub(crate) fn for_horizon(mut self, horizon: Micros) -> Result<Self, Error> {
        if self.idle == 0 {
            self.idle = millis(horizon.max(Micros::from_secs(60)).min(MAX_IDLE));
        }
        if self.idle_for() < horizon {
            return Err(Error::invalid(format!(
                "warm-up.idle must be at least as long as what is admitted counts, which is {horizon}, not {}",
                self.idle_for()
            )));
        }
        Ok(self)
    }

    /// How it climbs.
    pub fn climb(&self) -> RampShape {
        self.climb
    }

    /// Where it starts, in percent of the limit.
    pub fn from(&self) -> u32 {
        self.from.into()
    }

    /// How long the climb takes.
    pub fn over(&self) -> Micros {
        Micros::from_millis(self.over.into())
    }

    /// After how long without any admission it is cold again.
    pub fn idle_for(&self) -> Micros {
        Micros::from_millis(self.idle.into())
    }

    /// Where it starts, in ten-thousandths.
    pub(crate) fn start(&self) -> u64 {
        u64::from(self.from) * (WHOLE / 100)
    }

    /// How much of a limit there is so long after the start.
    fn share(&self, climbed: Micros) -> u64 {
        let (start, over) = (self.start(), self.over().get());
        if climbed.get() >= over {
            return WHOLE;
        }
        match self.climb {
            RampShape::Linear => start + (WHOLE - start) * climbed.get() / over,
            RampShape::Steps => start + (WHOLE - start) * STEPS[(climbed.get() * 4 / over) as usize] / 8,
        }
    }

    /// What there is of `capacity` so long after the start.
    pub(crate) fn limit(&self, capacity: u64, climbed: Micros) -> u64 {
        part(capacity, self.share(climbed))
    }

    /// How long after the start there is room for `needed` of `capacity`, which is as much at least.
    pub(crate) fn reaches(&self, capacity: u64, needed: u64) -> Micros {
        let (start, over) = (self.start(), self.over().get());
        match self.climb {
            RampShape::Linear => {
                let (mut low, mut high) = (start, WHOLE);
                while low < high {
                    let middle = (low + high) / 2;
                    if part(capacity, middle) >= needed {
                        high = middle;
                    } else {
                        low = middle + 1;
                    }
                }
                Micros::new(((low - start) * over).div_ceil(WHOLE - start))
            }
            RampShape::Steps => {
                let step =
                    |i: &u64| part(capacity, start + (WHOLE - start) * STEPS[*i as usize] / 8) >= needed;
                let quarters = (0..4).find(step).unwrap_or(4);
                Micros::new((quarters * over).div_ceil(4))
            }
        }
    }
}

/// So much of `capacity`, one permit at least. In two parts, so that no product is too large for a double.
fn part(capacity: u64, share: u64) -> u64 {
    (capacity / WHOLE * share + capacity % WHOLE * share / WHOLE).max(1)
}

fn millis(time: Micros) -> u32 {
    u32::try_from(time.get().div_ceil(1_000)).unwrap_or(u32::MAX)
}

/// What a key remembers of its climb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Warmth {
    /// When it became cold for the last time, and was admitted something.
    pub(crate) since: Micros,
    /// When it was last admitted something.
    pub(crate) last: Micros,
    /// When it is cold again.
    pub(crate) until: Micros,
}

impl Warmth {
    /// How far it has climbed by `now`; none if it is cold.
    pub(crate) fn climbed(&self, warm_up: &WarmUp, now: Micros) -> Option<Micros> {
        (now < self.last.plus(warm_up.idle_for())).then(|| now.since(self.since))
    }

    /// Something is admitted at `now`.
    pub(crate) fn admitted(before: Option<Warmth>, warm_up: &WarmUp, now: Micros) -> Warmth {
        let warm = before.filter(|warmth| warmth.climbed(warm_up, now).is_some());
        let since = warm.map_or(now, |warmth| warmth.since);
        let last = warm.map_or(now, |warmth| warmth.last.max(now));
        Warmth { since, last, until: last.plus(warm_up.idle_for()) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{WarmUp, Warmth};
    use crate::Micros;

    /// The least time is that before which there is no room, and at which there is.
    #[test]
    fn it_reaches_what_it_needs_at_once_and_no_sooner() {
        let climbs = [
            WarmUp::new(20, Duration::from_millis(30_000)).unwrap(),
            WarmUp::new(20, Duration::from_millis(4_001)).unwrap().in_steps(),
            WarmUp::new(1, Duration::from_millis(1)).unwrap(),
            WarmUp::new(99, Duration::from_secs(86_400)).unwrap(),
        ];
        for climb in climbs {
            for capacity in [1, 2, 7, 100, 9_999, 10_001, 1_000_000_000_000] {
                for needed in [1, 2, capacity / 3, capacity / 2 + 1, capacity - 1, capacity] {
                    let needed = needed.clamp(1, capacity);
                    let after = climb.reaches(capacity, needed);
                    assert!(climb.limit(capacity, after) >= needed, "{climb:?} {capacity} {needed}");
                    if after > Micros::ZERO {
                        let before = after.since(Micros::new(1));
                        assert!(climb.limit(capacity, before) < needed, "{climb:?} {capacity} {needed}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_clock_that_steps_back_does_not_make_it_warmer() {
        let climb =
            WarmUp::new(20, Duration::from_secs(4)).unwrap().for_horizon(Micros::from_secs(1)).unwrap();
        let first = Warmth::admitted(None, &climb, Micros::from_secs(100));
        let second = Warmth::admitted(Some(first), &climb, Micros::from_secs(98));
        assert_eq!((second.since, second.last), (Micros::from_secs(100), Micros::from_secs(100)));
        assert_eq!(second.climbed(&climb, Micros::from_secs(98)), Some(Micros::ZERO));
        assert_eq!(second.climbed(&climb, Micros::from_secs(160)), None);
    }
}
