//! Several nodes on the same servers, their callers, and what these were told.
#![allow(dead_code, reason = "shared by tests that each use some of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slidegate::{
    Algorithm, Ask, Check, Clock, Encoding, Guard, GuardOptions, Key, Micros, OnError, Quota, RedisOptions,
    RedisStore, Source, Store, SystemClock,
};

use crate::conformance::Dice;

/// One answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub node: usize,
    pub key: u64,
    pub cost: u64,
    /// When it was recorded, by the server or by the node's estimate of it; meaningful if it was allowed.
    pub at: u64,
    pub allowed: bool,
    pub source: Source,
    /// By the callers' clock.
    pub asked: u64,
    pub answered: u64,
}

/// What is asked: keys 0 to 5, each with its own quota, decided in the process while the store cannot.
pub(crate) const KEYS: u64 = 6;
/// Allowed while the store cannot decide, and refused.
pub(crate) const OPEN: u64 = 6;
pub(crate) const CLOSED: u64 = 7;
/// Windows that outlast a failover, decided in the process meanwhile, and refused.
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
        LONG | LONG_CLOSED => quota(1_500, 6_000),
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

/// Nodes that are asked as fast as they answer, until they are stopped.
pub(crate) struct Deployment {
    pub nodes: Vec<Guard>,
    callers: Vec<tokio::task::JoinHandle<Vec<Told>>>,
    stop: Arc<AtomicBool>,
    pub clock: SystemClock,
    _turn: tokio::sync::MutexGuard<'static, ()>,
}

impl Deployment {
    /// `callers` on each of `nodes`, with a pause of up to `pause` between asks.
    pub(crate) async fn start(
        nodes: usize,
        callers: u64,
        pause: Duration,
        redis: &RedisOptions,
        options: &GuardOptions,
    ) -> Self {
        Self::asking(&[0, 1, 2, 3, 4, 5], nodes, callers, pause, redis, options).await
    }

    /// The same of these keys, one as often as the other.
    pub(crate) async fn asking(
        keys: &'static [u64],
        nodes: usize,
        callers: u64,
        pause: Duration,
        redis: &RedisOptions,
        options: &GuardOptions,
    ) -> Self {
        let mut deployment = Deployment {
            nodes: Vec::new(),
            callers: Vec::new(),
            stop: Arc::default(),
            clock: SystemClock::new(),
            _turn: crate::processes::TURN.lock().await,
        };
        for _ in 0..nodes {
            let guard = Guard::new(RedisStore::with_options(redis).unwrap(), options.clone()).unwrap();
            // A cluster has to be found before its nodes can be told.
            guard.store().ping().await.unwrap();
            guard.start();
            deployment.nodes.push(guard);
        }
        // They know of each other.
        for _ in 0..500 {
            let all = deployment.nodes.iter().flat_map(|guard| guard.stats().servers);
            if all.clone().count() >= nodes && all.clone().all(|server| server.nodes == nodes as u64) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for (n, guard) in deployment.nodes.iter().enumerate() {
            for caller in 0..callers {
                let (guard, stop, clock) =
                    (guard.clone(), Arc::clone(&deployment.stop), deployment.clock.clone());
                let mut dice = Dice::new(n as u64 * 1_000 + caller + 1);
                deployment.callers.push(tokio::spawn(async move {
                    let mut told = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        told.push(Told { node: n, ..ask(keys, &guard, &clock, &mut dice).await });
                        let wait = dice.below(pause.as_micros() as u64 + 1);
                        tokio::time::sleep(Duration::from_micros(wait)).await;
                    }
                    told
                }));
            }
        }
        deployment
    }

    /// Ends the callers; everything they were told, in the order of answers.
    pub(crate) async fn stop(self) -> Vec<Told> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for caller in self.callers {
            all.extend(caller.await.unwrap());
        }
        for guard in &self.nodes {
            guard.leave().await;
        }
        all.sort_by_key(|told: &Told| told.answered);
        all
    }
}

async fn ask(keys: &[u64], guard: &Guard, clock: &SystemClock, dice: &mut Dice) -> Told {
    let key = keys[dice.below(keys.len() as u64) as usize];
    let cost = if key == 1 { 1 + dice.below(3) } else { 1 };
    let ask = Ask::one(check(key, cost)).unwrap();
    let asked = clock.now().get();
    let readings = guard.admit(std::slice::from_ref(&ask)).await.unwrap();
    let answered = clock.now().get();
    let verdict = readings[0].verdicts[0];
    // Of a single check, only what nobody judged is allowed and not charged.
    let allowed = !verdict.outcome.refuses();
    Told {
        node: 0,
        key,
        cost,
        at: verdict.entry.at.get(),
        allowed,
        source: readings[0].source,
        asked,
        answered,
    }
}

/// The most permits allowed in any window of `window`, by the instants that `at` gives.
pub(crate) fn peak(told: &[Told], key: u64, window: u64, at: impl Fn(&Told) -> u64) -> u64 {
    let mut charged: Vec<(u64, u64)> = told
        .iter()
        .filter(|told| told.allowed && told.key == key)
        .map(|told| (at(told), told.cost))
        .collect();
    charged.sort_unstable();
    let (mut first, mut held, mut peak) = (0, 0, 0);
    for (at, cost) in &charged {
        held += cost;
        while charged[first].0 + window <= *at {
            held -= charged[first].1;
            first += 1;
        }
        peak = peak.max(held);
    }
    peak
}

/// The most permits in any window of a key as the nodes dated them; of a fixed window, between two turns of it; of a
/// bucket, the most that was ever missing from it.
pub(crate) fn worst(told: &[Told], key: u64) -> u64 {
    let window = quota(key).window().get();
    match quota(key).algorithm() {
        Algorithm::FixedWindow => {
            let mut windows = std::collections::HashMap::new();
            for told in told.iter().filter(|told| told.allowed && told.key == key) {
                *windows.entry(told.at / window).or_insert(0) += told.cost;
            }
            windows.into_values().max().unwrap_or(0)
        }
        Algorithm::TokenBucket { .. } => {
            let mut all: Vec<&Told> = told.iter().filter(|told| told.allowed && told.key == key).collect();
            all.sort_by_key(|told| told.at);
            let (mut missing, mut last, mut most) = (0.0f64, 0, 0.0f64);
            for told in all {
                let refilled = (told.at - last) as f64 * quota(key).limit() as f64 / window as f64;
                missing = (missing - refilled).max(0.0) + told.cost as f64;
                (last, most) = (told.at, most.max(missing));
            }
            // What is missing by less than a millionth is reckoning.
            (most - 1e-6).ceil() as u64
        }
        _ => peak(told, key, window, |told| told.at),
    }
}

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn micros(d: Duration) -> u64 {
    Micros::from(d).get()
}

/// Waits for what happens in its own time while the runtime goes on, and names it if it does not.
pub(crate) async fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(ms(10)).await;
    }
    panic!("not in 20 s: {what}");
}
