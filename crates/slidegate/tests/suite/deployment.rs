//! Helper: several nodes on the same servers, their callers, and the answers that the callers got.
#![allow(dead_code, reason = "tests share this module, and each uses a part of it")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slidegate::remote::RemoteStore;
use slidegate::{
    Algorithm, Clock, Encoding, Key, Micros, OnError, Quota, Source, Store, SystemClock,
    redis::{Failover, FailoverOptions, RedisOptions, RedisStore},
    store::{Check, Checks},
};

use crate::conformance::Rng;
use crate::watchdog::Watchdog;

/// One call and its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallRecord {
    pub node: usize,
    pub key: u64,
    pub cost: u64,
    /// Time of the admission by the clock of the server, or by the node's estimate of it. Meaningful if `allowed`.
    pub at: u64,
    pub allowed: bool,
    pub source: Source,
    /// Time of the decision, by the same clock as `at`.
    pub decided_at: u64,
    /// True if the store could not have admitted the same cost again.
    pub full: bool,
    /// Start of the call, by the clock of the callers. `answered` is its end.
    pub started: u64,
    pub answered: u64,
}

/// Number of keys: keys 0 to 5 have a quota each, and the node decides them alone while the store cannot.
pub(crate) const KEYS: u64 = 6;
/// A key that is allowed while the store cannot decide, and a key that is denied.
pub(crate) const OPEN: u64 = 6;
pub(crate) const CLOSED: u64 = 7;
/// Keys with windows longer than a failover: the node decides one of them meanwhile, and denies the other.
pub(crate) const LONG: u64 = 8;
pub(crate) const LONG_CLOSED: u64 = 9;

pub(crate) fn quota(key: u64) -> Quota {
    let quota = |limit, millis| Quota::new(limit, Duration::from_millis(millis)).unwrap();
    match key {
        0 => quota(60, 1_000),
        1 => quota(100, 700),
        2 => quota(45, 1_000),
        3 => quota(50, 1_000).with_algorithm(Algorithm::TimeSlice { slices: 10 }).unwrap(),
        4 => quota(70, 1_000).with_algorithm(Algorithm::FixedWindow).unwrap(),
        5 => quota(60, 1_000).with_algorithm(Algorithm::TokenBucket { burst: 30 }).unwrap(),
        LONG | LONG_CLOSED => quota(1_000, 20_000),
        _ => quota(40, 1_000),
    }
}

pub(crate) fn check(key: u64, cost: u64) -> Check {
    let encoding = if key == 2 { Encoding::Packed } else { Encoding::Zset };
    let on_error = match key {
        OPEN => OnError::Open,
        CLOSED | LONG_CLOSED => OnError::Closed,
        _ => OnError::Local,
    };
    Check { encoding, on_error: Some(on_error), ..Check::new(name(key), quota(key), cost) }
}

pub(crate) fn name(key: u64) -> Key {
    Key::new("shared", [("n", key.to_string().as_str())])
}

/// Nodes and their callers, which send requests until they are stopped.
pub(crate) struct Deployment {
    pub nodes: Vec<Failover>,
    callers: Vec<tokio::task::JoinHandle<()>>,
    calls: Arc<Mutex<Vec<CallRecord>>>,
    stop: Arc<AtomicBool>,
    pub clock: SystemClock,
    /// Runs until the callers stop.
    pub watchdog: Arc<Watchdog>,
}

impl Deployment {
    /// Starts `callers` on each of `nodes`, with a pause of up to `pause` between requests.
    pub(crate) async fn start(
        nodes: usize,
        callers: u64,
        pause: Duration,
        redis: &RedisOptions,
        options: &FailoverOptions,
    ) -> Self {
        Self::start_with_keys(&[0, 1, 2, 3, 4, 5], nodes, callers, pause, redis, options).await
    }

    /// Starts callers that request these keys equally often. Returns when the nodes know of each other and have
    /// answered requests.
    pub(crate) async fn start_with_keys(
        keys: &'static [u64],
        nodes: usize,
        callers: u64,
        pause: Duration,
        redis: &RedisOptions,
        options: &FailoverOptions,
    ) -> Self {
        let clock = SystemClock::new();
        let mut deployment = Deployment {
            nodes: Vec::new(),
            callers: Vec::new(),
            // Large enough not to be moved while a test looks at the memory in use.
            calls: Arc::new(Mutex::new(Vec::with_capacity(1 << 18))),
            stop: Arc::default(),
            watchdog: Arc::new(Watchdog::start(&clock)),
            clock,
        };
        for _ in 0..nodes {
            let failover = Failover::new(RedisStore::with_options(redis).unwrap(), options.clone()).unwrap();
            // The nodes of a cluster are found by the first call.
            failover.store().ping().await.unwrap();
            failover.start();
            deployment.nodes.push(failover);
        }
        soon("the nodes know of each other", || {
            let all = || deployment.nodes.iter().flat_map(|failover| failover.stats().servers);
            all().count() >= nodes && all().all(|server| server.nodes == nodes as u64)
        })
        .await;
        for (n, failover) in deployment.nodes.iter().enumerate() {
            for caller in 0..callers {
                let (failover, stop, clock) =
                    (failover.clone(), Arc::clone(&deployment.stop), deployment.clock.clone());
                let mut rng = Rng::new(n as u64 * 1_000 + caller + 1);
                let all = Arc::clone(&deployment.calls);
                deployment.callers.push(tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let call = CallRecord { node: n, ..send(keys, &failover, &clock, &mut rng).await };
                        all.lock().unwrap_or_else(PoisonError::into_inner).push(call);
                        let wait = rng.below(pause.as_micros() as u64 + 1);
                        tokio::time::sleep(Duration::from_micros(wait)).await;
                    }
                }));
            }
        }
        deployment.until("every node answers", |calls| calls.len() >= 10 * callers as usize).await;
        deployment
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now().get()
    }

    /// Waits until `holds` is true, for each node, of its calls that start from now on.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&[&CallRecord]) -> bool) {
        let (since, first) = (self.now(), self.calls.lock().unwrap_or_else(PoisonError::into_inner).len());
        soon(what, || {
            let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            let new = || calls[first..].iter().filter(|call| call.started >= since);
            (0..self.nodes.len())
                .all(|node| holds(&new().filter(|call| call.node == node).collect::<Vec<_>>()))
        })
        .await;
    }

    /// Waits until the store has denied each key on each node, so that every node knows it to be at its limit.
    pub(crate) async fn until_full(&self, keys: &[u64]) {
        self.until("the store denies every key on every node", |calls| {
            keys.iter().all(|key| calls.iter().any(|call| call.key == *key && call.full))
        })
        .await;
    }

    /// Waits until each node has given up the server of the key, which does not answer: calls that started before may
    /// end first, and several failures in a row open the breaker.
    pub(crate) async fn until_given_up(&self, key: u64) {
        self.until("every node decides alone", |calls| {
            calls.iter().filter(|call| call.key == key && call.source != Source::Store).count() >= 20
        })
        .await;
    }

    /// Waits until the store has answered new calls of each node for the key.
    pub(crate) async fn until_by_store(&self, key: u64) {
        self.until("every node is answered by the store", |calls| {
            calls.iter().filter(|call| call.key == key && call.source == Source::Store).count() >= 20
        })
        .await;
    }

    /// Stops the callers and returns all answers in order.
    pub(crate) async fn stop(self) -> Vec<CallRecord> {
        self.stop.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.await.unwrap();
        }
        for failover in &self.nodes {
            failover.leave().await;
        }
        let mut all = std::mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner));
        all.sort_by_key(|call: &CallRecord| call.answered);
        all
    }
}

/// Sends a request for one of the keys, and returns its record as if node 0 had sent it.
pub(crate) async fn send<R: RemoteStore>(
    keys: &[u64],
    failover: &Failover<R>,
    clock: &impl Clock,
    rng: &mut Rng,
) -> CallRecord {
    let key = keys[rng.below(keys.len() as u64) as usize];
    let cost = if key == 1 { 1 + rng.below(3) } else { 1 };
    let checks = Checks::one(check(key, cost)).unwrap();
    let started = clock.now().get();
    let batch_verdicts = failover.admit(std::slice::from_ref(&checks)).await.unwrap();
    let answered = clock.now().get();
    let (verdicts, verdict) = (&batch_verdicts[0], batch_verdicts[0].verdicts[0]);
    CallRecord {
        node: 0,
        key,
        cost,
        at: verdict.entry.at.get(),
        // A single check that is allowed and not charged was not evaluated at all.
        allowed: !verdict.outcome.denies(),
        source: verdicts.source,
        decided_at: verdicts.at.get(),
        full: verdicts.source == Source::Store && verdict.used + cost > verdict.limit,
        started,
        answered,
    }
}

/// Returns the most permits allowed in any window of length `window`, by the instants that `at` returns.
pub(crate) fn peak(calls: &[CallRecord], key: u64, window: u64, at: impl Fn(&CallRecord) -> u64) -> u64 {
    let mut charged: Vec<(u64, u64)> = calls
        .iter()
        .filter(|call| call.allowed && call.key == key)
        .map(|call| (at(call), call.cost))
        .collect();
    charged.sort_unstable();
    let (mut first, mut used, mut peak) = (0, 0, 0);
    for (at, cost) in &charged {
        used += cost;
        while charged[first].0 + window <= *at {
            used -= charged[first].1;
            first += 1;
        }
        peak = peak.max(used);
    }
    peak
}

/// Returns the most permits in any window of a key, by the instants of the nodes. A fixed window is counted
/// from its start to its end; of a bucket, it is the most permits that were ever missing.
pub(crate) fn worst(calls: &[CallRecord], key: u64) -> u64 {
    let window = quota(key).window().get();
    match quota(key).algorithm() {
        Algorithm::FixedWindow => {
            let mut windows = std::collections::HashMap::new();
            for call in calls.iter().filter(|call| call.allowed && call.key == key) {
                *windows.entry(call.at / window).or_insert(0) += call.cost;
            }
            windows.into_values().max().unwrap_or(0)
        }
        Algorithm::TokenBucket { .. } => {
            let mut all: Vec<&CallRecord> =
                calls.iter().filter(|call| call.allowed && call.key == key).collect();
            all.sort_by_key(|call| call.at);
            let (mut missing, mut last, mut most) = (0.0f64, 0, 0.0f64);
            for call in all {
                let refilled = (call.at - last) as f64 * quota(key).limit() as f64 / window as f64;
                missing = (missing - refilled).max(0.0) + call.cost as f64;
                (last, most) = (call.at, most.max(missing));
            }
            // A difference of less than a millionth is a rounding error.
            (most - 1e-6).ceil() as u64
        }
        _ => peak(calls, key, window, |call| call.at),
    }
}

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn micros(d: Duration) -> u64 {
    Micros::from(d).get()
}

/// Waits until `holds` returns true, while other tasks run. Panics with `what` if it does not within a minute.
#[expect(clippy::disallowed_methods, reason = "the limit is on real time")]
pub(crate) async fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not in 60 s: {what}");
        tokio::time::sleep(ms(5)).await;
    }
}
