//! Clocks: time as a parameter. No other file may read a system clock; `clippy.toml` enforces this.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::Micros;

/// Source of time for the memory store and [`Limiter::until_ready`](crate::Limiter::until_ready).
///
/// Instants are microseconds since the Unix epoch, so that a `fixed-window` of a minute restarts on the minute. After a
/// step of the clock, a later call may return an earlier instant: every algorithm tolerates a clock that goes back, and
/// is then stricter, never looser.
pub trait Clock: Send + Sync {
    /// Returns the present instant.
    fn now(&self) -> Micros;

    /// Completes once `wait` has passed on this clock.
    fn sleep(&self, wait: Micros) -> Sleep;
}

/// A future that completes when its wait has passed; see [`Clock::sleep`].
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Real time: reads the wall clock once, on creation, and then advances with the processor's monotonic counter.
///
/// It never steps, even if the wall clock is set.
#[derive(Clone, Debug)]
pub struct SystemClock {
    monotonic: quanta::Clock,
    /// Value of the counter on creation.
    start: u64,
    epoch: Micros,
}

impl SystemClock {
    /// Creates a clock that agrees with the wall clock at this moment.
    #[expect(clippy::disallowed_methods, reason = "this is the place that reads the time")]
    pub fn new() -> Self {
        let monotonic = quanta::Clock::new();
        let start = monotonic.raw();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        SystemClock { monotonic, start, epoch: wall.into() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    #[expect(clippy::disallowed_methods, reason = "this is the place that reads the time")]
    fn now(&self) -> Micros {
        let elapsed = self.monotonic.delta_as_nanos(self.start, self.monotonic.raw());
        // Round down: an instant is the microsecond that contains it.
        self.epoch.plus(Micros::new(elapsed / 1_000))
    }

    fn sleep(&self, wait: Micros) -> Sleep {
        Box::pin(futures_timer::Delay::new(wait.into()))
    }
}

/// Clock that moves only when a caller moves it, for tests and simulations.
///
/// Clones share one time.
///
/// ```
/// use slidegate::{Clock, ManualClock, Micros};
/// let clock = ManualClock::at(Micros::from_secs(100));
/// clock.advance(Micros::from_secs(5));
/// assert_eq!(clock.now(), Micros::from_secs(105));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<Mutex<Manual>>);

#[derive(Debug, Default)]
struct Manual {
    now: Micros,
    sleepers: Vec<Waker>,
}

impl ManualClock {
    /// Creates a clock that shows `now`.
    pub fn at(now: Micros) -> Self {
        let clock = ManualClock::default();
        clock.set(now);
        clock
    }

    /// Moves the clock to `now`, which may be in the past, and wakes all sleepers whose wait has passed.
    pub fn set(&self, now: Micros) {
        let sleepers = {
            let mut time = self.0.lock();
            time.now = now;
            std::mem::take(&mut time.sleepers)
        };
        sleepers.into_iter().for_each(Waker::wake);
    }

    /// Moves the clock forward by `step`.
    pub fn advance(&self, step: Micros) {
        let now = self.now().plus(step);
        self.set(now);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Micros {
        self.0.lock().now
    }

    fn sleep(&self, wait: Micros) -> Sleep {
        let (clock, until) = (self.clone(), self.now().plus(wait));
        Box::pin(poll_fn(move |context| {
            let mut time = clock.0.lock();
            if time.now >= until {
                return Poll::Ready(());
            }
            time.sleepers.push(context.waker().clone());
            Poll::Pending
        }))
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Micros {
        (**self).now()
    }

    fn sleep(&self, wait: Micros) -> Sleep {
        (**self).sleep(wait)
    }
}
