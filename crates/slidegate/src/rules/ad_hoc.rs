//! Ad-hoc limits: requests that give their own limit, and the bounds of those limits.

use compact_str::ToCompactString;

use crate::error::check_between;
use crate::quota::{MAX_LIMIT, MAX_WINDOW, MIN_WINDOW};
use crate::request::{AdHocLimit, check_value};
use crate::{Algorithm, Check, Error, Key, Micros, Quota};

/// Default and bounds of a number that a request may give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds<T> {
    /// The value if the request gives none.
    pub default: T,
    /// The lowest value a request may give.
    pub min: T,
    /// The highest value a request may give.
    pub max: T,
}

/// Bounds of the limits and windows that requests give themselves.
///
/// The counts of a resource belong to its window: the same resource with another window has a separate count. The burst of a
/// bucket has the maximum of a limit, and a minimum of 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdHoc {
    limit: Bounds<u64>,
    window: Bounds<Micros>,
}

impl Default for AdHoc {
    fn default() -> Self {
        AdHoc {
            limit: Bounds { default: 1_000, min: 1, max: 100_000 },
            window: Bounds {
                default: Micros::from_secs(60),
                min: Micros::from_secs(1),
                max: Micros::from_secs(3600),
            },
        }
    }
}

impl AdHoc {
    /// Checks that the bounds are valid for a quota and that every default is within its bounds.
    pub fn new(limit: Bounds<u64>, window: Bounds<Micros>) -> Result<Self, Error> {
        check("limit", limit, 1, MAX_LIMIT)?;
        check("window", window, MIN_WINDOW, MAX_WINDOW)?;
        Ok(AdHoc { limit, window })
    }

    /// Returns the bounds of limits.
    pub fn limit(&self) -> Bounds<u64> {
        self.limit
    }

    /// Returns the bounds of windows.
    pub fn window(&self) -> Bounds<Micros> {
        self.window
    }

    pub(super) fn quota(&self, requested: AdHocLimit) -> Result<Quota, Error> {
        let limit = within("limit", requested.limit, self.limit)?;
        let window = within("window", requested.window, self.window)?;
        let quota = Quota::new(limit, window.into())?;
        let Some(burst) = requested.burst else { return Ok(quota) };
        let burst = within("burst", Some(burst), Bounds { min: 1, ..self.limit })?;
        quota.with_algorithm(Algorithm::TokenBucket { burst })
    }

    pub(super) fn check(&self, resource: &str, requested: AdHocLimit, permits: u64) -> Result<Check, Error> {
        check_value(&"`resource`", resource)?;
        let quota = self.quota(requested)?;
        let window = quota.window().to_compact_string();
        // A new algorithm would start new counts, so a bucket and a window of one resource have different keys.
        let name = if requested.burst.is_some() { "bucket" } else { "resource" };
        let key = Key::new(super::AD_HOC, [(name, resource), ("window", window.as_str())]);
        Ok(Check { rule: u32::MAX, ..Check::new(key, quota, permits) })
    }
}

fn within<T: Copy + Ord + std::fmt::Display>(
    name: &str,
    named: Option<T>,
    bounds: Bounds<T>,
) -> Result<T, Error> {
    let Some(value) = named else { return Ok(bounds.default) };
    check_between(name, value, bounds.min, bounds.max)?;
    Ok(value)
}

fn check<T: Copy + Ord + std::fmt::Display>(
    name: &str,
    bounds: Bounds<T>,
    least: T,
    most: T,
) -> Result<(), Error> {
    let Bounds { default, min, max } = bounds;
    ensure!(
        [least, min, default, max, most].is_sorted(),
        "{name} needs {least} <= min <= default <= max <= {most}, not {min}, {default}, {max}"
    );
    Ok(())
}
