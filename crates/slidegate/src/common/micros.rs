//! Microseconds: the unit of time in every decision.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::Error;

/// A whole number of microseconds: an instant on a store's clock, or a length of time.
///
/// Arithmetic saturates, so no input can make a decision wrap around.
///
/// ```
/// use slidegate::Micros;
/// assert_eq!(Micros::from_millis(1_500).ceil_secs(), 2);
/// assert_eq!(Micros::from_secs(5).to_string(), "5s");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

impl Micros {
    /// Zero microseconds.
    pub const ZERO: Micros = Micros(0);

    /// Creates a value of `n` microseconds.
    pub const fn new(n: u64) -> Self {
        Micros(n)
    }

    /// Creates a value of `n` milliseconds.
    pub const fn from_millis(n: u64) -> Self {
        Micros(n.saturating_mul(1_000))
    }

    /// Creates a value of `n` seconds.
    pub const fn from_secs(n: u64) -> Self {
        Micros(n.saturating_mul(1_000_000))
    }

    /// Returns the number of microseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns whole milliseconds, rounded up: waiting that long is always enough.
    pub const fn ceil_millis(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// Returns whole seconds, rounded up.
    pub const fn ceil_secs(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    pub(crate) const fn plus(self, other: Micros) -> Micros {
        Micros(self.0.saturating_add(other.0))
    }

    /// Returns the time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Micros) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }
}

/// Rounds up, and saturates after half a million years.
impl From<Duration> for Micros {
    fn from(d: Duration) -> Self {
        Micros(u64::try_from(d.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX))
    }
}

impl From<Micros> for Duration {
    fn from(m: Micros) -> Self {
        Duration::from_micros(m.0)
    }
}

/// Parses a length of time such as `250ms`, `5s` or `1h 30m`.
impl FromStr for Micros {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match humantime::parse_duration(text) {
            Ok(duration) => Ok(duration.into()),
            Err(_) => Err(Error::invalid("not a length of time such as 250ms, 5s or 1h")),
        }
    }
}

/// Writes the format of the rules file: `5s`, `1m 30s`, `250ms`.
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 6] = [
            ("d", 86_400_000_000),
            ("h", 3_600_000_000),
            ("m", 60_000_000),
            ("s", 1_000_000),
            ("ms", 1_000),
            ("us", 1),
        ];
        let mut rest = self.0;
        let mut separator = "";
        for (unit, length) in UNITS {
            if rest >= length {
                write!(f, "{separator}{}{unit}", rest / length)?;
                (rest, separator) = (rest % length, " ");
            }
        }
        if self.0 == 0 { f.write_str("0s") } else { Ok(()) }
    }
}
