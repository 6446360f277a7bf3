//! The usual stack of stores around Redis: failover, coalescing, deny cache and leases.

use super::coalesce::{Coalesce, CoalesceOptions};
use crate::error::check_between;
use crate::store::deny_cache::{DEFAULT_MAX_DENIALS, DenyCache};
use crate::{Clock, Error, Failover, Lease, SystemClock};

/// Redis with failover, request coalescing, a deny cache and leases.
///
/// ```no_run
/// # fn run() -> Result<(), slidegate::Error> {
/// use slidegate::{redis::{Failover, FailoverOptions, StackOptions, Stack, RedisStore}, Limiter, Quota, Rule, Rules};
///
/// let redis = Failover::new(RedisStore::new("redis://127.0.0.1:6379")?, FailoverOptions::default())?;
/// let store = Stack::around(redis, &StackOptions::default())?;
/// let rule = Rule::new("per-user", Quota::per_minute(100)?)?.per(["user"])?;
/// let limiter = Limiter::new(store, Rules::new([rule])?);
/// # Ok(()) }
/// ```
pub type Stack = Lease<DenyCache<Coalesce<Failover>>>;

/// Options of a [`Stack`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackOptions {
    /// Enables request coalescing.
    pub coalesce: bool,
    /// Maximum number of requests that wait for a call to one server. Further requests are sent alone.
    pub max_waiting: usize,
    /// Maximum number of cached denials; 0 turns the cache off.
    pub deny_cache: usize,
}

impl Default for StackOptions {
    fn default() -> Self {
        let CoalesceOptions { max_waiting, .. } = CoalesceOptions::default();
        StackOptions { coalesce: true, max_waiting, deny_cache: DEFAULT_MAX_DENIALS }
    }
}

impl StackOptions {
    /// Returns an error that names the option which is out of bounds, as the configuration file spells it.
    pub fn check(&self) -> Result<(), Error> {
        check_between("max-waiting", self.max_waiting, 1, 1_000_000)?;
        check_between("deny-cache", self.deny_cache, 0, 10_000_000)
    }
}

impl Stack {
    /// Builds the stack around a [`Failover`], with the system clock.
    pub fn around(failover: Failover, options: &StackOptions) -> Result<Self, Error> {
        Self::with_clocks(failover, options, &SystemClock::new())
    }

    /// Builds the stack around a [`Failover`], with the given clock for every store in it.
    pub fn with_clocks(
        failover: Failover,
        options: &StackOptions,
        clock: &(impl Clock + Clone + 'static),
    ) -> Result<Self, Error> {
        options.check()?;
        let batch_size = if options.coalesce { failover.store().batch_size() } else { 1 };
        let coalesce = CoalesceOptions { batch_size, max_waiting: options.max_waiting };
        let coalescing = Coalesce::with_clock(failover, coalesce, clock.clone());
        let deny_cache = DenyCache::with_clock(coalescing, options.deny_cache, clock.clone());
        Ok(Lease::with_clock(deny_cache, clock.clone()))
    }
}
