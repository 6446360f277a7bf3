//! Tests every store with one suite: random operations, each answer compared with the pure algorithm.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use slidegate::{
    Algorithm, Count, Encoding, Error, Key, MemoryStore, Quota, RequestId, Settled, Store, SystemClock,
    WarmUp,
    redis::{RedisMode, RedisOptions, RedisStore},
    store::{BatchVerdicts, Check, Checks, Correction, Inspection, Receipt, Settlement},
};
use slidegate_testkit::{FakeTime, Flavour, RedisServer};

use crate::failover_kills::number;
use crate::oracle::Oracle;

/// Small random number generator with a seed, the same on every machine.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Algorithms and encodings of the keys of a trace.
#[derive(Clone, Copy)]
pub(crate) struct Traffic {
    pub encoding: Encoding,
    /// Only exact windows.
    pub exact: bool,
    /// Few kinds of requests, many of each: windows fill with equal entries.
    pub hot: bool,
    /// Keys are never reset and never start anew: the time of an entry identifies it.
    pub steady: bool,
    pub seed: u64,
}

pub(crate) const KEYS: u64 = 8;

/// Key with held permits, and key with a warm-up.
const CONCURRENT: u64 = 6;
const WARMING_UP: u64 = 7;

impl Traffic {
    /// Returns the current quota of key `n`. Limits change, and sometimes the whole quota.
    fn quota(&self, n: u64, flip: u64, rng: &mut Rng) -> Quota {
        let flip = if n == WARMING_UP { 0 } else { flip };
        let window = match (n + flip) % KEYS {
            0 => 2_000,
            1 => 20_000,
            2 => 7_333,
            3 => 60_000,
            4 => 1_000,
            CONCURRENT => 30_000,
            // A sliding counter counts for two windows, and must be cold after 7 ms.
            WARMING_UP if self.seed % 5 == 4 => 3_000,
            WARMING_UP => 5_000,
            _ => 250_000,
        };
        let limit = match rng.below(8) {
            0 => 1 + rng.below(3),
            1 => 1_000_000,
            2 => 40,
            _ => 12,
        };
        // A packed log has its own Redis key, which survives while its rule has another algorithm.
        let packed = self.encoding == Encoding::Packed;
        let quota = Quota::new(limit, Duration::from_micros(window)).unwrap();
        let algorithm = match if flip > 3 && !packed { (n + flip) % KEYS } else { n } {
            _ if self.exact => Algorithm::SlidingWindow,
            2 => Algorithm::TimeSlice { slices: 5 },
            1 if self.seed % 3 == 1 => Algorithm::SlidingCounter,
            3 if self.seed.is_multiple_of(2) => Algorithm::SlidingCounter,
            3 => Algorithm::FixedWindow,
            4 | 5 => Algorithm::TokenBucket { burst: if rng.one_in(10) { 30 } else { 9 } },
            CONCURRENT => Algorithm::Concurrency,
            WARMING_UP if self.seed % 5 == 1 => Algorithm::TimeSlice { slices: 5 },
            WARMING_UP if self.seed % 5 == 2 => Algorithm::FixedWindow,
            WARMING_UP if self.seed % 5 == 3 => Algorithm::Concurrency,
            WARMING_UP if self.seed % 5 == 4 => Algorithm::SlidingCounter,
            _ => Algorithm::SlidingWindow,
        };
        let attempts = n == 1 || (n == 5 || n == WARMING_UP) && self.seed.is_multiple_of(2);
        let count = if attempts { Count::Attempts } else { Count::Admitted };
        let quota = quota.with_algorithm(algorithm).unwrap().with_count(count);
        if n == WARMING_UP { self.warming_up(quota) } else { quota }
    }

    /// Warm-up with a short idle time, so that traces often start cold.
    fn warming_up(&self, quota: Quota) -> Quota {
        let warm_up =
            WarmUp::new(20, Duration::from_millis(20)).unwrap().idle(Duration::from_millis(7)).unwrap();
        quota.with_warm_up(if self.seed.is_multiple_of(2) { warm_up.in_steps() } else { warm_up }).unwrap()
    }

    fn check(&self, n: u64, flip: u64, rng: &mut Rng) -> Check {
        let quota = self.quota(n, flip, rng);
        let cost = match rng.below(16) {
            0 => 0,
            1 => quota.capacity().min(70_000),
            2 => quota.capacity() + 1,
            3 => 1 + rng.below(5),
            4 => 100_000.min(quota.capacity()),
            _ => 1,
        };
        let exact = quota.algorithm() == Algorithm::SlidingWindow;
        Check {
            enforced: !rng.one_in(8),
            encoding: if exact { self.encoding } else { Encoding::Zset },
            ..Check::new(key(n), quota, cost)
        }
    }

    /// Most entries cost the same, and most windows are long enough to hold hundreds.
    fn hot_checks(&self, rng: &mut Rng) -> Checks {
        let n = rng.below(3);
        let (limit, millis, cost) = [(200, 30, 1), (100_000, 400, 1), (900, 60, 3)][n as usize];
        let quota = Quota::new(limit, Duration::from_millis(millis)).unwrap();
        let cost = match rng.below(2_000) {
            0 => 1 + rng.below(40),
            1 => 0,
            2 => limit + 1,
            3 => limit.min(80_000),
            _ => cost,
        };
        let checks =
            Checks::one(Check { encoding: self.encoding, ..Check::new(key(n), quota, cost) }).unwrap();
        if rng.one_in(1_000) {
            return checks.with_id(RequestId::new(&format!("r{}", rng.below(3))).unwrap());
        }
        checks
    }

    fn checks(&self, flip: u64, rng: &mut Rng) -> Checks {
        if self.hot {
            return self.hot_checks(rng);
        }
        let first = rng.below(KEYS);
        let count = if rng.one_in(3) { 1 + rng.below(3) } else { 1 };
        let checks = Checks::new((0..count).map(|i| self.check((first + i) % KEYS, flip, rng))).unwrap();
        let checks = if rng.one_in(5) {
            checks.with_id(RequestId::new(&format!("r{}", rng.below(12))).unwrap())
        } else {
            checks
        };
        if rng.one_in(20) { checks.peek() } else { checks }
    }

    /// Acquires, settles, inspects and resets until `operations` are done.
    pub(crate) async fn play<S: Store>(self, store: &S, operations: usize) -> Oracle {
        let mut rng = Rng::new(self.seed);
        let mut oracle = Oracle::default();
        let mut done = 0;
        while done < operations {
            // Hot keys are rarely settled or reset, so that their entries stay equal for long.
            let what = if self.hot && !rng.one_in(60) { 0 } else { rng.below(32) };
            match what {
                0..=23 => {
                    let n = if self.hot && rng.one_in(6) {
                        1 + rng.below(150)
                    } else if rng.one_in(4) && !self.hot {
                        1 + rng.below(12)
                    } else {
                        1
                    };
                    let flip = if rng.one_in(300) && !self.steady { rng.below(KEYS) } else { 0 };
                    let mut batch: Vec<Checks> = (0..n).map(|_| self.checks(flip, &mut rng)).collect();
                    if rng.one_in(3) && flip == 0 && !self.hot {
                        // Callers of a hot key send equal checks.
                        batch
                            .iter_mut()
                            .skip(1)
                            .for_each(|checks| *checks = self.plain(&mut Rng::new(done as u64)));
                    }
                    let batch_verdicts = store.admit(&batch).await.unwrap();
                    assert_eq!(batch_verdicts.len(), batch.len());
                    for (checks, verdicts) in batch.iter().zip(&batch_verdicts) {
                        oracle.admitted(checks, verdicts);
                    }
                    done += batch.len();
                }
                24..=28 if !oracle.charges.is_empty() => {
                    let n = 1 + rng.below(2).min(oracle.charges.len() as u64 - 1);
                    let recent = (oracle.charges.len() as u64).min(40);
                    let mut settlements: Vec<Settlement> = (0..n)
                        .map(|_| {
                            let i = oracle.charges.len() - 1 - rng.below(recent) as usize;
                            let (key, entry) = oracle.charges[i].clone();
                            let permits = match rng.below(6) {
                                0..=2 => 0,
                                3 => entry.cost + rng.below(4),
                                4 => rng.below(entry.cost + 1),
                                _ => {
                                    if rng.one_in(50) {
                                        1_000_000_000_000
                                    } else {
                                        66_000
                                    }
                                }
                            };
                            let extendable = [CONCURRENT, WARMING_UP].map(self::key).contains(&key);
                            let extend = rng.one_in(if extendable { 2 } else { 50 });
                            let correction =
                                if extend { Correction::Extend } else { Correction::Cost(permits) };
                            Settlement { key, entry, correction }
                        })
                        .collect();
                    if settlements.len() == 2 && settlements[0].key == settlements[1].key {
                        settlements.pop();
                    }
                    // Some settlements are repeated at once, because later their windows may be over.
                    for _ in 0..=u64::from(rng.one_in(4)) {
                        let receipt = store.settle(&settlements).await.unwrap();
                        for (settlement, settled) in settlements.iter().zip(receipt.settled) {
                            oracle.settled(settlement, receipt.at, settled);
                        }
                        done += settlements.len();
                    }
                }
                29 | 30 => {
                    let key = key(rng.below(KEYS));
                    let inspection = store.inspect(&key).await.unwrap();
                    oracle.inspected(&key, inspection.as_ref());
                    done += 1;
                }
                _ if rng.one_in(8) && !self.steady => {
                    let key = key(rng.below(KEYS));
                    store.reset(&key).await.unwrap();
                    oracle.reset(&key);
                    done += 1;
                }
                _ => tokio::time::sleep(Duration::from_micros(rng.below(4_000))).await,
            }
        }
        oracle
    }

    /// Returns one check without an id. The same random numbers give the same check.
    fn plain(&self, rng: &mut Rng) -> Checks {
        let quota = Quota::new(30, Duration::from_millis(2)).unwrap();
        let cost = 1 + rng.below(2);
        Checks::one(Check { encoding: self.encoding, ..Check::new(key(0), quota, cost) }).unwrap()
    }
}

pub(crate) fn key(n: u64) -> Key {
    Key::new("trace", [("key", n.to_string().as_str())])
}

/// Resets all keys for the next trace.
pub(crate) async fn forget<S: Store>(store: &S) {
    for n in 0..KEYS {
        store.reset(&key(n)).await.unwrap();
    }
}

/// Plays traces of several seeds, and prints their counts. On a busy machine windows end before an admission
/// is settled twice, so more traces are played until every kind of answer was seen.
pub(crate) async fn conforms<S: Store>(name: &str, store: &S, encoding: Encoding, operations: usize) {
    let seeds = 12;
    let (mut total, mut sums) = (0, [0; 10]);
    for seed in 1..=5 * seeds {
        if seed > seeds && sums.iter().all(|&sum| sum > 0) {
            break;
        }
        let (hot, exact) = ((seed - 1) % seeds >= 8, encoding == Encoding::Packed && seed % 4 != 0);
        let oracle = Traffic { encoding, exact, hot, steady: false, seed }
            .play(store, operations / seeds as usize)
            .await;
        let seen = &oracle.seen;
        total += operations / seeds as usize;
        forget(store).await;
        let all = [seen.charged, seen.denied, seen.repeated, seen.impossible, seen.done, seen.already];
        let others = [seen.gone, seen.inspected, seen.extended, seen.warming_up];
        for (sum, n) in sums.iter_mut().zip(all.into_iter().chain(others)) {
            *sum += n;
        }
        eprintln!("{name}, seed {seed}: {seen:?}");
    }
    assert!(sums.iter().all(|&sum| sum > 0), "the traces must cover every case: {sums:?}");
    eprintln!("{name}: {total} operations replayed, 0 differences");
}

fn store(server: &RedisServer) -> RedisStore {
    RedisStore::with_options(&patient(server)).unwrap()
}

/// Long timeouts, because the machine may be busy with other tests.
fn patient(server: &RedisServer) -> RedisOptions {
    RedisOptions { response_timeout: Duration::from_secs(20), ..RedisOptions::new(server.url()) }
}

const MANY: usize = 204_000;
/// Number of operations on Redis, where an operation takes much longer than in memory.
const ENOUGH: usize = 96_000;

/// Operations to replay: `usual`, or as many as `CONFORMANCE_OPERATIONS` says, as in `scripts/soak.sh`.
fn operations(usual: usize) -> usize {
    number("CONFORMANCE_OPERATIONS", usual as u64) as usize
}

const SOME: usize = 24_000;

#[tokio::test]
async fn memory() {
    // Without the background sweep: a bucket that was dropped while full does not know its old burst.
    let store = MemoryStore::with_clock(SystemClock::new(), 1_000);
    conforms("memory", &store, Encoding::Zset, MANY).await;
}

#[tokio::test]
async fn redis_zset() {
    let server = RedisServer::start(Flavour::Redis7);
    conforms("zset on Redis 7", &store(&server), Encoding::Zset, operations(ENOUGH)).await;
}

#[tokio::test]
async fn redis_packed() {
    let server = RedisServer::start(Flavour::Redis7);
    conforms("packed on Redis 7", &store(&server), Encoding::Packed, operations(ENOUGH)).await;
}

fn transactions(server: &RedisServer) -> RedisStore {
    let options = RedisOptions { mode: RedisMode::Transaction, ..patient(server) };
    RedisStore::with_options(&options).unwrap()
}

#[tokio::test]
async fn redis_transactions() {
    let server = RedisServer::start(Flavour::Redis7);
    conforms("transactions on Redis 7", &transactions(&server), Encoding::Zset, operations(2 * SOME)).await;
}

/// Two stores that are called in turns on the same keys.
struct InTurns(RedisStore, RedisStore, AtomicUsize);

impl InTurns {
    fn next(&self) -> &RedisStore {
        if self.2.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) { &self.0 } else { &self.1 }
    }
}

impl Store for InTurns {
    async fn admit(&self, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        self.next().admit(batch).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        self.next().settle(settlements).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        self.next().inspect(key).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        self.next().reset(key).await
    }
}

/// Scripts and transactions write the same data, so nodes of one deployment may use either.
#[tokio::test]
async fn scripts_and_transactions_share_keys() {
    let server = RedisServer::start(Flavour::Redis7);
    let both = InTurns(store(&server), transactions(&server), AtomicUsize::new(0));
    conforms("scripts and transactions in turns", &both, Encoding::Zset, SOME).await;
}

#[tokio::test]
async fn older_redis_and_valkey() {
    for flavour in [Flavour::Redis62, Flavour::Valkey9] {
        let server = RedisServer::start(flavour);
        let store = store(&server);
        conforms(&format!("zset on {flavour:?}"), &store, Encoding::Zset, SOME).await;
        conforms(&format!("packed on {flavour:?}"), &store, Encoding::Packed, SOME).await;
        conforms(&format!("transactions on {flavour:?}"), &transactions(&server), Encoding::Zset, SOME).await;
    }
}

/// The server's clock is set back and forth during decisions. The decisions agree with the algorithm: they
/// may be stricter for the step, never looser.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stepping_server_clock_is_never_looser() {
    let time = FakeTime::start();
    let set = |millis| time.set(millis);
    set(10_000);
    let server = RedisServer::with(Flavour::Valkey9, &[], &time.environment());
    let (script, transaction) = (store(&server), transactions(&server));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stepper = scope.spawn(|| {
            let (mut rng, mut steps) = (Rng::new(7), 0);
            while !stop.load(Ordering::Relaxed) {
                set(10_000 + rng.below(60) as i64);
                steps += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            steps
        });
        // Stops the thread even if a comparison fails.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let stopper = Stop(&stop);
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                for seed in 1..=10 {
                    for (store, encoding) in [
                        (&script, Encoding::Zset),
                        (&script, Encoding::Packed),
                        (&transaction, Encoding::Zset),
                    ] {
                        let exact = encoding == Encoding::Packed;
                        Traffic { encoding, exact, hot: seed % 3 == 0, steady: true, seed }
                            .play(store, 2_000)
                            .await;
                        forget(store).await;
                    }
                }
            });
        });
        drop(stopper);
        let steps = stepper.join().unwrap();
        eprintln!("60000 operations while the clock was set {steps} times, 0 differences");
        assert!(steps > 100);
    });
}

/// Idempotency notes that had expired while the clock was ahead are valid again when it is set back.
#[tokio::test]
async fn idempotency_notes_survive_a_clock_set_back() {
    const SECOND: u64 = 1_000_000;
    let time = FakeTime::start();
    let server = time.stopped();
    let (script, transaction) = (store(&server), transactions(&server));
    let exact = Quota::new(9, Duration::from_secs(5)).unwrap();
    let slices = exact.with_algorithm(Algorithm::TimeSlice { slices: 5 }).unwrap();
    let cases = [
        (&script, Encoding::Zset, slices),
        (&script, Encoding::Zset, exact),
        (&script, Encoding::Packed, exact),
        (&transaction, Encoding::Zset, slices),
        (&transaction, Encoding::Zset, exact),
    ];
    for (n, (store, encoding, quota)) in cases.into_iter().enumerate() {
        let key = key(n as u64);
        let admit = async || {
            let check = Check { encoding, ..Check::new(key.clone(), quota, 1) };
            store.admit(&[Checks::one(check).unwrap()]).await.unwrap()[0].verdicts[0].entry
        };
        let refund = async |entry| {
            let settlement = Settlement::refund(key.clone(), entry);
            store.settle(&[settlement]).await.unwrap().settled[0]
        };
        time.stop_at(100 * SECOND);
        let first = admit().await;
        assert_eq!(refund(first).await, Settled::Done);
        time.stop_at(100 * SECOND + 1_500_000);
        let second = admit().await;
        // A slice ends up to a second after its admissions. The first admission has left the window, the
        // second has not.
        time.stop_at(106 * SECOND + 200_000);
        assert_eq!(refund(second).await, Settled::Done, "case {n}");
        time.stop_at(101 * SECOND + 600_000);
        assert_eq!(refund(first).await, Settled::Already, "case {n}");
    }
}
