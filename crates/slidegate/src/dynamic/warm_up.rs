//! Warm-up: a limit that rises to its full value after a cold start.
//!
//! A key is cold if it never had an admission, or none for a while; the first admission starts the warm-up. The instant
//! of this admission is stored with the key and compared with the store's clock, so all nodes see the same limit. All
//! numbers are integers, so that a Redis script computes the same limit.

use std::time::Duration;

use crate::error::check_between;
use crate::{Error, Micros};

/// Longest warm-up.
pub(crate) const MAX_OVER: Micros = Micros::from_secs(24 * 3600);

/// Longest idle time until a key is cold again.
pub(crate) const MAX_IDLE: Micros = Micros::from_secs(30 * 24 * 3600);

/// 100 % of a limit during warm-up.
const WHOLE: u64 = 10_000;

/// Progress of a warm-up with [`RampShape::Steps`] in each quarter of its duration, in eighths.
const STEPS: [u64; 4] = [0, 3, 6, 8];

crate::words! {
    /// Shape of the rise.
    pub enum RampShape default Linear {
        /// A rise at a constant rate.
        Linear = "linear",
        /// Four steps, one for each quarter of `over`: with `from: 20%` these are 20, 50, 80 and 100 %.
        Steps = "steps",
    }
}

/// Raises a limit gradually after a cold start, so that the server behind it can get ready. It never exceeds the full limit.
///
/// A request with a cost above the present limit is allowed if nothing else counts, up to the full limit; otherwise the key
/// would never become warm. During warm-up `retry_after` is an upper bound.
///
/// ```
/// use std::time::Duration;
/// use slidegate::{algorithm::State, store::Outcome, Micros, Quota, WarmUp};
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
    shape: RampShape,
    /// Start of the rise, in percent.
    from: u8,
    /// Duration in milliseconds. `over` and `idle` have a small type, because a quota is copied with every check.
    over: u32,
    /// Idle time in milliseconds; 0 means a minute, or the window if that is longer.
    idle: u32,
}

impl WarmUp {
    /// Creates a steady rise from `from` percent to the full limit in `over`. A key is cold again after a minute without any
    /// admission, or a window if that is longer.
    pub fn new(from: u32, over: Duration) -> Result<Self, Error> {
        ensure!((1..=99).contains(&from), "warm-up.from must be between 1% and 99%, not {from}%");
        let over = Micros::from(over);
        check_between("warm-up.over", over, Micros::from_millis(1), MAX_OVER)?;
        Ok(WarmUp { shape: RampShape::Linear, from: from as u8, over: millis(over), idle: 0 })
    }

    /// Rises in steps.
    #[must_use]
    pub fn in_steps(mut self) -> Self {
        self.shape = RampShape::Steps;
        self
    }

    /// Sets the time without any admission after which a key is cold again: at least the window.
    pub fn idle(mut self, idle: Duration) -> Result<Self, Error> {
        let idle = Micros::from(idle);
        check_between("warm-up.idle", idle, Micros::from_millis(1), MAX_IDLE)?;
        self.idle = millis(idle);
        Ok(self)
    }

    /// Adapts the idle time to a quota whose admissions count for `horizon`, so that a cold key has no entries that
    /// still count.
    pub(crate) fn for_horizon(mut self, horizon: Micros) -> Result<Self, Error> {
        if self.idle == 0 {
            self.idle = millis(horizon.max(Micros::from_secs(60)).min(MAX_IDLE));
        }
        ensure!(
            self.idle_for() >= horizon,
            "warm-up.idle must be at least {horizon}, for which an admission counts, not {}",
            self.idle_for()
        );
        Ok(self)
    }

    /// Returns the shape of the rise.
    pub fn shape(&self) -> RampShape {
        self.shape
    }

    /// Returns the start of the rise, in percent of the limit.
    pub fn from(&self) -> u32 {
        self.from.into()
    }

    /// Returns the duration of the rise.
    pub fn over(&self) -> Micros {
        Micros::from_millis(self.over.into())
    }

    /// Returns the time without any admission after which a key is cold again.
    pub fn idle_for(&self) -> Micros {
        Micros::from_millis(self.idle.into())
    }

    /// Returns the start of the rise, in ten-thousandths.
    pub(crate) fn start(&self) -> u64 {
        u64::from(self.from) * (WHOLE / 100)
    }

    /// Returns the share of the limit at the time `climbed` after the start.
    fn share(&self, climbed: Micros) -> u64 {
        let (start, over) = (self.start(), self.over().get());
        if climbed.get() >= over {
            return WHOLE;
        }
        match self.shape {
            RampShape::Linear => start + (WHOLE - start) * climbed.get() / over,
            RampShape::Steps => start + (WHOLE - start) * STEPS[(climbed.get() * 4 / over) as usize] / 8,
        }
    }

    /// Returns the part of `capacity` that is available at the time `climbed` after the start.
    pub(crate) fn limit(&self, capacity: u64, climbed: Micros) -> u64 {
        share_of(capacity, self.share(climbed))
    }

    /// Returns the time after the start at which `needed` of `capacity` is available. `needed` is at most `capacity`.
    pub(crate) fn reaches(&self, capacity: u64, needed: u64) -> Micros {
        let (start, over) = (self.start(), self.over().get());
        match self.shape {
            RampShape::Linear => {
                let (mut low, mut high) = (start, WHOLE);
                while low < high {
                    let middle = (low + high) / 2;
                    if share_of(capacity, middle) >= needed {
                        high = middle;
                    } else {
                        low = middle + 1;
                    }
                }
                Micros::new(((low - start) * over).div_ceil(WHOLE - start))
            }
            RampShape::Steps => {
                let step =
                    |i: &u64| share_of(capacity, start + (WHOLE - start) * STEPS[*i as usize] / 8) >= needed;
                let quarters = (0..4).find(step).unwrap_or(4);
                Micros::new((quarters * over).div_ceil(4))
            }
        }
    }
}

/// Returns a share of `capacity`, at least one permit. Computed in two parts, so that no product is too large for a double.
fn share_of(capacity: u64, share: u64) -> u64 {
    (capacity / WHOLE * share + capacity % WHOLE * share / WHOLE).max(1)
}

fn millis(time: Micros) -> u32 {
    u32::try_from(time.get().div_ceil(1_000)).unwrap_or(u32::MAX)
}

/// Warm-up state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Warmth {
    /// Instant of the first admission after the key was last cold.
    pub(crate) since: Micros,
    /// Instant of the last admission.
    pub(crate) last: Micros,
    /// Instant at which the key is cold again.
    pub(crate) until: Micros,
}

impl Warmth {
    /// Returns the time since the start of the warm-up; `None` if the key is cold.
    pub(crate) fn climbed(&self, warm_up: &WarmUp, now: Micros) -> Option<Micros> {
        (now < self.last.plus(warm_up.idle_for())).then(|| now.since(self.since))
    }

    /// Returns the state after an admission at `now`.
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

    /// Checks that there is no room just before the returned time, and that there is room at it.
    #[test]
    fn reaches_is_the_earliest_time_with_room() {
        let warm_ups = [
            WarmUp::new(20, Duration::from_millis(30_000)).unwrap(),
            WarmUp::new(20, Duration::from_millis(4_001)).unwrap().in_steps(),
            WarmUp::new(1, Duration::from_millis(1)).unwrap(),
            WarmUp::new(99, Duration::from_secs(86_400)).unwrap(),
        ];
        for warm_up in warm_ups {
            for capacity in [1, 2, 7, 100, 9_999, 10_001, 1_000_000_000_000] {
                for needed in [1, 2, capacity / 3, capacity / 2 + 1, capacity - 1, capacity] {
                    let needed = needed.clamp(1, capacity);
                    let after = warm_up.reaches(capacity, needed);
                    assert!(warm_up.limit(capacity, after) >= needed, "{warm_up:?} {capacity} {needed}");
                    if after > Micros::ZERO {
                        let before = after.since(Micros::new(1));
                        assert!(warm_up.limit(capacity, before) < needed, "{warm_up:?} {capacity} {needed}");
                    }
                }
            }
        }
    }

    #[test]
    fn does_not_get_warmer_if_the_clock_steps_back() {
        let warm_up =
            WarmUp::new(20, Duration::from_secs(4)).unwrap().for_horizon(Micros::from_secs(1)).unwrap();
        let first = Warmth::admitted(None, &warm_up, Micros::from_secs(100));
        let second = Warmth::admitted(Some(first), &warm_up, Micros::from_secs(98));
        assert_eq!((second.since, second.last), (Micros::from_secs(100), Micros::from_secs(100)));
        assert_eq!(second.climbed(&warm_up, Micros::from_secs(98)), Some(Micros::ZERO));
        assert_eq!(second.climbed(&warm_up, Micros::from_secs(160)), None);
    }
}
