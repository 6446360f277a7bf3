//! Quotas: a limit, a window, and the algorithm that counts them.
//!
//! A [`Quota`] is validated on creation, so no algorithm sees a limit of zero or a window that overflows. All numbers stay
//! below 2^51, because Redis scripts compute in doubles and must agree with Rust to the last permit.

mod algorithm;

use std::time::Duration;

pub use self::algorithm::Algorithm;
#[cfg(feature = "redis")]
pub(crate) use self::algorithm::Storage;
use crate::error::check_between;
use crate::{Error, Micros, WarmUp};

/// Largest limit, burst, or number of permits in one request.
pub const MAX_LIMIT: u64 = 1_000_000_000_000;

/// Longest window: 366 days.
pub const MAX_WINDOW: Micros = Micros::from_secs(366 * 24 * 3600);

/// Shortest window: a millisecond.
pub const MIN_WINDOW: Micros = Micros::from_millis(1);

/// Largest number of slices of a `time-slice` window.
pub const MAX_SLICES: u32 = 10_000;

/// Longest slice: 90 days. Up to this length, a thousand sequence numbers per microsecond of a slice are exact in a double.
const MAX_SLICE: Micros = Micros::from_secs(90 * 24 * 3600);

/// Largest total; integers up to this value are exact in every store.
pub(crate) const MAX_TOTAL: u64 = (1 << 51) - 1;

crate::words! {
    /// The events that a rule counts.
    pub enum Count default Admitted {
        /// Admitted requests only.
        Admitted = "admitted",
        /// Admitted and denied requests. So a client that keeps retrying stays denied.
        Attempts = "attempts",
    }
}

/// A validated limit over a window.
///
/// ```
/// use slidegate::{Algorithm, Quota};
/// let quota = Quota::per_second(100)?.with_algorithm(Algorithm::TokenBucket { burst: 20 })?;
/// assert_eq!(quota.capacity(), 20);
/// assert!(Quota::per_second(0).is_err());
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    limit: u64,
    window: Micros,
    algorithm: Algorithm,
    count: Count,
    /// True if the limit follows the load: a cost above the limit is then denied for now, not for ever.
    adapts: bool,
    warm_up: Option<WarmUp>,
    /// Greatest common divisor of limit and window.
    divisor: u64,
}

impl Quota {
    /// Placeholder for checks that need a quota but never count.
    pub(crate) const PLACEHOLDER: Quota = Quota {
        limit: 1,
        window: Micros::from_secs(24 * 3600),
        algorithm: Algorithm::SlidingWindow,
        count: Count::Admitted,
        adapts: false,
        warm_up: None,
        divisor: 1,
    };

    /// Creates a quota of at most `limit` permits in any interval of length `window`.
    pub fn new(limit: u64, window: Duration) -> Result<Self, Error> {
        Self::checked(limit, window.into(), Algorithm::default())
    }

    /// Creates a quota of `limit` per second.
    pub fn per_second(limit: u64) -> Result<Self, Error> {
        Self::new(limit, Duration::from_secs(1))
    }

    /// Creates a quota of `limit` per minute.
    pub fn per_minute(limit: u64) -> Result<Self, Error> {
        Self::new(limit, Duration::from_secs(60))
    }

    /// Creates a quota of `limit` per hour.
    pub fn per_hour(limit: u64) -> Result<Self, Error> {
        Self::new(limit, Duration::from_secs(3600))
    }

    /// Returns the same limit with another algorithm.
    pub fn with_algorithm(self, algorithm: Algorithm) -> Result<Self, Error> {
        let quota = Quota { count: self.count, ..Self::checked(self.limit, self.window, algorithm)? };
        match self.warm_up {
            Some(warm_up) => quota.with_warm_up(warm_up),
            None => Ok(quota),
        }
    }

    /// Returns the same limit, counting admissions or attempts.
    pub fn with_count(self, count: Count) -> Self {
        Quota { count, ..self }
    }

    /// Returns the same limit with a warm-up: after a cold start it rises to the full limit.
    pub fn with_warm_up(self, warm_up: WarmUp) -> Result<Self, Error> {
        ensure!(
            !self.algorithm.refills(),
            "`warm-up` cannot be combined with algorithm: token-bucket: use `burst` instead"
        );
        Ok(Quota { warm_up: Some(warm_up.for_horizon(self.horizon())?), ..self })
    }

    /// Returns the same limit without warm-up.
    pub(crate) fn without_warm_up(self) -> Self {
        Quota { warm_up: None, ..self }
    }

    /// Multiplies the limit, and the burst of a bucket, by `factor` ten-thousandths; the result is at least one permit.
    pub(crate) fn scaled(self, factor: u32) -> Self {
        let scale = |n: u64| {
            let factor = u64::from(factor);
            (n / 10_000 * factor + n % 10_000 * factor / 10_000).clamp(1, MAX_LIMIT)
        };
        let limit = scale(self.limit);
        let algorithm = self.algorithm.with_burst(scale(self.capacity()));
        Quota { limit, algorithm, adapts: true, divisor: gcd(limit, self.window.get()), ..self }
    }

    /// Returns the stricter of two quotas of the same counter: the lower limit, and for buckets the lower rate and the lower
    /// burst. A cost above the result is denied for now, not for ever.
    pub(crate) fn stricter(self, other: &Quota) -> Self {
        let limit = self.limit.min(other.limit);
        let quota = match (self.algorithm.burst(), other.algorithm.burst()) {
            (Some(burst), Some(other_burst)) => {
                let rate = |a: &Quota, b: &Quota| u128::from(a.limit) * u128::from(b.window.get());
                let slower = if rate(other, &self) < rate(&self, other) { *other } else { self };
                let Quota { limit, window, divisor, .. } = slower;
                let algorithm = self.algorithm.with_burst(burst.min(other_burst));
                Quota { limit, window, divisor, algorithm, ..self }
            }
            _ => Quota { limit, divisor: gcd(limit, self.window.get()), ..self },
        };
        Quota { adapts: true, ..quota }
    }

    /// Returns an error unless the quota can be scaled by every value up to `factor` and still be counted exactly.
    pub(crate) fn check_scales(&self, factor: u32) -> Result<(), Error> {
        let Some(burst) = self.scaled(factor).algorithm.burst() else { return Ok(()) };
        ensure!(
            burst.checked_mul(self.window.get()).is_some_and(|units| units <= MAX_TOTAL),
            "a burst of up to {burst} per {} cannot be counted exactly at every rate that `adaptive` may choose: use a \
             smaller burst or a shorter window",
            self.window
        );
        Ok(())
    }

    fn checked(limit: u64, window: Micros, algorithm: Algorithm) -> Result<Self, Error> {
        check_limit("limit", limit)?;
        check_between("window", window, MIN_WINDOW, MAX_WINDOW)?;
        let divisor = gcd(limit, window.get());
        let quota = Quota { limit, window, algorithm, divisor, ..Quota::PLACEHOLDER };
        if let Some(slices) = algorithm.slices() {
            check_slices(slices, window)?;
        }
        if let Some(burst) = algorithm.burst() {
            check_limit("burst", burst)?;
            let (_, per) = quota.rate();
            ensure!(
                burst.checked_mul(per).is_some_and(|units| units <= MAX_TOTAL),
                "a burst of {burst} at {limit} per {window} cannot be counted exactly: \
                 use a smaller burst, or a limit that divides the window"
            );
        }
        Ok(quota)
    }

    /// Returns the limit per window. For a token bucket this is the refill; see [`Quota::capacity`].
    #[inline]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the window.
    #[inline]
    pub fn window(&self) -> Micros {
        self.window
    }

    /// Returns the algorithm.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the events that are counted.
    #[inline]
    pub fn count(&self) -> Count {
        self.count
    }

    /// Returns the warm-up, if there is one.
    #[inline]
    pub fn warm_up(&self) -> Option<WarmUp> {
        self.warm_up
    }

    /// Returns true if the limit depends on the load: see `adaptive`.
    #[inline]
    pub fn adapts(&self) -> bool {
        self.adapts
    }

    /// Returns true if permits are held until they are released: see [`Algorithm::Concurrency`].
    #[inline]
    pub fn is_held(&self) -> bool {
        self.algorithm.is_held()
    }

    /// Returns the most permits that can be in use at once: the burst of a token bucket, otherwise the limit.
    #[inline]
    pub fn capacity(&self) -> u64 {
        self.algorithm.burst().unwrap_or(self.limit)
    }

    /// Returns the longest time for which an admission can affect decisions; no `retry_after` is longer.
    ///
    /// For a token bucket it is the time to fill; otherwise the windows in which an admission counts, plus one slice if there
    /// are slices.
    pub fn horizon(&self) -> Micros {
        if let Some(burst) = self.algorithm.burst() {
            let (permits, per) = self.rate();
            return Micros::new((burst * per).div_ceil(permits));
        }
        let windows = Micros::new(self.window.get() * self.algorithm.aligned_windows().max(1));
        if self.algorithm.is_sliced() { windows.plus(self.grain()) } else { windows }
    }

    /// Returns the instant from which admissions up to `now` no longer affect decisions.
    pub(crate) fn expired_by(&self, now: Micros) -> Micros {
        let aligned = self.algorithm.aligned_windows() > 0;
        let from = if aligned { now.get() - now.get() % self.window.get() } else { now.get() };
        Micros::new(from).plus(self.horizon())
    }

    /// Creates a token bucket from its refill in lowest terms, as a store has saved it.
    pub(crate) fn bucket(permits: u64, per: u64, burst: u64) -> Option<Self> {
        let sound = permits > 0 && per > 0 && burst > 0 && gcd(permits, per) == 1;
        let units = burst.checked_mul(per).filter(|&units| sound && units <= MAX_TOTAL);
        let (window, algorithm) = (Micros::new(per), Algorithm::TokenBucket { burst });
        units.map(|_| Quota { limit: permits, window, algorithm, ..Quota::PLACEHOLDER })
    }

    /// Returns the resolution to which instants are rounded: a slice, or a microsecond.
    pub(crate) fn grain(&self) -> Micros {
        self.algorithm.slices().map_or(Micros::new(1), |slices| slice(self.window, slices))
    }

    /// Returns the refill of a bucket in lowest terms: permits, and microseconds.
    pub(crate) fn rate(&self) -> (u64, u64) {
        (self.limit / self.divisor, self.window.get() / self.divisor)
    }
}

fn check_limit(name: &str, limit: u64) -> Result<(), Error> {
    check_between(name, limit, 1, MAX_LIMIT)
}

pub(crate) fn check_slices(slices: u32, window: Micros) -> Result<(), Error> {
    let fits = u64::from(slices) <= window.get() && slice(window, slices) <= MAX_SLICE;
    ensure!(
        (2..=MAX_SLICES).contains(&slices) && fits,
        "slices must be between 2 and {MAX_SLICES}, and each slice between 1us and {MAX_SLICE} long, not {slices}"
    );
    Ok(())
}

pub(crate) fn slice(window: Micros, slices: u32) -> Micros {
    Micros::new(window.get().div_ceil(u64::from(slices.max(1))))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
