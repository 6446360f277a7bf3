//! Tests the audit of damaged keys: it recounts them, reports discrepancies and repairs them.

use std::cell::Cell;
use std::time::Duration;

use slidegate::{
    Algorithm, Encoding, Key, Micros, Quota, Store,
    algorithm::{Audit, Discrepancy},
    redis::{MAX_AUDITED, RedisStore},
    store::{Check, Checks, Correction, Settlement},
};
use slidegate_testkit::{FakeTime, Flavour, RedisServer};

use crate::audit_healthy::{is_well, patient_store};
use crate::oracle::Oracle;

/// Key on a server, and its expected count.
struct Bench {
    store: RedisStore,
    connection: parking_lot::Mutex<redis::Connection>,
    oracle: Oracle,
    check: Check,
}

const SHORT: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(300 * 86_400);

impl Bench {
    /// Creates a key with five admissions of eight permits in total.
    async fn new(server: &RedisServer, name: &str, way: &str, window: Duration) -> Bench {
        let mut bench = Bench::empty(server, name, way, window);
        bench.decide(&[1, 2, 3, 1, 1]).await;
        bench
    }

    fn empty(server: &RedisServer, name: &str, way: &str, window: Duration) -> Bench {
        let quota = Quota::new(100, window).unwrap();
        let quota = match way {
            "slices" => quota.with_algorithm(Algorithm::TimeSlice { slices: 10 }).unwrap(),
            "fixed" => quota.with_algorithm(Algorithm::FixedWindow).unwrap(),
            "bucket" => quota.with_algorithm(Algorithm::TokenBucket { burst: 50 }).unwrap(),
            _ => quota,
        };
        let encoding = if way == "packed" { Encoding::Packed } else { Encoding::Zset };
        let check = Check { encoding, ..Check::new(Key::new(name, [("way", way)]), quota, 1) };
        let connection = parking_lot::Mutex::new(server.client());
        Bench { store: patient_store(server), connection, oracle: Oracle::default(), check }
    }

    async fn decide(&mut self, costs: &[u64]) {
        for &cost in costs {
            let checks = Checks::one(Check { cost, ..self.check.clone() }).unwrap();
            let batch_verdicts = self.store.admit(std::slice::from_ref(&checks)).await.unwrap();
            self.oracle.admitted(&checks, &batch_verdicts[0]);
        }
    }

    async fn settle(&mut self, permits: u64) {
        let (key, entry) = self.oracle.charges.pop().unwrap();
        let settlement = Settlement { key, entry, correction: Correction::Cost(permits) };
        let receipt = self.store.settle(std::slice::from_ref(&settlement)).await.unwrap();
        self.oracle.settled(&settlement, receipt.at, receipt.settled[0]);
    }

    async fn audit(&self, repair: bool) -> Audit {
        self.store.audit(&self.check.key, None, repair).await.unwrap().unwrap()
    }

    /// Name of the Redis key.
    fn name(&self) -> String {
        let suffix = if self.check.encoding == Encoding::Packed { ":log" } else { "" };
        format!("sg:{{{}}}{suffix}", self.check.key)
    }

    fn shape(&self) -> String {
        let window = self.check.quota.window().get();
        match self.check.quota.algorithm() {
            Algorithm::TimeSlice { slices } => format!("time-slice {window} {slices}"),
            _ => format!("sliding-window {window}"),
        }
    }

    fn run<T: redis::FromRedisValue>(&self, command: &str, arguments: &[&str]) -> T {
        let mut command = redis::cmd(command);
        command.arg(self.name()).arg(arguments);
        command.query(&mut self.connection.lock()).unwrap()
    }

    /// Writes a number of a packed log's header.
    fn write(&self, field: usize, number: f64) {
        let mut command = redis::cmd("SETRANGE");
        command.arg(self.name()).arg(4 + 8 * field).arg(&number.to_le_bytes()[..]);
        command.exec(&mut self.connection.lock()).unwrap();
    }
}

fn causes(audit: &Audit) -> Vec<&'static str> {
    audit.discrepancies.iter().map(Discrepancy::as_str).collect()
}

/// An audit finds the damage and repairs it if allowed; later decisions agree with the oracle.
async fn found_and_repaired(bench: &mut Bench, expected: &[&str], spoil: impl FnOnce(&Bench)) {
    let what = format!("{} {expected:?}", bench.check.key);
    let before = bench.audit(true).await;
    assert!(is_well(&before) && before.counted == 8, "{what}: {before:?}");
    assert!(before.expires_after.is_some());
    spoil(bench);
    let found = bench.audit(false).await;
    assert_eq!((causes(&found).as_slice(), found.repaired), (expected, false), "{what}: {found:?}");
    assert_eq!(found.counted, 8, "{what}");
    let repaired = bench.audit(true).await;
    assert_eq!((causes(&repaired).as_slice(), repaired.repaired), (expected, true), "{what}: {repaired:?}");
    let after = bench.audit(true).await;
    assert!(is_well(&after), "{what}: {after:?}");
    bench.decide(&[2]).await;
    bench.settle(1).await;
    bench.settle(0).await;
    bench.decide(&[1, 100, 80]).await;
    let last = bench.audit(false).await;
    assert!(is_well(&last), "{what}: {last:?}");
}

/// A server with a clock that a test moves: each admission has its own instant, and a test ends a window by moving the
/// clock.
struct Stopped {
    time: FakeTime,
    server: RedisServer,
    now: Cell<u64>,
}

impl Stopped {
    fn start() -> Self {
        let time = FakeTime::start();
        let server = time.stopped();
        Stopped { time, server, now: Cell::new(1_000_000) }
    }

    fn advance(&self, micros: u64) {
        self.now.set(self.now.get() + micros);
        self.time.stop_at(self.now.get());
    }

    /// Now, in microseconds since the epoch, by the server's clock.
    fn time(&self) -> i64 {
        let (seconds, micros): (i64, i64) = redis::from_redis_value(self.server.run("TIME")).unwrap();
        seconds * 1_000_000 + micros
    }

    /// Damages a key with `spoil`, repairs it, and continues until all damaged entries have left the window.
    async fn repairs(&self, way: &str, name: &str, expected: &[&str], spoil: impl FnOnce(&Bench, i64)) {
        let tick = || self.advance(1_000);
        let mut bench = Bench::empty(&self.server, name, way, SHORT);
        for cost in [1, 2, 3, 1, 1] {
            tick();
            bench.decide(&[cost]).await;
        }
        let now = self.time();
        tick();
        found_and_repaired(&mut bench, expected, |bench| spoil(bench, now)).await;
        self.advance(SHORT.as_micros() as u64 + 400_000);
        bench.decide(&[1, 1, 5]).await;
        bench.settle(0).await;
        bench.decide(&[93, 1, 1]).await;
        let last = bench.audit(false).await;
        assert!(is_well(&last), "{way} {name}: {last:?}");
    }
}

#[tokio::test]
async fn repairs_a_wrong_header() {
    const HOUR: i64 = 3_600_000_000;
    let stopped = Stopped::start();
    let add = |bench: &Bench, score: &str, member: &str| bench.run::<()>("ZADD", &[score, member]);
    let newest = |bench: &Bench, at: i64| add(bench, &format!("-{at}"), &bench.shape());
    for way in ["exact", "slices"] {
        stopped.repairs(way, "low", &["total"], |b, _| add(b, "-2.25", "u")).await;
        stopped.repairs(way, "high", &["total"], |b, _| add(b, "-90.25", "u")).await;
        stopped.repairs(way, "bare", &["total", "costs"], |b, _| add(b, "-2", "u")).await;
        stopped.repairs(way, "none", &["total", "costs"], |b, _| b.run::<()>("ZREM", &["u"])).await;
        stopped.repairs(way, "alike", &["costs"], |b, _| add(b, "-2", "m")).await;
        stopped.repairs(way, "old", &["newest"], |b, now| newest(b, now - HOUR)).await;
        stopped.repairs(way, "ahead", &["newest"], |b, now| newest(b, now + HOUR)).await;
        let all = ["total", "newest", "costs", "no-expiry"];
        let spoil_all = |b: &Bench, now| {
            newest(b, now - HOUR);
            add(b, "-4", "u");
            b.run::<()>("PERSIST", &[]);
        };
        stopped.repairs(way, "all", &all, spoil_all).await;
    }
    let way = "packed";
    stopped.repairs(way, "low", &["total"], |b, _| b.write(6, 2.0)).await;
    stopped.repairs(way, "high", &["total"], |b, _| b.write(6, 90.0)).await;
    stopped.repairs(way, "below", &["total"], |b, _| b.write(6, -3.0)).await;
    stopped.repairs(way, "old", &["newest"], |b, now| b.write(7, (now - HOUR) as f64)).await;
    stopped.repairs(way, "oldest", &["oldest"], |b, now| b.write(9, (now + HOUR) as f64)).await;
    let spoil_all = |b: &Bench, _| {
        b.write(6, 1.0);
        b.write(7, 5.0);
        b.write(9, 7.0);
    };
    stopped.repairs(way, "all", &["total", "newest", "oldest"], spoil_all).await;
}

#[tokio::test]
async fn repairs_a_wrong_expiry() {
    let server = RedisServer::start(Flavour::Redis7);
    for way in ["exact", "slices", "packed", "fixed", "bucket"] {
        let mut never = Bench::new(&server, "never", way, LONG).await;
        found_and_repaired(&mut never, &["no-expiry"], |b| b.run::<()>("PERSIST", &[])).await;
        let mut soon = Bench::new(&server, "soon", way, LONG).await;
        found_and_repaired(&mut soon, &["short-expiry"], |b| b.run::<()>("PEXPIRE", &["60000"])).await;
    }
    let (tuesday, minute) = (Bench::new(&server, "words", "exact", LONG).await, Micros::from_secs(60));
    tuesday.run::<()>("PEXPIRE", &["60000"]);
    let found = tuesday.audit(false).await;
    assert!(found.expires_after.is_some_and(|left| left <= minute), "{found:?}");
    let [Discrepancy::ShortExpiry { expires_after, needed }] = found.discrepancies[..] else { panic!() };
    assert!(expires_after <= minute && needed > Micros::from_secs(299 * 86_400) && needed <= LONG.into());
}

/// Foreign data is reported, and stays unchanged.
#[tokio::test]
async fn leaves_unreadable_keys_alone() {
    let server = RedisServer::start(Flavour::Redis7).without_ttl_check();
    let spoils: &[(&str, &[&[&str]])] = &[
        ("exact", &[&["SET", "x"], &["ZADD", "5", "hello"], &["ZADD", "-5", "hello"], &["ZREM", "l"]]),
        ("exact", &[&["ZADD", "1700000000000000", "abc"], &["ZADD", "0.5", "a"], &["ZADD", "inf", "a"]]),
        ("slices", &[&["ZADD", "5", "id:x*1"], &["ZADD", "-5", "sliding-window 7"]]),
        (
            "packed",
            &[&["SET", "x"], &["SET", ""], &["SETRANGE", "4", "xxxxxxxx"], &["SETRANGE", "28", "xxxxxxxx"]],
        ),
        ("packed", &[&["SETRANGE", "0", "sgp2"]]),
        ("fixed", &[&["ZADD", "5", "hello"], &["ZREM", "n"], &["ZREM", "u"], &["ZADD", "-1.5", "u"]]),
        ("bucket", &[&["ZREM", "g"], &["ZADD", "-5", "token-bucket 1 2 3"], &["SET", "x"]]),
    ];
    for (i, (way, commands)) in spoils.iter().enumerate() {
        for (j, command) in commands.iter().enumerate() {
            let bench = Bench::new(&server, &format!("odd{i}.{j}"), way, LONG).await;
            bench.run::<redis::Value>(command[0], &command[1..]);
            let before: Option<Vec<u8>> = bench.run("DUMP", &[]);
            assert!(before.is_some());
            for repair in [false, true] {
                let found = bench.audit(repair).await;
                let result = (causes(&found), found.counted, found.stored, found.repaired);
                assert_eq!(result, (vec!["unreadable"], 0, 0, false), "{way} {command:?}: {found:?}");
            }
            assert_eq!(bench.run::<Option<Vec<u8>>>("DUMP", &[]), before, "{way} {command:?}");
        }
    }
    // A list where a log should be, and a log where a count should be.
    let bench = Bench::new(&server, "odd", "exact", LONG).await;
    let name = bench.name();
    server.run(&format!("RPUSH {name}:log x"));
    let found = bench.audit(true).await;
    assert_eq!((causes(&found), found.counted, found.stored), (vec!["unreadable"], 8, 8));
    assert_eq!(bench.store.audit(&Key::new("nothing", []), Some(1), true).await.unwrap(), None);
}

#[tokio::test]
async fn reports_keys_over_the_limit_in_both_encodings() {
    let server = RedisServer::start(Flavour::Valkey9);
    for way in ["exact", "slices", "packed", "fixed", "bucket"] {
        let bench = Bench::new(&server, "over", way, LONG).await;
        let audit =
            async |limit| bench.store.audit(&bench.check.key, Some(limit), true).await.unwrap().unwrap();
        assert!(is_well(&audit(8).await), "{way}");
        let over = audit(7).await;
        assert_eq!(over.discrepancies, [Discrepancy::OverLimit { counted: 8, limit: 7 }], "{way}");
        assert!(!over.repaired);
    }
    let mut bench = Bench::new(&server, "both", "packed", LONG).await;
    bench.check.encoding = Encoding::Zset;
    let checks = Checks::one(bench.check.clone()).unwrap();
    bench.store.admit(&[checks]).await.unwrap();
    assert_eq!(bench.audit(true).await.counted, 1);
    bench.check.encoding = Encoding::Packed;
    bench.write(6, 3.0);
    let found = bench.audit(true).await;
    assert_eq!((found.counted, found.repaired), (1, true));
    assert_eq!(found.discrepancies, [Discrepancy::Total { stored: 3, counted: 8 }]);
    assert!(is_well(&bench.audit(false).await));
    server.run(&format!("UNLINK sg:{{{}}}", bench.check.key));
    assert_eq!(bench.audit(false).await.counted, 8);
}

#[test]
fn each_discrepancy_has_a_cause_and_a_text() {
    let (one, two) = (Micros::from_secs(1), Micros::from_secs(120));
    let all = [
        (Discrepancy::Total { stored: 3, counted: 5 }, "the stored total is 3, but the entries add up to 5"),
        (Discrepancy::OverLimit { counted: 5, limit: 4 }, "5 permits count, but the limit is 4"),
        (Discrepancy::NoExpiry, "the key has no expiry"),
        (
            Discrepancy::ShortExpiry { expires_after: one, needed: two },
            "the key expires in 1s, but counts for 2m",
        ),
        (
            Discrepancy::Newest { stored: one, counted: two },
            "the stored time of the newest entry is 1000000 us, but it is 120000000 us",
        ),
        (
            Discrepancy::Oldest { stored: one, counted: two },
            "the stored time of the oldest entry is 1000000 us, but it is 120000000 us",
        ),
        (Discrepancy::Costs, "the header says that all entries cost the same, but they do not"),
        (Discrepancy::Unreadable, "the value was not written by Slidegate"),
    ];
    assert_eq!(all.len(), Discrepancy::CAUSES.len());
    for ((discrepancy, words), cause) in all.iter().zip(Discrepancy::CAUSES) {
        assert_eq!((discrepancy.to_string().as_str(), discrepancy.as_str()), (*words, cause));
    }
}

/// An audit of such a key would block Redis.
#[tokio::test]
async fn skips_keys_with_too_many_entries() {
    let server = RedisServer::start(Flavour::Redis7);
    let store = patient_store(&server);
    let quota = Quota::new(1_000_000, LONG).unwrap();
    for encoding in [Encoding::Zset, Encoding::Packed] {
        let name = format!("{encoding:?}").to_lowercase();
        let check = Check { encoding, ..Check::new(Key::new("many", [("way", name.as_str())]), quota, 1) };
        let checks = Checks::one(check.clone()).unwrap();
        store.admit(std::slice::from_ref(&checks)).await.unwrap();
        assert!(store.audit(&check.key, None, false).await.unwrap().is_some());
        // Each admission has its own instant, so the log grows by one entry each.
        while store.inspect(&check.key).await.unwrap().unwrap().used <= MAX_AUDITED {
            let calls = (0..500).map(|_| store.admit(std::slice::from_ref(&checks)));
            futures_util::future::try_join_all(calls).await.unwrap();
        }
        assert_eq!(store.audit(&check.key, None, false).await.unwrap(), None, "{name}");
    }
}
