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
//! A refusal is an answer, not an error. It says which rule refused, and the exact wait until it would not:
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
//! let refused = limiter.acquire(login).await?;
//! assert_eq!(refused.denied_by(), Some("login-per-ip"));
//! println!("try again in {}", refused.retry_after());
//! # Ok::<(), slidegate::Error>(()) }).unwrap();
//! ```
//!
//! # Layout
//!
//! One decision goes one way: a [`Request`] meets the [`Rules`], which make an [`Ask`]; a [`Store`] judges it
//! and answers a [`Reading`]; the [`Limiter`] puts the two together into a [`Decision`].
//!
//! - What is allowed: [`Quota`], [`Algorithm`], [`Count`]. What applies: [`Rule`], [`Rules`], [`AdHoc`].
//! - What changes a limit while it runs: [`WarmUp`] after a cold start, [`Adaptive`] by the load, which an [`Adapter`] sees.
//! - What decides: [`State`] is one key and the algorithms over it, pure; [`judge`] is an ask over several.
//! - Who counts: [`Store`] is the contract, [`MemoryStore`] keeps it in this process, `RedisStore` in Redis.
//! - What makes a store tougher or faster is a store around it: `Guard`, `Coalesce`, [`DenyCache`], `Lease`.
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

mod adaptive;
mod algorithm;
mod ask;
mod audit;
mod clock;
#[cfg(feature = "redis")]
mod coalesce;
mod decision;
mod deny_cache;
mod error;
#[cfg(all(fuzzing, feature = "redis"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "redis")]
mod guard;
#[cfg(feature = "redis")]
mod hot_keys;
#[cfg(feature = "http")]
pub mod http;
mod judge;
mod key;
#[cfg(feature = "redis")]
mod lease;
mod limiter;
mod memory;
mod micros;
#[cfg(feature = "redis")]
mod parts;
mod quota;
#[cfg(feature = "redis")]
mod redis;
mod request;
mod reservation;
mod reservation_key;
mod rules;
mod siblings;
mod store;
mod tally;
mod together;
#[cfg(feature = "tower")]
pub mod tower;
mod verdict;
mod warm_up;
#[cfg(feature = "yaml")]
pub mod yaml;

#[cfg(feature = "redis")]
pub use self::redis::{
    BATCH_BOUNDS, CALL_BOUNDS, CallStats, Cleaned, DEFAULT_PREFIX, KeyPage, MAX_AUDITED, MAX_BATCH_SIZE,
    RedisMode, RedisOptions, RedisSentinel, RedisStore, RedisTls, RedisTopology, RuleWeight, ServerMemory,
    ServerReport, SharedText, Weight,
};
#[cfg(feature = "host")]
pub use adaptive::Host;
pub use adaptive::{Adapter, Adaptive, Bands, HostLoad, Latencies, Load, Pilot};
pub use algorithm::{Entry, State};
pub use ask::{Ask, Check, Encoding, MAX_ID, OnError, RequestId};
pub use audit::{Audit, Discrepancy};
pub use clock::{Clock, ManualClock, Sleep, SystemClock};
#[cfg(feature = "redis")]
pub use coalesce::{Coalesce, CoalesceOptions, CoalesceStats};
pub use decision::{Decision, Limit, Source};
pub use deny_cache::{DEFAULT_MAX_REFUSALS, DenyCache, DenyCacheStats};
pub use error::{Error, Fault, Problem};
#[cfg(feature = "redis")]
pub use guard::{BreakerState, Guard, GuardOptions, GuardStats, MirrorStats, ServerStats};
#[cfg(feature = "redis")]
pub use hot_keys::{HotKeyOptions, HotKeys};
pub use judge::{States, judge};
pub use key::{Key, MAX_PLAIN_VALUE};
#[cfg(feature = "redis")]
pub use lease::{Lease, LeaseStats};
pub use limiter::{Limiter, MAX_CHECKS};
pub use memory::{DEFAULT_MAX_KEYS, DEFAULT_MAX_NOTE_BYTES, MemoryOptions, MemoryStats, MemoryStore, OnFull};
pub use micros::Micros;
pub use quota::{Algorithm, Count, MAX_LIMIT, MAX_SLICES, MAX_WINDOW, MIN_WINDOW, Quota};
pub use request::{MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE, Own, PLAIN_ATTRIBUTE, Request};
pub use reservation::{MAX_RESERVATION, Reservation};
pub use reservation_key::{MAX_RESERVATION_KEYS, MIN_RESERVATION_SECRET, ReservationKey, ReservationKeys};
pub use rules::*;
pub use store::{Correction, Listener, Settlement, Store};
pub use verdict::{
    Counted, Inspection, MAX_INSPECTED, Outcome, Precision, Reading, Readings, Receipt, Settled, Verdict,
};
pub use warm_up::{Climb, WarmUp};
