//! Everything that makes hot keys fast, put together.

use super::coalesce::{Coalesce, CoalesceOptions};
use super::failover::within;
use crate::{DEFAULT_MAX_DENIALS, DenyCache, Error, Failover, Lease, SystemClock};

/// Redis, guarded, where callers share calls, a denial is asked for once, and rules may have leases.
///
/// ```no_run
/// # fn run() -> Result<(), slidegate::Error> {
/// use slidegate::{Failover, FailoverOptions, StackOptions, Stack, Limiter, Quota, RedisStore, Rule, Rules};
///
/// let redis = Failover::new(RedisStore::new("redis://127.0.0.1:6379")?, FailoverOptions::default())?;
/// let store = Stack::around(redis, &StackOptions::default())?;
/// let rule = Rule::new("per-user", Quota::per_minute(100)?)?.per(["user"])?;
/// let limiter = Limiter::new(store, Rules::new([rule])?);
/// # Ok(()) }
/// ```
pub type Stack = Lease<DenyCache<Coalesce<Failover>>>;

/// What is done for hot keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackOptions {
    /// Whether callers share calls.
    pub coalesce: bool,
    /// The most callers that wait for the next call to one server; others go alone.
    pub max_waiting: usize,
    /// How many denials are remembered; 0 remembers none.
    pub deny_cache: usize,
}

impl Default for StackOptions {
    fn default() -> Self {
        let CoalesceOptions { max_waiting, .. } = CoalesceOptions::default();
        StackOptions { coalesce: true, max_waiting, deny_cache: DEFAULT_MAX_DENIALS }
    }
}

impl StackOptions {
    /// Checks the numbers.
    pub fn check(&self) -> Result<(), Error> {
        within("max-waiting", self.max_waiting, 1, 1_000_000)?;
        within("deny-cache", self.deny_cache, 0, 10_000_000)
    }
}

impl Stack {
    /// Around a guarded store.
    pub fn around(guard: Failover, options: &StackOptions) -> Result<Self, Error> {
        options.check()?;
        let batch_size = if options.coalesce { guard.store().batch_size() } else { 1 };
        let coalesce = CoalesceOptions { batch_size, max_waiting: options.max_waiting };
        let shared = Coalesce::with_options(guard, coalesce);
        Ok(Lease::new(DenyCache::with_clock(shared, options.deny_cache, SystemClock::new())))
    }
}
