//! Exact, atomic, explainable rate limiting: at most `limit` permits in *any* interval of length `window`, to
//! the microsecond.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use slidegate::Limiter;
//!
//! let limiter = Limiter::per_minute(100)?;
//! let decision = limiter.acquire("alice").await?;
//! assert!(decision.allowed());
//! # Ok::<(), slidegate::Error>(()) }).unwrap();
//! ```
//!
//! The [`guide`] continues from here, step by step. A denial is a decision, not an error. It names the rule that denied
//! and the exact wait until the request would be allowed:
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use slidegate::{Limiter, MemoryStore, Request, Rules};
//!
//! let rules = Rules::from_yaml("
//! rules:
//!   - { name: login-per-ip,   match: { api: /login }, key: [ip],   limit: 3, window: 5s, count: attempts }
//!   - { name: login-per-user, match: { api: /login }, key: [user], limit: 5, window: 60s, count: attempts }
//! ")?;
//! let limiter = Limiter::new(MemoryStore::new(), rules);
//! let login = Request::new([("api", "/login"), ("ip", "1.2.3.4"), ("user", "alice")]);
//! for _ in 0..3 {
//!     assert!(limiter.acquire(login.clone()).await?.allowed());
//! }
//! let denied = limiter.acquire(login).await?;
//! assert_eq!(denied.denied_by(), Some("login-per-ip"));
//! println!("try again in {}", denied.retry_after());
//! # Ok::<(), slidegate::Error>(()) }).unwrap();
//! ```
//!
//! # Path of one decision
//!
//! 1. The caller passes a [`Request`] to the [`Limiter`].
//! 2. The [`Rules`] turn the request into [`Checks`]: one key, quota and cost for each rule that applies.
//! 3. A [`Store`] evaluates the checks atomically and returns [`Verdicts`].
//! 4. The limiter returns a [`Decision`], which combines rules, checks and verdicts.
//!
//! # Modules
//!
//! A module uses only modules above it in this table. `python3 scripts/layers.py --graph` prints the layers, and CI fails on a
//! cycle.
//!
//! | layer | module | contents |
//! |---|---|---|
//! | 0 | `error` | [`Error`], [`Fault`] (the reason why a store could not decide), [`Problem`] (one mistake in a file). |
//! | 0 | `key` | [`Key`]: the injective text that names a counter. |
//! | 0 | `words` | Enums whose variants are words in files and replies. |
//! | 1 | `common` | [`Clock`], [`SystemClock`], [`ManualClock`] for tests, [`Micros`], YAML with line numbers, declared sections of files, path spelling. |
//! | 2 | `dynamic` | Limits that change while they run: [`WarmUp`] after a cold start, [`Adaptive`] by load. |
//! | 2 | `settlement` | [`Settlement`]: the correction of a past admission. |
//! | 3 | `quota` | [`Quota`]: limit, window, [`Algorithm`], [`Count`]. |
//! | 3 | `verdict` | [`Verdicts`]: the reply of a store. |
//! | 4 | `checks` | [`Checks`]: the input of a store. |
//! | 5 | `algorithm` | [`algorithm::State`]: one key and the algorithms over it, without I/O or clock. [`algorithm::evaluate`]: checks of several keys. |
//! | 5 | `request` | [`Request`]: attributes or a resource, the number of permits, an optional id. |
//! | 6 | `keyed` | [`KeyedLimiter`]: one quota for each key of any type, without rules and futures. |
//! | 6 | `rules` | [`Rule`], [`Rules`], [`AdHoc`]: matching, selection, overrides, parsing of the rules file. |
//! | 7 | `reservation` | [`Reservation`]: names an admission so that it can be settled later, also by another process. |
//! | 8 | `decision` | [`Decision`], and one [`Limit`] for each rule that applied. |
//! | 8 | `store` | [`Store`], [`MemoryStore`], `RedisStore`, and the stores that wrap another store: `Failover`, `Coalesce`, `DenyCache`, `Lease`. |
//! | 9 | `fuzzing` | Entry points for `fuzz/`; not part of the product. |
//! | 9 | `http` | Client address behind proxies, path spelling, rate-limit headers. |
//! | 9 | `limiter` | [`Limiter`]: request, rules, store, decision. |
//! | 10 | `adaptive_controller` | [`AdaptiveController`]: reads the load and sets the factors of adaptive rules. |
//! | 10 | `tower` | Middleware for axum, tonic and hyper. |
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `yaml` (default) | Rules from a YAML file. |
//! | `schema` | The JSON Schema of that file; includes `yaml`. |
//! | `redis` | Counters that several processes share. |
//! | `tower` | A layer for axum, tonic and hyper. |
//! | `http` | Clients behind proxies, path spelling, rate-limit headers. |
//! | `host` | CPU and memory use of this host, for adaptive limits. |
//!
//! Without default features the crate contains the algorithms, the rules, the limiter and the memory store.

#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr)]
#[macro_use]
mod error;

pub(crate) mod adaptive_controller;
mod common;
mod dynamic;

#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only the store in Redis uses all of it"))]
pub mod algorithm;
mod checks;
mod decision;
#[cfg(all(fuzzing, feature = "redis"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod guide;
#[cfg(feature = "http")]
pub mod http;
mod key;
mod keyed;
mod limiter;
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only the store in Redis uses all of it"))]
mod quota;
#[cfg(feature = "redis")]
pub mod remote {
    //! Operations that [`Failover`](crate::Failover) needs of a store that several nodes share.
    pub use crate::store::remote::*;
}
mod request;
mod reservation;
pub mod rules;
mod settlement;
mod shadow_change;
pub mod store;
#[cfg(feature = "tower")]
pub mod tower;
mod verdict;
#[doc(hidden)]
pub mod words;

pub mod adaptive {
    //! Parts of adaptive limits: the load that is read, and the policy that computes a factor from it.

    #[cfg(feature = "host")]
    pub use crate::dynamic::adaptive::Host;
    pub use crate::dynamic::adaptive::{AdaptivePolicy, HostLoad, Latencies, Load, Thresholds};
}

pub mod bounds {
    //! Bounds of input, and default sizes.

    pub use crate::checks::MAX_ID;
    pub use crate::key::MAX_PLAIN_VALUE;
    pub use crate::limiter::MAX_CHECKS;
    pub use crate::quota::{MAX_LIMIT, MAX_SLICES, MAX_WINDOW, MIN_WINDOW};
    pub use crate::request::{MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE};
    pub use crate::reservation::MAX_RESERVATION;
    pub use crate::reservation::key::{MAX_RESERVATION_KEYS, MIN_RESERVATION_SECRET};
    pub use crate::rules::{MAX_ADAPTIVE, MAX_KEY_ATTRIBUTES, MAX_LEASE, MAX_RULES, MAX_TOGETHER};
    pub use crate::store::deny_cache::DEFAULT_MAX_DENIALS;
    pub use crate::store::memory::{DEFAULT_MAX_KEYS, DEFAULT_MAX_NOTE_BYTES};
    pub use crate::verdict::MAX_INSPECTED;
}

#[cfg(feature = "redis")]
pub mod redis {
    //! Counters in Redis that several processes share, and the stores around them: failover, coalescing, leases.

    pub use crate::store::coalesce::{Coalesce, CoalesceOptions, CoalesceStats};
    pub use crate::store::failover::{
        BreakerState, Failover, FailoverOptions, FailoverStats, JournalStats, ServerStats,
    };
    pub use crate::store::lease::{Lease, LeaseStats};
    pub use crate::store::redis::{
        BATCH_BOUNDS, Broadcast, CALL_BOUNDS, CallStats, DEFAULT_PREFIX, GcReport, KeyPage, MAX_AUDITED,
        MAX_BATCH_SIZE, MemoryUsage, RedisMode, RedisOptions, RedisPassword, RedisSentinel, RedisStore,
        RedisTls, RedisTopology, RuleMemoryUsage, ServerMemory, ServerReport, SharedText,
    };
    pub use crate::store::stack::{Stack, StackOptions};
}

pub use crate::adaptive_controller::AdaptiveController;
pub use crate::checks::{Encoding, OnError, RequestId};
pub use crate::common::clock::{Clock, ManualClock, Sleep, SystemClock};
pub use crate::common::micros::Micros;
#[cfg(feature = "yaml")]
#[doc(hidden)]
pub use crate::common::section;
#[cfg(feature = "yaml")]
pub use crate::common::yaml;
pub use crate::decision::{Decision, Limit};
pub use crate::dynamic::adaptive::Adaptive;
pub use crate::dynamic::warm_up::{RampShape, WarmUp};
pub use crate::error::{Error, Fault, Problem};
pub use crate::key::Key;
pub use crate::keyed::{Allowed, Denied, KeyedLimiter};
pub use crate::limiter::Limiter;
pub use crate::quota::{Algorithm, Count, Quota};
pub use crate::request::{AdHocLimit, Request};
pub use crate::reservation::Reservation;
pub use crate::reservation::key::{ReservationKey, ReservationKeys};
pub use crate::rules::{
    AdHoc, Bounds, Explanation, MismatchReason, Mode, Pattern, Rule, RuleMatch, Rules, Unmatched,
};
pub use crate::settlement::Settled;
pub use crate::shadow_change::ShadowChange;
pub use crate::store::Store;
pub use crate::store::memory::{MemoryOptions, MemoryStore, OnFull};
pub use crate::verdict::Source;

pub(crate) use crate::algorithm::State;
pub(crate) use crate::algorithm::audit::{Audit, Discrepancy};
pub(crate) use crate::checks::{Check, Checks};
pub(crate) use crate::settlement::{Correction, Entry, Receipt, Settlement};
pub(crate) use crate::store::Listener;
#[cfg(feature = "redis")]
pub(crate) use crate::store::failover::Failover;
#[cfg(feature = "redis")]
pub(crate) use crate::store::lease::Lease;
#[cfg(feature = "redis")]
pub(crate) use crate::store::redis::RedisStore;
pub(crate) use crate::verdict::{
    BatchVerdicts, Inspection, MAX_INSPECTED, Outcome, Precision, Verdict, Verdicts, WindowEntry,
};
