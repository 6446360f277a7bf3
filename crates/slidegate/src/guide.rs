//! Guide for newcomers: from one limit to several processes. This module has no code.
//!
//! # One limit
//!
//! A [`Limiter`](crate::Limiter) counts permits under a key. Without a rules file, a key is any text:
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use slidegate::Limiter;
//!
//! let limiter = Limiter::per_minute(2)?;
//! assert!(limiter.acquire("alice").await?.allowed());
//! assert!(limiter.acquire("alice").await?.allowed());
//! let denied = limiter.acquire("alice").await?;
//! assert!(!denied.allowed());
//! assert!(limiter.acquire("bob").await?.allowed(), "each key has its own count");
//! println!("retry in {}", denied.retry_after());
//! # Ok::<(), slidegate::Error>(()) }).unwrap();
//! ```
//!
//! # Inside one program
//!
//! A [`KeyedLimiter`](crate::KeyedLimiter) needs no rules and no runtime. Keys have any hashable type, and a check returns at
//! once:
//!
//! ```
//! use slidegate::{KeyedLimiter, Quota};
//!
//! let limiter: KeyedLimiter<u32> = KeyedLimiter::new(Quota::per_second(1)?);
//! assert!(limiter.check(&7).is_ok());
//! println!("retry in {}", limiter.check(&7).unwrap_err().retry_after());
//! # Ok::<(), slidegate::Error>(())
//! ```
//!
//! # Several rules
//!
//! [`Rules`](crate::Rules) match the attributes of a request. A request is allowed if every rule that matches allows it, and
//! it is charged to all of them or to none:
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use slidegate::{Limiter, MemoryStore, Quota, Request, Rule, Rules};
//!
//! let rules = Rules::new([
//!     Rule::new("per-user", Quota::per_minute(100)?)?.per(["user"])?,
//!     Rule::new("all", Quota::per_second(1_000)?)?,
//! ])?;
//! let limiter = Limiter::new(MemoryStore::new(), rules);
//! let decision = limiter.acquire(Request::new([("user", "alice")]).permits(3)).await?;
//! let used: Vec<(&str, u64)> = decision.limits().map(|limit| (limit.rule(), limit.used())).collect();
//! assert_eq!(used, [("per-user", 3), ("all", 3)]);
//! # Ok::<(), slidegate::Error>(()) }).unwrap();
//! ```
//!
//! # Costs that are known later
//!
//! A caller that does not know the cost in advance reserves permits, and settles the
//! [`Reservation`](crate::Reservation) with the real cost:
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use slidegate::{Limiter, Request, Settled};
//!
//! let limiter = Limiter::per_minute(1_000)?;
//! let decision = limiter.acquire(Request::from("alice").permits(800)).await?;
//! let reservation = decision.reservation().expect("the request was allowed");
//! assert_eq!(limiter.settle(&reservation, 350).await?, Settled::Done);
//! # Ok::<(), slidegate::Error>(()) }).unwrap();
//! ```
//!
//! # Time in tests
//!
//! A store takes its clock as a parameter. Tests move a [`ManualClock`](crate::ManualClock) instead of sleeping:
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use slidegate::{Limiter, ManualClock, MemoryStore, Micros, Quota, Request, Rule, Rules};
//!
//! let clock = ManualClock::at(Micros::from_secs(1));
//! let rules = Rules::new([Rule::new("one", Quota::per_second(1)?)?])?;
//! let limiter = Limiter::new(MemoryStore::with_clock(clock.clone(), 1_000), rules);
//! let request = || Request::new([("user", "alice")]);
//! assert!(limiter.acquire(request()).await?.allowed());
//! assert!(!limiter.acquire(request()).await?.allowed());
//! clock.advance(Micros::from_secs(1));
//! assert!(limiter.acquire(request()).await?.allowed());
//! # Ok::<(), slidegate::Error>(()) }).unwrap();
//! ```
//!
//! # Several processes
//!
//! With the feature `redis`, processes share their counts. `slidegate::redis` has the store and its options; the usual stack is
//! a Redis store within failover, coalescing, a deny cache and leases. The limiter is used in the same way.
//!
//! # Where to go next
//!
//! - [`store`](crate::store) has the traits and types for a store of your own.
//! - [`algorithm`](crate::algorithm) has the pure algorithms, without clock and I/O.
//! - The feature `tower` adds middleware for axum, tonic and hyper.
