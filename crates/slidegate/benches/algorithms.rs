//! Comparison of the algorithms in one table: accuracy, needless denials, memory, and calls of Redis.
//!
//! `cargo bench -p slidegate --bench algorithms` prints the table as Markdown. Nothing is timed: the counts are the same on
//! every machine, and the memory sizes nearly so. The benchmark moves the clock by hand, also that of Redis (libfaketime),
//! so that a full window contains admissions spread over all of it.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::collections::VecDeque;
use std::time::Duration;

use slidegate::{
    Algorithm, Encoding, Key, ManualClock, MemoryStore, Micros, Quota, Store, WarmUp,
    algorithm::State,
    redis::{RedisOptions, RedisStore},
    store::{Check, Checks, Outcome},
};
use slidegate_testkit::{FakeTime, RedisServer};

const SECOND: u64 = 1_000_000;

/// "100 per second".
const LIMIT: u64 = 100;

/// Limits at which the size of a full key is measured.
const WEIGHED: [u64; 3] = [10, 1_000, 10_000];

/// Number of decisions over which the calls of Redis are counted.
const COUNTED: u64 = 500;

#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    algorithm: Algorithm,
    encoding: Encoding,
    warms: bool,
}

fn variants(limit: u64) -> Vec<Variant> {
    let variant = |name, algorithm| Variant { name, algorithm, encoding: Encoding::Zset, warms: false };
    let exact = variant("`sliding-window`", Algorithm::SlidingWindow);
    vec![
        exact,
        Variant { name: "`sliding-window`, packed", encoding: Encoding::Packed, ..exact },
        Variant { name: "`sliding-window`, `warm-up`", warms: true, ..exact },
        variant("`time-slice`, 10 slices", Algorithm::TimeSlice { slices: 10 }),
        variant("`fixed-window`", Algorithm::FixedWindow),
        variant("`sliding-counter`", Algorithm::SlidingCounter),
        variant("`token-bucket`, burst of the limit", Algorithm::TokenBucket { burst: limit }),
        variant("`concurrency`, never given back", Algorithm::Concurrency),
    ]
}

impl Variant {
    fn quota(self, limit: u64, window: u64) -> Quota {
        let quota = Quota::new(limit, Duration::from_micros(window)).unwrap();
        let quota = quota.with_algorithm(self.algorithm).unwrap();
        // The warm-up is complete after the first second.
        let warm_up = WarmUp::new(20, Duration::from_secs(1)).unwrap();
        if self.warms { quota.with_warm_up(warm_up).unwrap() } else { quota }
    }

    fn checks(self, key: Key, quota: Quota) -> Checks {
        Checks::one(Check { encoding: self.encoding, ..Check::new(key, quota, 1) }).unwrap()
    }
}

/// Admissions in the window that ends now, and totals.
#[derive(Default)]
struct Watch {
    admitted: VecDeque<u64>,
    most: usize,
    requests: u64,
    needless: u64,
}

impl Watch {
    fn see(&mut self, now: u64, charged: bool) {
        while self.admitted.front().is_some_and(|at| at + SECOND <= now) {
            self.admitted.pop_front();
        }
        self.requests += 1;
        if charged {
            self.admitted.push_back(now);
            self.most = self.most.max(self.admitted.len());
        } else {
            self.needless += u64::from((self.admitted.len() as u64) < LIMIT);
        }
    }
}

/// Arrival times in microseconds: random, above capacity, and the worst case of each algorithm.
fn traffics() -> Vec<Vec<u64>> {
    let mut rng = 0x9E37_79B9_7F4A_7C15u64;
    let mut below = |n: u64| {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        rng % n
    };
    let (mut random, mut now) = (Vec::new(), 10 * SECOND);
    while now < 310 * SECOND {
        // Arrivals in clusters, at one and a half times the capacity.
        now += if below(5) == 0 { below(50_000) } else { below(3_000) };
        random.push(now);
    }
    // All at once at the end of one second and at the beginning of the next, then a pause.
    let around =
        |turn: u64| [turn - 10_000, turn + 10_000].into_iter().flat_map(|at| (at..at + 200).step_by(2));
    let turns = (1..100).flat_map(|n| around((10 + 3 * n) * SECOND)).collect();
    // A full burst, and then one request every millisecond.
    let drip = (0..20).flat_map(|n| {
        let start = (10 + 7 * n) * SECOND + 345_678;
        (start..start + 100).chain((start + 1_000..start + 3 * SECOND).step_by(1_000))
    });
    vec![random, turns, drip.collect()]
}

/// Returns the most admissions in any window, and the share of requests that were denied although the sliding window had room.
fn accuracy(variant: Variant) -> (usize, f64) {
    let quota = variant.quota(LIMIT, SECOND);
    let (mut most, mut requests, mut needless) = (0, 0, 0);
    for traffic in traffics() {
        let (mut state, mut watch) = (State::new(&quota), Watch::default());
        for now in traffic {
            watch.see(now, state.admit(Micros::new(now), &quota, 1).outcome == Outcome::Charged);
        }
        (most, requests, needless) =
            (most.max(watch.most), requests + watch.requests, needless + watch.needless);
    }
    (most, needless as f64 * 100.0 / requests as f64)
}

/// Returns how many of 200 requests pass within 20 milliseconds around the turn of a second, after a busy minute.
fn around_a_turn(variant: Variant) -> usize {
    let quota = variant.quota(LIMIT, SECOND);
    let mut state = State::new(&quota);
    // One request per second keeps the key warm, and leaves the rest of the limit free.
    for second in 10..70 {
        state.admit(Micros::new(second * SECOND), &quota, 1);
    }
    let mut passed = |at: u64| {
        let requests = (0..LIMIT).map(|n| Micros::new(at + n));
        requests.filter(|now| state.admit(*now, &quota, 1).outcome == Outcome::Charged).count()
    };
    passed(80 * SECOND - 10_000) + passed(80 * SECOND + 9_800)
}

/// Returns the instants of admissions spread evenly over windows of an hour, `limit` per window.
fn spread(limit: u64) -> impl Iterator<Item = u64> {
    (0..).map(move |n| (2 * limit + n) * 3_600 * SECOND / limit)
}

/// Returns the bytes of a full key in the memory store.
async fn in_memory(variant: Variant, limit: u64) -> usize {
    const KEYS: usize = 50;
    let clock = ManualClock::at(Micros::ZERO);
    let store = MemoryStore::with_clock(clock.clone(), 1_000);
    let quota = variant.quota(limit, 3_600 * SECOND);
    let keys: Vec<Key> = (0..KEYS).map(|n| Key::new("weighed", [("n", n.to_string().as_str())])).collect();
    let empty = store.stats().bytes;
    for now in spread(limit).take(limit as usize) {
        clock.set(Micros::new(now));
        for key in &keys {
            store.admit(&[variant.checks(key.clone(), quota)]).await.unwrap();
        }
    }
    (store.stats().bytes - empty) / KEYS
}

/// Redis server with a clock that the benchmark controls.
struct Redis {
    time: FakeTime,
    store: RedisStore,
    client: redis::Connection,
    _server: RedisServer,
}

impl Redis {
    fn start() -> Self {
        let time = FakeTime::start();
        let server = time.stopped().without_ttl_check();
        let patience = Duration::from_secs(20);
        let options = RedisOptions { response_timeout: patience, ..RedisOptions::new(server.url()) };
        let store = RedisStore::with_options(&options).unwrap();
        Redis { time, store, client: server.client(), _server: server }
    }

    /// Returns the calls made by scripts since the last call of this function.
    fn calls(&mut self) -> u64 {
        let info: String = redis::cmd("INFO").arg("commandstats").query(&mut self.client).unwrap();
        let calls = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let ours = !["eval", "evalsha", "info", "config|resetstat", "config"].contains(&name);
            rest.split(',').next()?.parse::<u64>().ok().filter(|_| ours)
        };
        let sum = info.lines().filter_map(calls).sum();
        redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut self.client).unwrap();
        sum
    }

    /// Returns the bytes of all stored keys.
    fn bytes(&mut self) -> u64 {
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut self.client).unwrap();
        let usage = |key: String| {
            let mut usage = redis::cmd("MEMORY");
            usage.arg("USAGE").arg(key).arg("SAMPLES").arg(0).query::<u64>(&mut self.client).unwrap()
        };
        keys.into_iter().map(usage).sum()
    }

    async fn admit(&mut self, checks: &Checks, now: u64) -> Outcome {
        self.time.stop_at(now);
        self.store.admit(std::slice::from_ref(checks)).await.unwrap()[0].verdicts[0].outcome
    }

    /// Returns the bytes of a full key.
    async fn weigh(&mut self, checks: &Checks, limit: u64) -> u64 {
        redis::cmd("FLUSHALL").exec(&mut self.client).unwrap();
        for now in spread(limit).take(limit as usize) {
            self.admit(checks, now).await;
        }
        self.bytes()
    }

    /// Returns the calls for an admission while another entry leaves, and for a denial, of the key that was just measured.
    async fn count(&mut self, checks: &Checks, limit: u64) -> [f64; 2] {
        // With slices, entries leave up to a slice later.
        let mut later = spread(limit).skip((limit + limit / 10) as usize + 1);
        self.calls();
        for now in later.by_ref().take(COUNTED as usize) {
            assert_eq!(self.admit(checks, now).await, Outcome::Charged);
        }
        let admitted = self.calls();
        // No entry leaves in the meantime, but the clock still moves on.
        let mut instants = later.next().unwrap()..;
        while self.admit(checks, instants.next().unwrap()).await == Outcome::Charged {}
        self.calls();
        for now in instants.take(COUNTED as usize) {
            assert_eq!(self.admit(checks, now).await, Outcome::Denied);
        }
        [admitted, self.calls()].map(|calls| calls as f64 / COUNTED as f64)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut redis = Redis::start();
    let heads = WEIGHED.map(|limit| format!("memory, {limit} | Redis, {limit}")).join(" | ");
    println!(
        "| | most in a window | denied without need | in 20 ms | {heads} | calls, admitted | calls, denied |"
    );
    println!("|---|{}", "---:|".repeat(5 + 2 * WEIGHED.len()));
    for (n, variant) in variants(LIMIT).into_iter().enumerate() {
        let (most, needless) = accuracy(variant);
        let mut row = format!("| {} | {most} | {needless:.1} % | {} ", variant.name, around_a_turn(variant));
        let mut calls = [0.0; 2];
        for limit in WEIGHED {
            let variant = variants(limit)[n];
            let checks = variant.checks(Key::new("weighed", []), variant.quota(limit, 3_600 * SECOND));
            row += &format!("| {} | {} ", in_memory(variant, limit).await, redis.weigh(&checks, limit).await);
            if limit == WEIGHED[WEIGHED.len() - 1] {
                calls = redis.count(&checks, limit).await;
            }
        }
        println!("{row}| {:.1} | {:.1} |", calls[0], calls[1]);
    }
}
