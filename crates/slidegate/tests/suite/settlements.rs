//! Tests settlements in Redis: bounded calls, only admissions that exist, and no debt that lasts longer than twice the
//! time to fill a bucket.

use std::collections::HashSet;
use std::time::Duration;

use slidegate::{
    Algorithm, Count, Encoding, Key, Limiter, Micros, Quota, Request, RequestId, ReservationKey, Rules,
    Settled, Store,
    redis::{RedisMode, RedisOptions, RedisStore},
    store::{Check, Checks, Correction, Entry, Settlement, Verdict},
};
use slidegate_testkit::{Flavour, RedisServer};

use crate::audit_healthy::patient;

/// Every combination of algorithm and encoding, with its name in failure messages.
fn ways() -> Vec<(&'static str, Quota, Encoding)> {
    let quota = Quota::per_hour(100).unwrap();
    let with = |algorithm| quota.with_algorithm(algorithm).unwrap();
    vec![
        ("zset", quota, Encoding::Zset),
        ("packed", quota, Encoding::Packed),
        ("slices", with(Algorithm::TimeSlice { slices: 6 }), Encoding::Zset),
        ("held", with(Algorithm::Concurrency), Encoding::Zset),
        ("fixed", with(Algorithm::FixedWindow), Encoding::Zset),
        ("counter", with(Algorithm::SlidingCounter), Encoding::Zset),
        ("bucket", with(Algorithm::TokenBucket { burst: 100 }), Encoding::Zset),
    ]
}

fn stores(server: &RedisServer) -> Vec<(RedisMode, RedisStore)> {
    let store = |mode| RedisStore::with_options(&RedisOptions { mode, ..patient(server) }).unwrap();
    [RedisMode::Script, RedisMode::Transaction].map(|mode| (mode, store(mode))).into()
}

fn key(mode: RedisMode, name: &str) -> Key {
    Key::new(name, [("mode", format!("{mode:?}").as_str())])
}

async fn admit(store: &RedisStore, check: Check, id: Option<&str>) -> Verdict {
    let checks = Checks::one(check).unwrap();
    let checks = match id {
        Some(id) => checks.with_id(RequestId::new(id).unwrap()),
        None => checks,
    };
    store.admit(&[checks]).await.unwrap()[0].verdicts[0]
}

async fn settle(store: &RedisStore, key: &Key, entry: Entry, correction: Correction) -> Settled {
    store.settle(&[Settlement { key: key.clone(), entry, correction }]).await.unwrap().settled[0]
}

/// Returns the number of members of all keys: counts and notes.
fn members(server: &RedisServer) -> usize {
    let mut connection = server.client();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    let card = |key: &String| redis::cmd("ZCARD").arg(key).query::<usize>(&mut server.client()).unwrap_or(0);
    keys.iter().map(card).sum()
}

/// Numbers from 10^18 on are those of requests with an id. A number that was never issued settles nothing and leaves no
/// note, also where another request with an id was admitted at that instant.
#[tokio::test]
async fn unknown_reservation_number_returns_gone() {
    let server = RedisServer::start(Flavour::Redis7);
    for (mode, store) in stores(&server) {
        for (name, quota, encoding) in ways() {
            if mode == RedisMode::Transaction && encoding == Encoding::Packed {
                continue;
            }
            let what = format!("{mode:?} {name}");
            let key = key(mode, name);
            let check = || Check { encoding, ..Check::new(key.clone(), quota, 5) };
            let plain = admit(&store, check(), None).await.entry;
            let named = admit(&store, check(), Some("request-1")).await.entry;
            assert!(plain.seq < 10u64.pow(18) && named.seq >= 10u64.pow(18), "{what}");
            let before = members(&server);
            for n in 0..200 {
                let numbers = [
                    10u64.pow(18) + n,
                    // The next charge of a known request id.
                    named.seq + 1 + n % 99,
                    10u64.pow(19) + n,
                    u64::MAX - n,
                ];
                for (entry, seq) in
                    [plain, named].into_iter().flat_map(|entry| numbers.map(|seq| (entry, seq)))
                {
                    for correction in [Correction::Cost(0), Correction::Cost(9), Correction::Extend] {
                        let forged = Entry { seq, ..entry };
                        assert_eq!(
                            settle(&store, &key, forged, correction).await,
                            Settled::Gone,
                            "{what} {seq}"
                        );
                    }
                }
            }
            assert_eq!(members(&server), before, "{what}: forged numbers leave nothing behind");
            assert_eq!(store.inspect(&key).await.unwrap().unwrap().used, 10, "{what}");
            assert_eq!(settle(&store, &key, named, Correction::Cost(2)).await, Settled::Done, "{what}");
            assert_eq!(settle(&store, &key, named, Correction::Cost(0)).await, Settled::Already, "{what}");
            assert_eq!(settle(&store, &key, plain, Correction::Cost(0)).await, Settled::Done, "{what}");
            assert_eq!(store.inspect(&key).await.unwrap().unwrap().used, 2, "{what}");
            assert!(members(&server) <= before + 3, "{what}: one note for each settlement");
        }
    }
}

/// After a refund the same id is charged again, in the same instant too, and each of these admissions is settled once.
#[tokio::test]
async fn each_charge_of_an_id_is_settled_once() {
    let server = RedisServer::start(Flavour::Redis7);
    for (mode, store) in stores(&server) {
        for (name, quota, encoding) in ways() {
            if mode == RedisMode::Transaction && encoding == Encoding::Packed {
                continue;
            }
            let key = key(mode, name);
            for _ in 0..4 {
                let check = Check { encoding, ..Check::new(key.clone(), quota, 5) };
                let entry = admit(&store, check, Some("again")).await.entry;
                assert_eq!(
                    settle(&store, &key, entry, Correction::Cost(0)).await,
                    Settled::Done,
                    "{mode:?} {name}"
                );
                // A bucket that is full again has nothing left to settle.
                let again = settle(&store, &key, entry, Correction::Cost(0)).await;
                let expected =
                    if name == "bucket" { [Settled::Already, Settled::Gone] } else { [Settled::Already; 2] };
                assert!(expected.contains(&again), "{mode:?} {name}: {again:?}");
            }
            assert_eq!(store.inspect(&key).await.unwrap(), None, "{mode:?} {name}");
        }
    }
}

#[tokio::test]
async fn settling_an_attempt_returns_gone() {
    let server = RedisServer::start(Flavour::Redis7);
    for (mode, store) in stores(&server) {
        for (name, quota, encoding) in ways() {
            if quota.is_held() || mode == RedisMode::Transaction && encoding == Encoding::Packed {
                continue;
            }
            let key = key(mode, name);
            for id in [None, Some("a"), Some("a")] {
                let quota = quota.with_count(Count::Attempts);
                let check = Check { encoding, ..Check::new(key.clone(), quota, 1) };
                let entry = admit(&store, check, id).await.entry;
                for correction in [Correction::Cost(0), Correction::Cost(50), Correction::Extend] {
                    let settled = settle(&store, &key, entry, correction).await;
                    assert_eq!(settled, Settled::Gone, "{mode:?} {name}");
                }
            }
            assert_eq!(store.inspect(&key).await.unwrap().unwrap().used, 2, "{mode:?} {name}");
        }
    }
}

/// A call of the script settles `batch-size` at most, and the answers are in order.
#[tokio::test]
async fn settlements_are_split_by_batch_size() {
    let server = RedisServer::start(Flavour::Redis7);
    for mode in [RedisMode::Script, RedisMode::Transaction] {
        let options = RedisOptions { mode, batch_size: 10, ..patient(&server) };
        let store = RedisStore::with_options(&options).unwrap();
        let quota = Quota::per_hour(100).unwrap();
        let mut settlements = Vec::new();
        for n in 0..55u64 {
            let key = Key::new("k", [("n", format!("{mode:?}{n}").as_str())]);
            let entry = admit(&store, Check::new(key.clone(), quota, 5), None).await.entry;
            // Every fifth entry was never admitted.
            let entry = Entry { seq: entry.seq + u64::from(n % 5 == 0) * 7, ..entry };
            settlements.push(Settlement { key, entry, correction: Correction::Cost(n % 3) });
        }
        let before = store.calls().calls;
        let receipt = store.settle(&settlements).await.unwrap();
        assert_eq!(store.calls().calls - before, 6, "{mode:?}");
        let expected = (0..55).map(|n| if n % 5 == 0 { Settled::Gone } else { Settled::Done });
        assert_eq!(receipt.settled, expected.collect::<Vec<_>>(), "{mode:?}");
        assert!(receipt.at > Micros::ZERO);
        assert_eq!(store.settle(&[]).await.unwrap().settled, []);
    }
}

/// A bucket owes one capacity at most, and its key expires after at most twice the time to fill.
#[tokio::test]
async fn bucket_debt_is_at_most_one_capacity() {
    let server = RedisServer::start(Flavour::Redis7);
    for (mode, store) in stores(&server) {
        let quota = Quota::per_minute(60).unwrap();
        let quota = quota.with_algorithm(Algorithm::TokenBucket { burst: 600 }).unwrap();
        let key = key(mode, "bucket");
        let check = || Check::new(key.clone(), quota, 1);
        let entry = admit(&store, check(), None).await.entry;
        let correction = Correction::Cost(1_000_000_000_000);
        assert_eq!(settle(&store, &key, entry, correction).await, Settled::Done, "{mode:?}");
        let denied = admit(&store, check(), None).await;
        assert!((1_199..=1_200).contains(&denied.used), "{mode:?}: {} used", denied.used);
        assert!(denied.retry_after <= Micros::from_secs(601), "{mode:?}: {:?}", denied.retry_after);
        assert!(denied.reset_after <= Micros::from_secs(1_200), "{mode:?}: {:?}", denied.reset_after);
        let mut connection = server.client();
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
        for name in keys {
            let left: u64 = redis::cmd("TTL").arg(&name).query(&mut connection).unwrap();
            assert!(left <= 1_200 + 60, "{mode:?}: {name} lives for {left} s");
        }
        // A smaller bucket owes less, at the same rate.
        let small = Quota::per_minute(60).unwrap();
        let small = small.with_algorithm(Algorithm::TokenBucket { burst: 5 }).unwrap();
        let denied = admit(&store, Check::new(key.clone(), small, 1), None).await;
        assert!(denied.retry_after <= Micros::from_secs(6), "{mode:?}: {:?}", denied.retry_after);
    }
}

/// The first process creates the signing key, and the others read it. If Redis loses the key, it is written again.
#[tokio::test]
async fn processes_on_one_redis_share_the_signing_key() {
    let server = RedisServer::start(Flavour::Redis7);
    let options = || patient(&server);
    let rules = "rules: [{ name: per-user, key: [user], limit: 100, window: 1h }]";
    let mut limiters = Vec::new();
    let mut keys = Vec::new();
    for _ in 0..3 {
        let store = RedisStore::with_options(&options()).unwrap();
        let key = store.shared_reservation_key(&ReservationKey::random()).await.unwrap();
        keys.push(key.clone());
        limiters.push(Limiter::new(store, Rules::from_yaml(rules).unwrap()).with_reservation_keys(key));
    }
    assert!(keys.iter().all(|key| *key == keys[0]));
    let decision = limiters[0].acquire(Request::new([("user", "ann")]).permits(9)).await.unwrap();
    let text = limiters[0].sign_decision(&decision).unwrap();
    let read = limiters[2].verify(&text).unwrap();
    assert_eq!(limiters[2].settle(&read, 2).await.unwrap(), Settled::Done);
    assert_eq!(limiters[1].settle(&limiters[1].verify(&text).unwrap(), 0).await.unwrap(), Settled::Already);
    // A deployment with another prefix has its own key.
    let other = RedisStore::with_options(&RedisOptions { prefix: "other".to_owned(), ..options() }).unwrap();
    assert_ne!(other.shared_reservation_key(&ReservationKey::random()).await.unwrap(), keys[0]);
    server.run("FLUSHALL");
    let again = limiters[1].store().shared_reservation_key(&keys[0]).await.unwrap();
    assert_eq!(again, keys[0]);
    let found = limiters[2].store().shared_reservation_key(&ReservationKey::random()).await.unwrap();
    assert_eq!(found, keys[0], "written back");
    server.run("SET sg:{reservation-key}:shared short");
    let error = limiters[0].store().shared_reservation_key(&keys[0]).await.unwrap_err().to_string();
    let expected = "sg:{reservation-key}:shared is too short or too long for a reservation key: delete it";
    assert_eq!(error, expected);
    server.run("DEL sg:{reservation-key}:shared");
    // The signing key is not listed as a counter.
    let page: HashSet<String> =
        limiters[0].store().keys(0, 100).await.unwrap().keys.iter().map(|key| key.to_string()).collect();
    assert!(!page.iter().any(|key| key.contains("reservation")), "{page:?}");
}

/// The signing key is shared on several servers too.
#[tokio::test]
async fn shards_share_the_signing_key() {
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start(Flavour::Redis7)).collect();
    let options = RedisOptions {
        response_timeout: Duration::from_secs(20),
        ..RedisOptions::shards(servers.iter().map(RedisServer::url))
    };
    let mut keys = Vec::new();
    for _ in 0..3 {
        let store = RedisStore::with_options(&options).unwrap();
        keys.push(store.shared_reservation_key(&ReservationKey::random()).await.unwrap());
    }
    assert!(keys.iter().all(|key| *key == keys[0]));
}
