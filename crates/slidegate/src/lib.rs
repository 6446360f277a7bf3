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
//! A denial is an answer, not an error. It says which rule denied, and the exact wait until it would not:
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
//! # Layout
//!
//! One decision goes one way: a [`Request`] meets the [`Rules`], which make an [`Checks`]; a [`Store`] judges it
//! and answers a [`Verdicts`]; the [`Limiter`] puts the two together into a [`Decision`].
//!
//! - What is allowed: [`Quota`], [`Algorithm`], [`Count`]. What applies: [`Rule`], [`Rules`], [`AdHoc`].
//! - What changes a limit while it runs: [`WarmUp`] after a cold start, [`Adaptive`] by the load, which an [`AdaptiveController`] sees.
//! - What decides: [`State`] is one key and the algorithms over it, pure; [`evaluate`] is an ask over several.
//! - Who counts: [`Store`] is the contract, [`MemoryStore`] keeps it in this process, `RedisStore` in Redis.
//! - What makes a store tougher or faster is a store around it: `Failover`, `Coalesce`, [`DenyCache`], `Lease`.
//! - In a server: `tower` is a layer around a service, `http` what HTTP servers need around a decision.
//! - Time is a parameter: [`Clock`], [`SystemClock`], and [`ManualClock`] for tests.
//!
//! # Features
//!
//! `yaml` (default): rules from a file. `schema`: the file's JSON Schema. `redis`: counts that processes share. `tower`: a
//! layer for axum, tonic and hyper. `http`: clients behind proxies, paths in one spelling, rate-limit headers. `host`: what
//! this host has in use, for limits that follow it.
//! Without default features it is the pure core and the memory store.

#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr)]
pub(crate) mod adaptive_controller;
mod common;
mod dynamic;

mod algorithm;
mod checks;
mod decision;
mod error;
#[cfg(all(fuzzing, feature = "redis"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "http")]
pub mod http;
mod key;
mod limiter;
mod quota;
mod request;
mod reservation;
mod rules;
mod settlement;
mod shadow_change;
mod store;
#[cfg(feature = "tower")]
pub mod tower;
mod verdict;

pub use crate::adaptive_controller::AdaptiveController;
pub use crate::algorithm::State;
pub use crate::algorithm::audit::{Audit, Discrepancy};
pub use crate::algorithm::evaluate::{States, evaluate};
pub use crate::checks::{Check, Checks, Encoding, MAX_ID, OnError, RequestId};
pub use crate::common::clock::{Clock, ManualClock, Sleep, SystemClock};
pub use crate::common::micros::Micros;
#[cfg(feature = "yaml")]
pub use crate::common::yaml;
pub use crate::decision::{Decision, Limit};
#[cfg(feature = "host")]
pub use crate::dynamic::adaptive::Host;
pub use crate::dynamic::adaptive::{Adaptive, AdaptivePolicy, HostLoad, Latencies, Load, Thresholds};
pub use crate::dynamic::warm_up::{RampShape, WarmUp};
pub use crate::error::{Error, Fault, Problem};
pub use crate::key::{Key, MAX_PLAIN_VALUE};
pub use crate::limiter::{Limiter, MAX_CHECKS};
pub use crate::quota::{Algorithm, Count, MAX_LIMIT, MAX_SLICES, MAX_WINDOW, MIN_WINDOW, Quota};
pub use crate::request::{AdHocLimit, MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE, PLAIN_ATTRIBUTE, Request};
pub use crate::reservation::key::{
    MAX_RESERVATION_KEYS, MIN_RESERVATION_SECRET, ReservationKey, ReservationKeys,
};
pub use crate::reservation::{MAX_RESERVATION, Reservation};
pub use crate::rules::*;
pub use crate::settlement::{Correction, Entry, Receipt, Settled, Settlement};
pub use crate::shadow_change::ShadowChange;
#[cfg(feature = "redis")]
pub use crate::store::coalesce::{Coalesce, CoalesceOptions, CoalesceStats};
pub use crate::store::deny_cache::{DEFAULT_MAX_DENIALS, DenyCache, DenyCacheStats};
#[cfg(feature = "redis")]
pub use crate::store::failover::{
    BreakerState, Failover, FailoverOptions, FailoverStats, JournalStats, ServerStats,
};
#[cfg(feature = "redis")]
pub use crate::store::lease::{Lease, LeaseStats};
pub use crate::store::memory::{
    DEFAULT_MAX_KEYS, DEFAULT_MAX_NOTE_BYTES, MemoryOptions, MemoryStats, MemoryStore, OnFull,
};
#[cfg(feature = "redis")]
pub use crate::store::redis::{
    BATCH_BOUNDS, CALL_BOUNDS, CallStats, DEFAULT_PREFIX, GcReport, KeyPage, MAX_AUDITED, MAX_BATCH_SIZE,
    MemoryUsage, RedisMode, RedisOptions, RedisSentinel, RedisStore, RedisTls, RedisTopology,
    RuleMemoryUsage, ServerMemory, ServerReport, SharedText,
};
#[cfg(feature = "redis")]
pub use crate::store::stack::{Stack, StackOptions};
pub use crate::store::{Listener, Store};
pub use crate::verdict::{
    BatchVerdicts, Inspection, MAX_INSPECTED, Outcome, Precision, Source, Verdict, Verdicts, WindowEntry,
};
