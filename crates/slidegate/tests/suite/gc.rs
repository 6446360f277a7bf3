//! Tests garbage collection in Redis: useless keys and entries are removed, and no decision changes.

use std::time::Duration;

use redis::Value;
use slidegate::{
    Algorithm, Encoding, Fault, Key, Quota, RequestId, Store,
    redis::{GcReport, RedisOptions, RedisStore},
    store::{Check, Checks, Correction, Settlement},
};
use slidegate_testkit::{Cluster, FakeTime, Flavour, RedisServer, until};

use crate::audit_healthy::{is_well, patient, patient_store};
use crate::conformance::Rng;
use crate::oracle::Oracle;

/// Runs a whole garbage collection, from the first step to the last.
pub(crate) async fn clean_all(store: &RedisStore, count: usize) -> GcReport {
    let mut all = GcReport::default();
    let mut cursor = 0;
    loop {
        let step = store.clean(cursor, count).await.unwrap();
        all.looked += step.looked;
        all.trimmed += step.trimmed;
        all.dropped += step.dropped;
        all.expiries += step.expiries;
        all.freed_bytes += step.freed_bytes;
        all.foreign += step.foreign;
        match step.next {
            Some(next) => cursor = next,
            None => return all,
        }
    }
}

fn size(server: &RedisServer) -> u64 {
    redis::from_redis_value(server.run("DBSIZE")).unwrap()
}

fn quotas(millis: u64) -> Vec<(Quota, Encoding)> {
    let quota = Quota::new(12, Duration::from_millis(millis)).unwrap();
    let with = |algorithm| (quota.with_algorithm(algorithm).unwrap(), Encoding::Zset);
    vec![
        (quota, Encoding::Zset),
        (quota, Encoding::Packed),
        with(Algorithm::TimeSlice { slices: 5 }),
        with(Algorithm::Concurrency),
        with(Algorithm::FixedWindow),
        with(Algorithm::SlidingCounter),
        with(Algorithm::TokenBucket { burst: 9 }),
    ]
}

/// Keys are used and idle in turns, and garbage is collected at any moment. The decisions are those of the algorithm
/// without garbage collection. A key may be dropped as soon as no entry of it counts.
#[tokio::test]
async fn gc_changes_no_decision() {
    for (flavour, seed) in [(Flavour::Redis62, 1), (Flavour::Redis7, 2), (Flavour::Valkey9, 3)] {
        let server = RedisServer::start(flavour);
        let options = RedisOptions { expire_buffer: Duration::ZERO, ..patient(&server) };
        let store = RedisStore::with_options(&options).unwrap();
        let (mut rng, mut oracle) = (Rng::new(seed), Oracle::default());
        let mut sum = GcReport::default();
        let quotas: Vec<_> = [2, 9, 40].into_iter().flat_map(quotas).collect();
        for round in 0..4_000 {
            let n = rng.below(quotas.len() as u64) as usize;
            let (quota, encoding) = quotas[n];
            let key = Key::new("clean", [("n", n.to_string().as_str())]);
            for _ in 0..1 + rng.below(3) {
                let cost = [1, 1, 2, 3, 0][rng.below(5) as usize];
                let mut checks =
                    Checks::one(Check { encoding, ..Check::new(key.clone(), quota, cost) }).unwrap();
                if rng.below(4) == 0 {
                    checks = checks.with_id(RequestId::new(&format!("r{}", rng.below(9))).unwrap());
                }
                let batch_verdicts = store.admit(std::slice::from_ref(&checks)).await.unwrap();
                oracle.admitted(&checks, &batch_verdicts[0]);
            }
            if rng.below(3) == 0 && !oracle.charges.is_empty() {
                let recent = (oracle.charges.len() as u64).min(30);
                let i = oracle.charges.len() - 1 - rng.below(recent) as usize;
                let (key, entry) = oracle.charges[i].clone();
                let settlement =
                    Settlement { key, entry, correction: Correction::Cost(rng.below(4) * rng.below(6)) };
                let receipt = store.settle(std::slice::from_ref(&settlement)).await.unwrap();
                oracle.settled(&settlement, receipt.at, receipt.settled[0]);
            }
            if round % 3 == 0 {
                let step = clean_all(&store, 1_000).await;
                sum.trimmed += step.trimmed;
                sum.dropped += step.dropped;
                sum.freed_bytes += step.freed_bytes;
                assert_eq!((step.foreign, step.expiries), (0, 0));
            }
            if rng.below(20) == 0 {
                tokio::time::sleep(Duration::from_micros(rng.below(30_000))).await;
            }
        }
        eprintln!("{flavour:?}: {:?}; {sum:?}", oracle.seen);
        assert!(sum.trimmed > 100 && sum.dropped > 50 && sum.freed_bytes > 1_000, "{sum:?}");
        let seen = &oracle.seen;
        assert!(seen.repeated > 0 && seen.denied > 0 && seen.done > 0 && seen.already > 0 && seen.gone > 0);
    }
}

/// Writes a key of each kind, with notes, whose entries no longer count.
async fn leave_some(store: &RedisStore, name: &str, millis: u64) -> usize {
    let mut keys = 0;
    for (i, (quota, encoding)) in quotas(millis).into_iter().enumerate() {
        let key = Key::new(name, [("n", i.to_string().as_str())]);
        let checks = Checks::one(Check { encoding, ..Check::new(key, quota, 2) }).unwrap();
        let named = checks.clone().with_id(RequestId::new("a").unwrap());
        store.admit(&[checks.clone(), named, checks]).await.unwrap();
        // A window has a separate key for its notes.
        keys += if i < 4 { 2 } else { 1 };
    }
    keys
}

#[tokio::test]
async fn keys_without_expiry_are_dropped_or_given_one() {
    for flavour in Flavour::ALL {
        let server = RedisServer::start(flavour);
        let options = RedisOptions { expire_buffer: Duration::ZERO, ..patient(&server) };
        let store = RedisStore::with_options(&options).unwrap();
        let persist = || {
            let names: Vec<String> = redis::from_redis_value(server.run("KEYS *")).unwrap();
            names.iter().for_each(|name| drop(server.run(&format!("PERSIST {name}"))));
            names.len() as u64
        };
        leave_some(&store, "counts", 3_600_000).await;
        let keys = persist();
        let before = clean_all(&store, 3).await;
        assert_eq!((before.looked, before.expiries, before.foreign), (keys, keys, 0), "{flavour:?}");
        assert_eq!((before.dropped, before.trimmed), (0, 0));
        server.assert_ttls();
        let again = clean_all(&store, 100).await;
        assert_eq!((again.looked, again.expiries, again.freed_bytes), (keys, 0, 0));
        server.run("FLUSHALL");
        // No entry of these keys counts any more.
        leave_some(&store, "idle", 5).await;
        let keys = persist();
        tokio::time::sleep(Duration::from_millis(60)).await;
        let cleaned = clean_all(&store, 100).await;
        assert_eq!((cleaned.dropped, cleaned.expiries, size(&server)), (keys, 0, 0), "{cleaned:?}");
        assert!(cleaned.freed_bytes > 50 * keys, "{cleaned:?}");
        // Notes whose admissions are gone.
        leave_some(&store, "notes", 3_600_000).await;
        for (i, name) in [(0, ""), (1, ":log"), (2, "")] {
            let name = format!("sg:{{notes:n={i}}}{name}");
            server.run(&format!("UNLINK {name}"));
            assert_eq!(server.run(&format!("EXISTS {name}:notes")), Value::Int(1));
            if i != 1 {
                server.run(&format!("PERSIST {name}:notes"));
            }
        }
        let cleaned = clean_all(&store, 100).await;
        assert_eq!((cleaned.dropped, size(&server)), (2, 6), "keys with an expiry are left to Redis");
        server.run("FLUSHALL");
    }
}

/// Entries that have left their window are removed, and the key stays. The server's clock is moved by hand.
#[tokio::test]
async fn expired_entries_are_trimmed() {
    let time = FakeTime::start();
    let server = time.stopped();
    let store = patient_store(&server);
    let mut now = 1_000_000;
    let quota = Quota::new(100_000, Duration::from_millis(700)).unwrap();
    let check = |encoding| Check { encoding, ..Check::new(Key::new("trim", []), quota, 1) };
    for encoding in [Encoding::Zset, Encoding::Packed] {
        let batch = [Checks::one(check(encoding)).unwrap()];
        for _ in 0..1_500 {
            now += 10;
            time.stop_at(now);
            store.admit(&batch).await.unwrap();
        }
        let early = clean_all(&store, 100).await;
        assert_eq!((early.looked, early.trimmed, early.freed_bytes), (1, 0, 0), "{early:?}");
        now += 750_000;
        time.stop_at(now);
        let cleaned = clean_all(&store, 100).await;
        assert!(cleaned.trimmed == 1_500 && cleaned.dropped == 0, "{cleaned:?}");
        assert!(cleaned.freed_bytes > 8_000, "{cleaned:?}");
        assert_eq!(store.inspect(&Key::new("trim", [])).await.unwrap(), None);
        assert_eq!(store.admit(&batch).await.unwrap()[0].verdicts[0].used, 1);
        let audit = store.audit(&Key::new("trim", []), None, false).await.unwrap();
        assert!(audit.as_ref().is_some_and(is_well), "{audit:?}");
        store.reset(&Key::new("trim", [])).await.unwrap();
    }
}

#[tokio::test]
async fn foreign_keys_are_left_alone() {
    let server = RedisServer::start(Flavour::Redis7).without_ttl_check();
    let options = RedisOptions { expire_buffer: Duration::ZERO, ..patient(&server) };
    let store = RedisStore::with_options(&options).unwrap();
    let foreign = [
        "SET sg:{a} x",
        "SET sg:{a}:notes x",
        "SET sg:{a}:log x",
        "SADD sg:{b} x",
        "ZADD sg:{c} 5 x",
        "ZADD sg:{d} -5 hello",
        "ZADD sg:{d}:notes 1 id:a*1",
        "ZADD sg:{e}:notes 1 x",
        "ZADD sg:{e}:log:notes 1 x",
        "HSET sg:{f}g:h=i a b",
        "SET sg:{}x 1",
        "SET sg:{unclosed 1",
        "ZADD sg:{k} -5 u 0 l 0 m",
    ];
    let apart = ["HSET sg:{0}:nodes a b", "XADD sg:{rules}:shared * text x", "SET sg:freed x", "SET other x"];
    foreign.iter().chain(&apart).for_each(|line| drop(server.run(line)));
    let mut bytes = redis::cmd("SET");
    bytes.arg(b"sg:{\xff}").arg("x").exec(&mut server.client()).unwrap();
    let before = size(&server);
    let dump = || {
        let mut names: Vec<Vec<u8>> = redis::from_redis_value(server.run("KEYS *")).unwrap();
        names.sort();
        let mut connection = server.client();
        let dump = |name: &Vec<u8>| {
            let ttl: i64 = redis::cmd("PTTL").arg(name).query(&mut connection).unwrap();
            (ttl, redis::cmd("DUMP").arg(name).query::<Vec<u8>>(&mut connection).unwrap())
        };
        names.iter().map(dump).collect::<Vec<_>>()
    };
    let what = dump();
    let cleaned = clean_all(&store, 2).await;
    // The store cannot know whether the notes beside a foreign key are its own, so it keeps them.
    let expected = foreign.len() as u64 - 1 + 1;
    assert_eq!((cleaned.foreign, cleaned.looked), (expected, foreign.len() as u64 + 1), "{cleaned:?}");
    assert_eq!((cleaned.dropped, cleaned.trimmed, cleaned.expiries, cleaned.freed_bytes), (0, 0, 0, 0));
    assert_eq!((dump() == what, size(&server)), (true, before));
    // Foreign keys do not break the listing of keys.
    assert!(store.keys(0, 1_000).await.unwrap().keys.len() > 5);
}

/// Cleaning and auditing work when memory is full, because cleaning frees memory.
#[tokio::test]
async fn gc_and_audit_work_on_a_full_server() {
    for flavour in Flavour::ALL {
        let server = RedisServer::start(flavour);
        until("one round is quick enough", async || fill_and_clean(&server, flavour).await).await;
    }
}

/// False if the machine was so slow that no entry of the busy key counted any more when it was cleaned.
async fn fill_and_clean(server: &RedisServer, flavour: Flavour) -> bool {
    server.run("FLUSHALL");
    let options = RedisOptions { expire_buffer: Duration::ZERO, ..patient(server) };
    let store = RedisStore::with_options(&options).unwrap();
    let left = leave_some(&store, "idle", 5).await as u64;
    let quota = Quota::new(1_000, Duration::from_millis(400)).unwrap();
    let (key, look) =
        (Key::new("busy", []), Checks::one(Check::new(Key::new("other", []), quota, 0)).unwrap());
    let batch = [Checks::one(Check::new(key.clone(), quota, 1)).unwrap()];
    store.admit(&batch).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let newest = store.admit(&batch).await.unwrap()[0].at;
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.run("CONFIG SET maxmemory 1");
    let denied = store.admit(&batch).await.unwrap_err();
    assert_eq!(denied.fault(), Some(Fault::OutOfMemory), "{flavour:?}");
    let cleaned = clean_all(&store, 100).await;
    let size = size(server);
    let audit = store.audit(&key, None, true).await.unwrap();
    assert!(audit.as_ref().is_none_or(is_well), "{flavour:?}: {audit:?}");
    server.run("CONFIG SET maxmemory 0");
    if store.admit(&[look]).await.unwrap()[0].at.since(newest) >= quota.window() {
        return false;
    }
    assert_eq!((cleaned.dropped, cleaned.trimmed, size), (left, 1, 1), "{flavour:?}: {cleaned:?}");
    assert_eq!(audit.map(|audit| audit.counted), Some(1), "{flavour:?}");
    store.admit(&batch).await.unwrap();
    assert!(store.audit(&key, None, true).await.unwrap().is_some_and(|audit| is_well(&audit)));
    true
}

#[tokio::test]
async fn gc_works_in_a_cluster() {
    let cluster = Cluster::start();
    let patience = Duration::from_secs(20);
    let options = RedisOptions {
        response_timeout: patience,
        connect_timeout: patience,
        max_wait: patience,
        expire_buffer: Duration::ZERO,
        ..RedisOptions::cluster(cluster.urls())
    };
    let store = RedisStore::with_options(&options).unwrap();
    let mut keys = 0;
    for n in 0..20 {
        keys += leave_some(&store, &format!("idle{n}"), 5).await as u64;
        keys += leave_some(&store, &format!("counts{n}"), 3_600_000).await as u64;
    }
    tokio::time::sleep(Duration::from_millis(60)).await;
    let memory = store.memory().await.unwrap();
    assert_eq!((memory.len(), memory.iter().map(|server| server.keys).sum::<u64>()), (3, keys));
    let weight = store.weigh(10_000).await.unwrap();
    assert_eq!((weight.keys, weight.sampled, weight.rules.len()), (keys, keys, 40));
    // A key that lost its expiry, on any node of the cluster.
    let key = Key::new("counts7", [("n", "0")]);
    let name = format!("sg:{{{key}}}");
    cluster.node(cluster.node_of_slot(cluster.slot_of(&name))).run(&format!("PERSIST {name}"));
    let audit = store.audit(&key, None, true).await.unwrap().unwrap();
    assert_eq!((audit.discrepancies.len(), audit.repaired, audit.counted), (1, true, 6));
    assert!(store.audit(&key, None, false).await.unwrap().is_some_and(|audit| is_well(&audit)));
    let cleaned = clean_all(&store, 20).await;
    assert_eq!((cleaned.dropped, cleaned.foreign, cleaned.expiries), (keys / 2, 0, 0), "{cleaned:?}");
}
