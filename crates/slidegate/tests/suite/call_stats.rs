//! Tests the statistics of the Redis store: calls, decisions without a call, and memory usage.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{
    Encoding, Fault, Key, ManualClock, MemoryStore, Micros, Quota, Rule, Source, Store,
    redis::{BATCH_BOUNDS, CALL_BOUNDS, CallStats, Lease, RedisMode, RedisOptions, RedisStore},
    store::{Check, Checks, Correction, DenyCache, Outcome, Settlement},
};
use slidegate_testkit::{Flavour, RedisServer, lasting_port};

use crate::audit_healthy::{patient, patient_store};
use crate::deployment::soon;
use crate::failover_write_back::{back, failover, given_up};

fn checks(name: &str) -> Checks {
    Checks::one(Check::new(Key::new(name, []), Quota::per_hour(1_000).unwrap(), 1)).unwrap()
}

fn faults(stats: &CallStats, fault: Fault) -> u64 {
    stats.errors.iter().find(|(other, _)| *other == fault).unwrap().1
}

#[tokio::test]
async fn calls_are_counted_and_timed() {
    for mode in [RedisMode::Script, RedisMode::Transaction] {
        let server = RedisServer::start(Flavour::Redis7);
        let options = RedisOptions { mode, batch_size: 10, ..patient(&server) };
        let store = RedisStore::with_options(&options).unwrap();
        let none = store.calls();
        assert_eq!((none.calls, none.requests, none.time), (0, 0, Micros::ZERO));
        assert_eq!(
            (none.durations.len(), none.batches.len()),
            (CALL_BOUNDS.len() + 1, BATCH_BOUNDS.len() + 1)
        );
        let batch_verdicts = store.admit(&[checks("a")]).await.unwrap();
        // The store sends them in batches of 10, 10 and 5.
        let batch: Vec<Checks> = (0..25).map(|n| checks(&format!("a{n}"))).collect();
        store.admit(&batch).await.unwrap();
        let entry = batch_verdicts[0].verdicts[0].entry;
        store
            .settle(&[Settlement { key: Key::new("a", []), entry, correction: Correction::Cost(0) }])
            .await
            .unwrap();
        // These calls decide nothing, so they are not counted as requests.
        store.inspect(&Key::new("a", [])).await.unwrap();
        store.keys(0, 10).await.unwrap();
        store.audit(&Key::new("a", []), None, false).await.unwrap();
        let stats = store.calls();
        assert_eq!((stats.calls, stats.requests), (5, 26), "{mode:?}");
        assert_eq!(stats.batches, [1, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0], "{mode:?}");
        assert_eq!(stats.durations.iter().sum::<u64>(), 5);
        assert!(stats.time > Micros::ZERO && stats.errors.iter().all(|(_, n)| *n == 0));
        let mut names: Vec<_> = stats.errors.iter().map(|(fault, _)| fault.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 16, "each fault is named once");
        // Failed calls are counted too.
        server.run("SET sg:{x} 1");
        assert_eq!(store.admit(&[checks("x")]).await.unwrap_err().fault(), Some(Fault::WrongType));
        server.run("DEL sg:{x}");
        server.kill();
        assert!(store.admit(&[checks("a")]).await.is_err());
        let failed = store.calls();
        assert_eq!((failed.calls, failed.requests), (7, 26), "{mode:?}");
        assert_eq!(faults(&failed, Fault::WrongType), 1);
        assert_eq!(faults(&failed, Fault::Lost) + faults(&failed, Fault::Unreachable), 1);
    }
}

#[tokio::test]
async fn run_of_checks_is_one_call() {
    let server = RedisServer::start(Flavour::Redis7);
    let store = patient_store(&server);
    store.admit_run(&checks("a"), 300).await.unwrap();
    let stats = store.calls();
    assert_eq!((stats.calls, stats.requests, stats.batches[8]), (1, 300, 1));
}

#[tokio::test]
async fn deny_cache_counts_its_denials() {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let cache = DenyCache::with_clock(MemoryStore::with_clock(clock.clone(), 100), 100, clock);
    let check = Check::new(Key::new("k", []), Quota::per_hour(1).unwrap(), 1);
    let checks = Checks::one(check).unwrap();
    for hits in [0, 0, 1, 2] {
        cache.admit(std::slice::from_ref(&checks)).await.unwrap();
        assert_eq!(cache.stats().hits, hits);
    }
    cache.admit(&[checks.clone(), checks.clone(), checks]).await.unwrap();
    assert_eq!(cache.clone().stats().hits, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn counts_of_concurrent_threads_add_up() {
    let store = MemoryStore::new();
    let quota = Quota::per_hour(1_000_000).unwrap();
    let rule = Rule::new("hot", quota).unwrap().lease(64, Duration::from_secs(60)).unwrap();
    let (permits, _) = rule.leased().unwrap();
    let check = Check { lease: Some(permits), ..Check::new(Key::new("hot", []), rule.quota(), 1) };
    let (lease, checks) = (Arc::new(Lease::new(store)), Checks::one(check).unwrap());
    let callers = (0..8).map(|_| {
        let (lease, checks) = (Arc::clone(&lease), checks.clone());
        tokio::spawn(async move {
            let mut handed = 0;
            for _ in 0..500 {
                let verdicts = lease.admit(std::slice::from_ref(&checks)).await.unwrap().remove(0);
                assert_eq!(verdicts.verdicts[0].outcome, Outcome::Charged);
                handed += u64::from(verdicts.source == Source::Lease);
                tokio::task::yield_now().await;
            }
            handed
        })
    });
    let mut handed = 0;
    for caller in callers.collect::<Vec<_>>() {
        handed += caller.await.unwrap();
    }
    assert_eq!(lease.stats().answered, handed);
    assert!(handed > 100, "{handed}");
}

#[tokio::test]
async fn time_without_the_server_is_summed() {
    let port = lasting_port();
    let server = RedisServer::at(Flavour::Redis7, port);
    let failover = failover(&server.url(), slidegate::redis::FailoverOptions::default());
    let away = || failover.servers().first().map_or(Micros::ZERO, |server| server.away);
    failover.admit(&[checks("a")]).await.unwrap();
    assert_eq!(away(), Micros::ZERO);
    server.kill();
    for _ in 0..20 {
        failover.admit(&[checks("a")]).await.unwrap();
    }
    given_up(&failover, 1).await;
    soon("time passes", || away() > Micros::from_millis(100)).await;
    server.restart();
    back(&failover, 1).await;
    let total = away();
    assert!(total > Micros::from_millis(100));
    failover.admit(&[checks("a")]).await.unwrap();
    assert_eq!(away(), total, "the server is back, so the time away no longer grows");
}

#[tokio::test]
async fn memory_usage_separates_own_keys() {
    let server = RedisServer::with(Flavour::Redis7, &["--maxmemory", "100mb"], &[]).without_ttl_check();
    let store = patient_store(&server);
    let quota = Quota::per_hour(100).unwrap();
    for n in 0..600 {
        let (rule, encoding) = if n % 3 == 0 { ("few", Encoding::Packed) } else { ("many", Encoding::Zset) };
        let n = n.to_string();
        let key = match rule {
            "few" => Key::tagged(("tenant", &n), rule, [("n", n.as_str())]),
            _ => Key::new(rule, [("n", n.as_str())]),
        };
        let checks = Checks::one(Check { encoding, ..Check::new(key, quota, 1) }).unwrap();
        store.admit(&[checks]).await.unwrap();
    }
    let mut client = server.client();
    for n in 0..1_400 {
        redis::cmd("SET").arg(format!("other{n}")).arg("x").exec(&mut client).unwrap();
    }
    let [memory] = &store.memory().await.unwrap()[..] else { panic!() };
    assert_eq!((memory.address.as_str(), memory.max), (store.address(), 100 * 1024 * 1024));
    assert_eq!((memory.policy.as_str(), memory.keys), ("noeviction", 2_000));
    assert!(memory.used > 500_000);
    let all = store.weigh(10_000).await.unwrap();
    assert_eq!((all.keys, all.sampled), (600, 600));
    let rules: Vec<_> = all.rules.iter().map(|rule| (rule.rule.as_str(), rule.keys)).collect();
    assert_eq!(rules, [("few", 200), ("many", 400)], "the largest keys come first");
    assert_eq!(all.bytes, all.rules.iter().map(|rule| rule.bytes).sum::<u64>());
    assert!(all.rules[0].bytes > 200 * 300 && all.rules[1].bytes > 400 * 50, "{all:?}");
    let some = store.weigh(150).await.unwrap();
    assert_eq!(some.sampled, 150);
    assert!((400..900).contains(&some.keys), "{some:?}");
    assert!((all.bytes / 2..all.bytes * 2).contains(&some.bytes), "{some:?}, {all:?}");
    assert_eq!(store.weigh(0).await.unwrap(), slidegate::redis::MemoryUsage::default());
}
