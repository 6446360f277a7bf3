//! Tests write-back for each algorithm: exactly the state that a server has lost is written back.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{
    Algorithm, Encoding, Key, OnError, Quota, Settled, Source, Store,
    redis::{Failover, FailoverOptions, RedisOptions, RedisStore},
    store::{Check, Checks, Correction, Outcome, Settlement},
};
use slidegate_testkit::{Flavour, RedisServer};

use crate::deployment::{ms, soon};

/// Every way to count, each under its own key. Windows are so long that nothing expires and no permit refills during a
/// test.
pub(crate) fn ways() -> Vec<Check> {
    let monthly = |limit| Quota::new(limit, Duration::from_secs(30 * 86_400)).unwrap();
    let quota = || monthly(1_000);
    let by = |algorithm| quota().with_algorithm(algorithm).unwrap();
    let bucket = Quota::per_hour(1).unwrap().with_algorithm(Algorithm::TokenBucket { burst: 1_000 }).unwrap();
    let ways = [
        ("sliding-window", quota(), Encoding::Zset),
        ("packed", quota(), Encoding::Packed),
        ("time-slice", by(Algorithm::TimeSlice { slices: 10 }), Encoding::Zset),
        ("fixed-window", by(Algorithm::FixedWindow), Encoding::Zset),
        ("token-bucket", bucket, Encoding::Zset),
        ("concurrency", by(Algorithm::Concurrency), Encoding::Zset),
        ("sliding-counter", by(Algorithm::SlidingCounter), Encoding::Zset),
    ];
    let check = |(name, quota, encoding): (&str, Quota, Encoding)| Check {
        encoding,
        on_error: Some(OnError::Local),
        ..Check::new(Key::new(name, [("n", "1")]), quota, 1)
    };
    ways.map(check).into()
}

pub(crate) fn failover(url: &str, options: FailoverOptions) -> Failover {
    let store = RedisStore::with_options(&RedisOptions::new(url)).unwrap();
    Failover::new(store, FailoverOptions { heartbeat: ms(100), ..options }).unwrap()
}

pub(crate) async fn used(failover: &Failover) -> Vec<u64> {
    let mut used = Vec::new();
    for check in ways() {
        used.push(failover.inspect(&check.key).await.unwrap().map_or(0, |inspection| inspection.used));
    }
    used
}

/// Acquires `times` times under each key: one permit in the first half, three in the second. Returns the source of the
/// decisions.
async fn admit(failover: &Failover, times: u64) -> Source {
    let mut source = Source::Store;
    for n in 0..times {
        for check in ways() {
            let check = Check { cost: if n * 2 < times { 1 } else { 3 }, ..check };
            let verdicts = failover.admit(&[Checks::one(check).unwrap()]).await.unwrap().remove(0);
            assert_eq!(verdicts.verdicts[0].outcome, Outcome::Charged);
            source = source.max(verdicts.source);
        }
    }
    source
}

pub(crate) async fn given_up(failover: &Failover, outages: u64) {
    soon("the server is given up", || {
        failover.stats().servers.iter().any(|server| server.outages >= outages)
    })
    .await;
}

pub(crate) async fn back(failover: &Failover, outages: u64) {
    soon("the failover calls the server again", || {
        failover.stats().servers.iter().all(|server| server.outages >= outages && server.direct)
    })
    .await;
}

async fn killed(server: &Arc<RedisServer>) {
    let server = Arc::clone(server);
    tokio::task::spawn_blocking(move || server.kill()).await.unwrap();
}

async fn restarted(server: &Arc<RedisServer>) {
    let server = Arc::clone(server);
    tokio::task::spawn_blocking(move || server.restart()).await.unwrap();
}

async fn comes_back(name: &str, server: RedisServer) {
    let server = Arc::new(server);
    // Stalls of the machine are no outages.
    let failover =
        failover(&server.url(), FailoverOptions { deadline: ms(2_000), ..FailoverOptions::default() });
    assert_eq!(admit(&failover, 40).await, Source::Store);
    let before = used(&failover).await;
    assert_eq!(before, [80; 7]);
    for outages in 1..=2 {
        killed(&server).await;
        restarted(&server).await;
        back(&failover, outages).await;
        assert_eq!(used(&failover).await, before, "{name}, after {outages} outages");
    }
    // Admissions that were made without the server are added once.
    killed(&server).await;
    given_up(&failover, 3).await;
    assert_eq!(admit(&failover, 10).await, Source::Local);
    restarted(&server).await;
    back(&failover, 3).await;
    let after = used(&failover).await;
    assert_eq!(after, [100; 7], "{name}");
    assert_eq!(admit(&failover, 10).await, Source::Store);
    killed(&server).await;
    restarted(&server).await;
    back(&failover, 4).await;
    let mut last = used(&failover).await;
    // A time-slice is not exact yet: a local decision may get the instant of the next slice, which is written again to
    // a server that kept it.
    let sliced = last.remove(2);
    assert!(sliced == 120 || sliced == 140, "{name}: {sliced}");
    assert_eq!(last, [120; 6], "{name}");
    let stats = &failover.stats().servers[0];
    eprintln!(
        "{name}, killed 4 times: {before:?} in use before, {after:?} after 20 more without it; {} permits written \
         back, excess {}",
        stats.written_back, stats.excess
    );
    assert_eq!(stats.excess, 0);
    eprintln!("{name}: {sliced} in use of a time-slice in the end, 120 are right");
}

#[tokio::test]
async fn lost_state_is_written_back() {
    comes_back("empty", RedisServer::start(Flavour::Redis7)).await;
}

#[tokio::test]
async fn intact_state_is_not_written_twice() {
    let keeps = ["--appendonly", "yes", "--appendfsync", "always"];
    comes_back("kept", RedisServer::with(Flavour::Redis7, &keeps, &[])).await;
}

/// Each slice has its own sum: the admissions of two nodes in it are written back, even if every slice has the same
/// sum.
#[tokio::test]
async fn equal_slices_of_two_nodes_are_written_back() {
    let server = Arc::new(RedisServer::start(Flavour::Redis7));
    let options = || FailoverOptions { deadline: ms(2_000), ..FailoverOptions::default() };
    let nodes = [failover(&server.url(), options()), failover(&server.url(), options())];
    // Slices of 200 ms.
    let quota = Quota::new(1_000, Duration::from_secs(2_000)).unwrap();
    let quota = quota.with_algorithm(Algorithm::TimeSlice { slices: 10_000 }).unwrap();
    let check =
        Check { on_error: Some(OnError::Local), ..Check::new(Key::new("slices", [("n", "1")]), quota, 1) };
    for _ in 0..3 {
        for node in &nodes {
            let reading = node.admit(&[Checks::one(check.clone()).unwrap()]).await.unwrap().remove(0);
            assert_eq!(reading.verdicts[0].outcome, Outcome::Charged);
        }
        tokio::time::sleep(ms(250)).await;
    }
    killed(&server).await;
    restarted(&server).await;
    for node in &nodes {
        back(node, 1).await;
        let inspection = node.inspect(&check.key).await.unwrap();
        assert_eq!(inspection.map_or(0, |inspection| inspection.used), 6);
    }
}

/// Held permits count from their last extension, also on a server that has lost them. The identity of a holder is lost for
/// good: its permit is held until its time is over.
#[tokio::test]
async fn held_permits_are_written_back() {
    let server = Arc::new(RedisServer::start(Flavour::Redis7));
    let failover =
        failover(&server.url(), FailoverOptions { deadline: ms(2_000), ..FailoverOptions::default() });
    let quota = Quota::per_hour(3).unwrap().with_algorithm(Algorithm::Concurrency).unwrap();
    let key = Key::new("held", []);
    let checks =
        Checks::one(Check { on_error: Some(OnError::Local), ..Check::new(key.clone(), quota, 1) }).unwrap();
    let admit = async || failover.admit(std::slice::from_ref(&checks)).await.unwrap().remove(0).verdicts[0];
    let correct = async |entry, correction| {
        let settlement = Settlement { key: key.clone(), entry, correction };
        failover.settle(&[settlement]).await.unwrap().settled[0]
    };
    let instants = async || {
        let inspection = failover.inspect(&key).await.unwrap().unwrap();
        inspection.entries.iter().map(|entry| entry.at).collect::<Vec<_>>()
    };
    let (extended, plain) = (admit().await.entry, admit().await.entry);
    assert_eq!(correct(extended, Correction::Extend).await, Settled::Done);
    let before = instants().await;
    assert!(before.contains(&plain.at) && !before.contains(&extended.at), "{before:?}");
    killed(&server).await;
    restarted(&server).await;
    back(&failover, 1).await;
    assert_eq!(instants().await, before);
    assert_eq!(correct(extended, Correction::Extend).await, Settled::Gone);
    assert_eq!(correct(plain, Correction::Extend).await, Settled::Done);
    assert_eq!(correct(plain, Correction::Cost(0)).await, Settled::Done);
    assert_eq!(
        [admit().await, admit().await, admit().await].map(|verdict| verdict.outcome),
        [Outcome::Charged, Outcome::Charged, Outcome::Denied]
    );
}
