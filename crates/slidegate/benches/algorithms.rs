//! Which algorithm to use: what each lets through, denies without need, takes and costs, in one table.
//!
//! `cargo bench -p slidegate --bench algorithms` prints it, as Markdown. Nothing is timed: what is counted is the same on
//! every machine, and what is weighed nearly so. Time is moved by hand, also that of Redis (libfaketime), so a window is full of
//! admissions that are spread over all of it.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::collections::VecDeque;
use std::time::Duration;

use slidegate::{
    Algorithm, Check, Checks, Encoding, Key, ManualClock, MemoryStore, Micros, Outcome, Quota, RedisOptions,
    RedisStore, State, Store, WarmUp,
};
use slidegate_testkit::{FakeTime, RedisServer};

const SECOND: u64 = 1_000_000;

/// "100 per second".
const LIMIT: u64 = 100;

/// The limits at which a full key is weighed.
const WEIGHED: [u64; 3] = [10, 1_000, 10_000];

/// Decisions over which the calls of Redis are counted.
const COUNTED: u64 = 500;

#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    algorithm: Algorithm,
    encoding: Encoding,
    warms: bool,
}

fn ways(limit: u64) -> Vec<Way> {
    let way = |name, algorithm| Way { name, algorithm, encoding: Encoding::Zset, warms: false };
    let exact = way("`sliding-window`", Algorithm::SlidingWindow);
    vec![
        exact,
        Way { name: "`sliding-window`, packed", encoding: Encoding::Packed, ..exact },
        Way { name: "`sliding-window`, `warm-up`", warms: true, ..exact },
        way("`time-slice`, 10 slices", Algorithm::TimeSlice { slices: 10 }),
        way("`fixed-window`", Algorithm::FixedWindow),
        way("`token-bucket`, burst of the limit", Algorithm::TokenBucket { burst: limit }),
        way("`concurrency`, never given back", Algorithm::Concurrency),
    ]
}

impl Way {
    fn quota(self, limit: u64, window: u64) -> Quota {
        let quota = Quota::new(limit, Duration::from_micros(window)).unwrap();
        let quota = quota.with_algorithm(self.algorithm).unwrap();
        // It has climbed when the first second has passed.
        let climb = WarmUp::new(20, Duration::from_secs(1)).unwrap();
        if self.warms { quota.with_warm_up(climb).unwrap() } else { quota }
    }

    fn ask(self, key: Key, quota: Quota) -> Checks {
        Checks::one(Check { encoding: self.encoding, ..Check::new(key, quota, 1) }).unwrap()
    }
}

/// What was let through in the window that ends now.
#[derive(Default)]
struct Watch {
    admitted: VecDeque<u64>,
    most: usize,
    asked: u64,
    needless: u64,
}

impl Watch {
    fn see(&mut self, now: u64, charged: bool) {
        while self.admitted.front().is_some_and(|at| at + SECOND <= now) {
            self.admitted.pop_front();
        }
        self.asked += 1;
        if charged {
            self.admitted.push_back(now);
            self.most = self.most.max(self.admitted.len());
        } else {
            self.needless += u64::from((self.admitted.len() as u64) < LIMIT);
        }
    }
}

/// When somebody asks, in microseconds: at random, more than fits, and the worst that each algorithm can be met with.
fn traffics() -> Vec<Vec<u64>> {
    let mut dice = 0x9E37_79B9_7F4A_7C15u64;
    let mut below = |n: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % n
    };
    let (mut random, mut now) = (Vec::new(), 10 * SECOND);
    while now < 310 * SECOND {
        // Half as much again as fits, in lumps.
        now += if below(5) == 0 { below(50_000) } else { below(3_000) };
        random.push(now);
    }
    // All at once at the end of one second and at the beginning of the next; then a rest.
    let around =
        |turn: u64| [turn - 10_000, turn + 10_000].into_iter().flat_map(|at| (at..at + 200).step_by(2));
    let turns = (1..100).flat_map(|n| around((10 + 3 * n) * SECOND)).collect();
    // A full burst, and then one every millisecond.
    let drip = (0..20).flat_map(|n| {
        let start = (10 + 7 * n) * SECOND + 345_678;
        (start..start + 100).chain((start + 1_000..start + 3 * SECOND).step_by(1_000))
    });
    vec![random, turns, drip.collect()]
}

/// The most in any window, and the share of asks that were denied though they would have fitted the exact window.
fn accuracy(way: Way) -> (usize, f64) {
    let quota = way.quota(LIMIT, SECOND);
    let (mut most, mut asked, mut needless) = (0, 0, 0);
    for traffic in traffics() {
        let (mut state, mut watch) = (State::new(&quota), Watch::default());
        for now in traffic {
            watch.see(now, state.admit(Micros::new(now), &quota, 1).outcome == Outcome::Charged);
        }
        (most, asked, needless) = (most.max(watch.most), asked + watch.asked, needless + watch.needless);
    }
    (most, needless as f64 * 100.0 / asked as f64)
}

/// How many of 200 pass within 20 milliseconds around the turn of a second, after a busy minute.
fn around_a_turn(way: Way) -> usize {
    let quota = way.quota(LIMIT, SECOND);
    let mut state = State::new(&quota);
    // One each second keeps it warm, and leaves the rest free.
    for second in 10..70 {
        state.admit(Micros::new(second * SECOND), &quota, 1);
    }
    let mut passed = |at: u64| {
        let asks = (0..LIMIT).map(|n| Micros::new(at + n));
        asks.filter(|now| state.admit(*now, &quota, 1).outcome == Outcome::Charged).count()
    };
    passed(80 * SECOND - 10_000) + passed(80 * SECOND + 9_800)
}

/// An instant for each of `limit` admissions, spread over a window of an hour, and so on.
fn spread(limit: u64) -> impl Iterator<Item = u64> {
    (0..).map(move |n| (2 * limit + n) * 3_600 * SECOND / limit)
}

/// Bytes of a full key in memory.
async fn in_memory(way: Way, limit: u64) -> usize {
    const KEYS: usize = 50;
    let clock = ManualClock::at(Micros::ZERO);
    let store = MemoryStore::with_clock(clock.clone(), 1_000);
    let quota = way.quota(limit, 3_600 * SECOND);
    let keys: Vec<Key> = (0..KEYS).map(|n| Key::new("weighed", [("n", n.to_string().as_str())])).collect();
    let empty = store.stats().bytes;
    for now in spread(limit).take(limit as usize) {
        clock.set(Micros::new(now));
        for key in &keys {
            store.admit(&[way.ask(key.clone(), quota)]).await.unwrap();
        }
    }
    (store.stats().bytes - empty) / KEYS
}

/// Redis, with a clock that stands still.
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

    /// Calls by scripts since it was last asked.
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

    /// Bytes of all that is stored.
    fn bytes(&mut self) -> u64 {
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut self.client).unwrap();
        let usage = |key: String| {
            let mut usage = redis::cmd("MEMORY");
            usage.arg("USAGE").arg(key).arg("SAMPLES").arg(0).query::<u64>(&mut self.client).unwrap()
        };
        keys.into_iter().map(usage).sum()
    }

    async fn ask(&mut self, ask: &Checks, now: u64) -> Outcome {
        self.time.stop_at(now);
        self.store.admit(std::slice::from_ref(ask)).await.unwrap()[0].verdicts[0].outcome
    }

    /// Bytes of a full key.
    async fn weigh(&mut self, ask: &Checks, limit: u64) -> u64 {
        redis::cmd("FLUSHALL").exec(&mut self.client).unwrap();
        for now in spread(limit).take(limit as usize) {
            self.ask(ask, now).await;
        }
        self.bytes()
    }

    /// Calls for one that is admitted as another leaves, and for one that is denied: of the key that was just weighed.
    async fn count(&mut self, ask: &Checks, limit: u64) -> [f64; 2] {
        // What is counted in slices leaves up to a slice later.
        let mut later = spread(limit).skip((limit + limit / 10) as usize + 1);
        self.calls();
        for now in later.by_ref().take(COUNTED as usize) {
            assert_eq!(self.ask(ask, now).await, Outcome::Charged);
        }
        let admitted = self.calls();
        // Nothing leaves meanwhile, but the clock moves on, as clocks do.
        let mut instants = later.next().unwrap()..;
        while self.ask(ask, instants.next().unwrap()).await == Outcome::Charged {}
        self.calls();
        for now in instants.take(COUNTED as usize) {
            assert_eq!(self.ask(ask, now).await, Outcome::Denied);
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
    for (n, way) in ways(LIMIT).into_iter().enumerate() {
        let (most, needless) = accuracy(way);
        let mut row = format!("| {} | {most} | {needless:.1} % | {} ", way.name, around_a_turn(way));
        let mut calls = [0.0; 2];
        for limit in WEIGHED {
            let way = ways(limit)[n];
            let ask = way.ask(Key::new("weighed", []), way.quota(limit, 3_600 * SECOND));
            row += &format!("| {} | {} ", in_memory(way, limit).await, redis.weigh(&ask, limit).await);
            if limit == WEIGHED[WEIGHED.len() - 1] {
                calls = redis.count(&ask, limit).await;
            }
        }
        println!("{row}| {:.1} | {:.1} |", calls[0], calls[1]);
    }
}
