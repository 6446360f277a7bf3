//! Tests the keys in Redis: their expiry, listing, inspection, reset and size.

use std::collections::BTreeSet;
use std::time::Duration;

use slidegate::{
    Algorithm, Encoding, Key, Quota, RequestId, Settled, Store,
    redis::{RedisMode, RedisOptions, RedisStore},
    store::{Check, Checks, Correction, Outcome, Settlement},
};
use slidegate_testkit::{FakeTime, Flavour, RedisServer, until};

use crate::audit_healthy::{patient, patient_store};
use crate::oracle::Oracle;

fn key(name: &str) -> Key {
    Key::new("k", [("n", name)])
}

/// Every kind of key, with notes.
async fn write_everything(store: &RedisStore, packed: bool) -> usize {
    let quota = Quota::new(10, Duration::from_millis(300)).unwrap();
    let bucket = Quota::new(100, Duration::from_millis(300)).unwrap();
    let quotas = [
        quota,
        quota.with_algorithm(Algorithm::TimeSlice { slices: 3 }).unwrap(),
        quota.with_algorithm(Algorithm::Concurrency).unwrap(),
        quota.with_algorithm(Algorithm::FixedWindow).unwrap(),
        quota.with_algorithm(Algorithm::SlidingCounter).unwrap(),
        bucket.with_algorithm(Algorithm::TokenBucket { burst: 20 }).unwrap(),
    ];
    let mut written = 0;
    for (i, quota) in quotas.into_iter().enumerate() {
        for n in 0..6 {
            let check = Check::new(key(&format!("{i}.{n}")), quota, 2);
            let checks = Checks::one(check).unwrap().with_id(RequestId::new("a").unwrap());
            let verdict = store.admit(&[checks]).await.unwrap()[0].verdicts[0];
            assert_eq!(verdict.outcome, Outcome::Charged);
            let key = key(&format!("{i}.{n}"));
            store
                .settle(&[Settlement { key, entry: verdict.entry, correction: Correction::Cost(n % 3) }])
                .await
                .unwrap();
            // A window has a separate key for its notes.
            written += if i < 3 { 2 } else { 1 };
        }
    }
    if packed {
        let check = Check { encoding: Encoding::Packed, ..Check::new(key("p"), quota, 1) };
        let checks = Checks::one(check).unwrap().with_id(RequestId::new("a").unwrap());
        store.admit(&[checks]).await.unwrap();
        written += 2;
    }
    written
}

/// Every kind of key expires when it no longer counts, on each flavour of server.
#[tokio::test]
async fn keys_expire_when_they_count_no_more() {
    let servers = Flavour::ALL.map(async |flavour| {
        let server = RedisServer::start(flavour);
        for mode in [RedisMode::Script, RedisMode::Transaction] {
            let (none, some) = (Duration::ZERO, Duration::from_millis(100));
            let options = RedisOptions { min_expire: none, expire_buffer: some, mode, ..patient(&server) };
            let store = RedisStore::with_options(&options).unwrap();
            let expired = || {
                let stats: String = redis::from_redis_value(server.run("INFO stats")).unwrap();
                let count = stats.lines().find_map(|line| line.strip_prefix("expired_keys:"));
                count.unwrap().parse::<u64>().unwrap()
            };
            let before = expired();
            let written = write_everything(&store, mode == RedisMode::Script).await;
            let size: usize = redis::from_redis_value(server.run("DBSIZE")).unwrap();
            assert!(size <= written, "{size} of {written}");
            server.assert_ttls();
            // The windows and their buffer are over after 0.4 s; Redis then removes the keys when its expiry cycle
            // runs.
            let what = format!("{flavour:?} {mode:?}: Redis removes every key");
            until(&what, async || server.run("DBSIZE") == redis::Value::Int(0)).await;
            assert!(expired() > before, "there was no key that could expire");
        }
    });
    futures_util::future::join_all(servers).await;
}

/// A redis-server 6.2 whose clock is moved by hand.
fn stopped() -> (FakeTime, RedisServer) {
    let time = FakeTime::start();
    let server = time.stopped();
    (time, server)
}

/// With the defaults a key expires a minute after its first admission, or ten seconds after its window if that is later.
#[tokio::test]
async fn default_expiry_of_keys() {
    let (_time, server) = stopped();
    for mode in [RedisMode::Script, RedisMode::Transaction] {
        let store = RedisStore::with_options(&RedisOptions { mode, ..patient(&server) }).unwrap();
        for (seconds, expected) in
            [(1, 60_000), (50, 60_000), (51, 61_000), (100, 110_000), (3_600, 3_610_000)]
        {
            let quota = Quota::new(1_000, Duration::from_secs(seconds)).unwrap();
            let name = format!("{mode:?}{seconds}");
            for encoding in [Encoding::Zset, Encoding::Packed] {
                if (mode, encoding) == (RedisMode::Transaction, Encoding::Packed) {
                    continue;
                }
                let check = Check { encoding, ..Check::new(key(&name), quota, 1) };
                store.admit(&[Checks::one(check).unwrap()]).await.unwrap();
                let suffix = if encoding == Encoding::Packed { ":log" } else { "" };
                let ttl: u64 =
                    redis::from_redis_value(server.run(&format!("PTTL sg:{{k:n={name}}}{suffix}"))).unwrap();
                assert_eq!(ttl, expected, "{name}{suffix}");
            }
        }
    }
}

/// A key that is used for longer than its first expiry is not forgotten: its decisions still agree with the oracle,
/// which forgets nothing that counts.
#[tokio::test]
async fn key_in_use_does_not_expire() {
    let (time, server) = stopped();
    let (least, buffer) = (Duration::from_millis(300), Duration::from_millis(60));
    let mut now = 1_000_000;
    for mode in [RedisMode::Script, RedisMode::Transaction] {
        let options = RedisOptions { min_expire: least, expire_buffer: buffer, mode, ..patient(&server) };
        let store = RedisStore::with_options(&options).unwrap();
        // The demand exceeds the refill, so a bucket that expired too early would admit more.
        let ways = [
            (Algorithm::SlidingWindow, 1),
            (Algorithm::TimeSlice { slices: 2 }, 1),
            (Algorithm::FixedWindow, 1),
            (Algorithm::SlidingCounter, 1),
            (Algorithm::TokenBucket { burst: 500 }, 20),
        ];
        let mut oracle = Oracle::default();
        for _ in 0..120 {
            now += 10_000;
            time.stop_at(now);
            for (i, (algorithm, cost)) in ways.into_iter().enumerate() {
                let quota = Quota::new(500, Duration::from_millis(400)).unwrap();
                let quota = quota.with_algorithm(algorithm).unwrap();
                let checks = Checks::one(Check::new(key(&format!("{mode:?}{i}")), quota, cost)).unwrap();
                let verdicts = store.admit(std::slice::from_ref(&checks)).await.unwrap().remove(0);
                oracle.admitted(&checks, &verdicts);
            }
        }
        assert!(oracle.seen.denied > 0, "the bucket runs empty");
    }
}

/// Idempotency notes of a window are stored apart from its count, so refunds leave other entries unchanged. The notes are
/// removed with their count, also by a call that does not read notes.
#[tokio::test]
async fn idempotency_notes_expire_with_their_count() {
    let server = RedisServer::start(Flavour::Redis7);
    for mode in [RedisMode::Script, RedisMode::Transaction] {
        let store = RedisStore::with_options(&RedisOptions { mode, ..patient(&server) }).unwrap();
        let (quota, key) = (Quota::per_hour(1_000).unwrap(), key(&format!("{mode:?}")));
        let name = format!("sg:{{{key}}}");
        let plain = |quota, cost| Checks::one(Check::new(key.clone(), quota, cost)).unwrap();
        let named = |quota, cost| plain(quota, cost).with_id(RequestId::new("a").unwrap());
        let admit = async |checks: Checks| store.admit(&[checks]).await.unwrap()[0].verdicts[0];
        let settle = async |entry, permits| {
            let settlement = Settlement { key: key.clone(), entry, correction: Correction::Cost(permits) };
            store.settle(&[settlement]).await.unwrap().settled[0]
        };
        let alike = || -> f64 { redis::from_redis_value(server.run(&format!("ZSCORE {name} m"))).unwrap() };
        let count = |key: &str| -> u64 {
            redis::from_redis_value(server.run(&format!("ZCARD {name}{key}"))).unwrap()
        };
        let first = admit(named(quota, 3)).await.entry;
        assert_eq!(admit(named(quota, 3)).await.entry, first, "{mode:?}");
        for n in 1..=20 {
            let entry = admit(plain(quota, 3)).await.entry;
            assert_eq!(settle(entry, 0).await, Settled::Done);
            assert_eq!(settle(entry, 0).await, Settled::Already);
            let verdicts = admit(plain(quota, 3).peek()).await;
            assert_eq!(verdicts.used, 3, "{mode:?}");
            // Four of the members are the header.
            assert_eq!((count(""), count(":notes"), alike()), (5, 1 + n, -3.0), "{mode:?}");
        }
        let second = admit(plain(quota, 3)).await.entry;
        assert_eq!(settle(second, 2).await, Settled::Done);
        assert_eq!((count(""), alike()), (6, 0.0));
        // Changes the quota, and changes it back.
        let other = Quota::per_minute(1_000).unwrap();
        assert_eq!(admit(plain(other, 1)).await.used, 1);
        assert_eq!(admit(plain(quota, 1)).await.used, 1);
        assert_eq!(settle(first, 0).await, Settled::Gone);
        assert_eq!(admit(named(quota, 3)).await.used, 4, "{mode:?}: the id belonged to the previous count");
        assert_eq!(admit(named(quota, 3)).await.used, 4, "{mode:?}");
        assert_eq!(count(":notes"), 1);
        server.assert_ttls();
    }
}

/// A rule whose encoding is changed and changed back finds its count and its notes again.
#[tokio::test]
async fn each_encoding_has_its_own_notes() {
    let server = RedisServer::start(Flavour::Redis7);
    let store = patient_store(&server);
    let quota = Quota::per_hour(10).unwrap();
    let admit = async |encoding, id: &str| {
        let check = Check { encoding, ..Check::new(key("e"), quota, 1) };
        let checks = Checks::one(check).unwrap().with_id(RequestId::new(id).unwrap());
        store.admit(&[checks]).await.unwrap()[0].verdicts[0]
    };
    let settle = async |entry| store.settle(&[Settlement::refund(key("e"), entry)]).await.unwrap().settled[0];
    let before = admit(Encoding::Zset, "a").await.entry;
    admit(Encoding::Zset, "b").await;
    assert_eq!(settle(before).await, Settled::Done);
    let packed = admit(Encoding::Packed, "c").await.entry;
    assert_eq!(settle(before).await, Settled::Already);
    assert_eq!(admit(Encoding::Zset, "b").await.used, 1);
    assert_eq!(settle(packed).await, Settled::Done);
    assert_eq!(settle(packed).await, Settled::Already);
    assert!(store.reset(&key("e")).await.unwrap());
    assert_eq!(server.run("DBSIZE"), redis::Value::Int(0));
}

#[tokio::test]
async fn keys_are_listed_in_pages() {
    let server = RedisServer::start(Flavour::Redis7).without_ttl_check();
    let store = patient_store(&server);
    let odd = RedisStore::with_options(&RedisOptions { prefix: "s".into(), ..patient(&server) }).unwrap();
    let quota = Quota::per_hour(5).unwrap();
    let (mut expected, mut client) = (BTreeSet::new(), server.client());
    for n in 0..500 {
        let name = format!("{{{n}}}*[?");
        let encoding = if n % 2 == 0 { Encoding::Zset } else { Encoding::Packed };
        let check = Check { encoding, ..Check::new(key(&name), quota, 1) };
        let checks = Checks::one(check).unwrap().with_id(RequestId::new("a").unwrap());
        store.admit(&[checks]).await.unwrap();
        expected.insert(key(&name).to_string());
        redis::cmd("SET").arg(format!("other{n}")).arg("x").exec(&mut client).unwrap();
    }
    let (mut found, mut cursor, mut pages) = (BTreeSet::new(), 0, 0);
    loop {
        let page = store.keys(cursor, 50).await.unwrap();
        found.extend(page.keys.iter().map(Key::to_string));
        pages += 1;
        match page.next {
            Some(next) => cursor = next,
            None => break,
        }
    }
    assert_eq!(found, expected);
    assert!(pages > 5);
    assert!(
        odd.keys(0, 10_000).await.unwrap().keys.is_empty(),
        "the keys of another deployment are not listed"
    );
    // Each key can be inspected and reset by the name in the list.
    for name in found {
        let key = Key::printed(&name);
        assert_eq!(store.inspect(&key).await.unwrap().unwrap().used, 1);
        assert!(store.reset(&key).await.unwrap());
        assert!(!store.reset(&key).await.unwrap());
    }
    assert!(store.keys(0, 10_000).await.unwrap().keys.is_empty());
}

#[tokio::test]
async fn entry_sizes_in_redis() {
    let server = RedisServer::start(Flavour::Redis7);
    let store = patient_store(&server);
    let quota = Quota::per_hour(1_000_000_000).unwrap();
    for (cost, most) in [(1, 5), (1_000_000, 5)] {
        let name = format!("c{cost}");
        store.admit(&[Checks::one(Check::new(key(&name), quota, cost)).unwrap()]).await.unwrap();
        let members: u64 = redis::from_redis_value(server.run(&format!("ZCARD sg:{{k:n={name}}}"))).unwrap();
        assert!(members <= most, "{members} members for one admission of {cost}");
    }
    let check = Check { encoding: Encoding::Packed, ..Check::new(key("p"), quota, 1) };
    let batch = [Checks::one(check).unwrap()];
    let n = 20_000;
    for _ in 0..n / 500 {
        futures_util::future::try_join_all((0..500).map(|_| store.admit(&batch))).await.unwrap();
    }
    let bytes: u64 = redis::from_redis_value(server.run("MEMORY USAGE sg:{k:n=p}:log")).unwrap();
    eprintln!("packed: {:.2} bytes an event at {n} events", bytes as f64 / f64::from(n));
    assert!(bytes <= 10 * u64::from(n as u32) + 700);
    assert_eq!(store.inspect(&key("p")).await.unwrap().unwrap().used, u64::from(n as u32));
}
