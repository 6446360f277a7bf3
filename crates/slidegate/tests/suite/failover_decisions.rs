//! Tests decisions that failover makes without the store, and their correction when the store is back.

use std::time::Duration;

use slidegate::{
    Clock, Key, Limiter, Micros, OnError, Quota, RequestId, Rules, Settled, Source, Store, SystemClock,
    redis::{BreakerState, FailoverOptions},
    store::{Check, Checks, Correction, Outcome, Settlement, Verdicts},
};
use slidegate_testkit::{Fault, FaultProxy, Flavour, RedisServer, lasting_port};

use crate::deployment::{ms, soon};
use crate::failover_write_back::{back, failover, given_up, used, ways};
use crate::watchdog::Watchdog;

fn check(name: &str, limit: u64, on_error: OnError) -> Check {
    let quota = Quota::per_hour(limit).unwrap();
    Check { on_error: Some(on_error), ..Check::new(Key::new(name, [("n", "1")]), quota, 1) }
}

async fn admit(failover: &slidegate::redis::Failover, check: Check) -> Verdicts {
    failover.admit(&[Checks::one(check).unwrap()]).await.unwrap().remove(0)
}

/// Waits until `holds` returns true. Panics with `what` if it does not within a minute.
async fn later(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(ms(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), waiting).await.is_ok(), "not in 60 s: {what}");
}

/// No process listens at the address, or the listener never answers: policies apply from the first decision on.
#[tokio::test]
async fn policies_hold_if_the_server_was_never_reachable() {
    let port = lasting_port();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for (what, port) in [("nobody listens", port), ("nobody speaks", silent.local_addr().unwrap().port())] {
        let options = FailoverOptions::default();
        let failover = failover(&format!("redis://127.0.0.1:{port}"), options.clone());
        let clock = SystemClock::new();
        let watchdog = Watchdog::start(&clock);
        let mut taken = Vec::new();
        let mut admitted = 0;
        for n in 0..30 {
            for (on_error, source) in [
                (OnError::Local, Source::Local),
                (OnError::Open, Source::FailOpen),
                (OnError::Closed, Source::FailClosed),
            ] {
                let started = clock.now().get();
                let verdicts = admit(&failover, check(source.as_str(), 10, on_error)).await;
                taken.push((started, clock.now().get()));
                assert_eq!(verdicts.source, source);
                match verdicts.verdicts[0].outcome {
                    Outcome::Charged => admitted += 1,
                    outcome if on_error == OnError::Local => {
                        assert_eq!((outcome, n >= 10), (Outcome::Denied, true))
                    }
                    outcome => assert_eq!(outcome.denies(), on_error == OnError::Closed),
                }
            }
        }
        watchdog.catch_up().await;
        let slowest = taken.into_iter().map(|(from, to)| watchdog.between(from, to)).max().unwrap();
        eprintln!("{what}: 90 decisions by policy, slowest {slowest:?} without stalls");
        assert_eq!(admitted, 10);
        assert!(slowest <= options.deadline + ms(10));
    }
    // The server learns of the admissions when it is reachable.
    let failover = failover(&format!("redis://127.0.0.1:{port}"), FailoverOptions::default());
    for _ in 0..7 {
        assert_eq!(admit(&failover, check("late", 10, OnError::Local)).await.source, Source::Local);
    }
    given_up(&failover, 1).await;
    let _server = tokio::task::spawn_blocking(move || RedisServer::at(Flavour::Redis7, port)).await.unwrap();
    back(&failover, 1).await;
    assert_eq!(failover.inspect(&check("late", 10, OnError::Local).key).await.unwrap().unwrap().used, 7);
}

/// The server executes a call after the caller has already got another answer.
#[tokio::test]
async fn late_reply_is_corrected() {
    let server = RedisServer::start(Flavour::Redis7);
    let proxy = FaultProxy::start(server.address());
    // The shortest heartbeat interval: heartbeats write the local decisions while the late answer is on its way.
    for heartbeat in [ms(50), ms(2_000)] {
        server.run("FLUSHALL");
        // A long timeout, so that a busy machine does not cause a late answer.
        let options = FailoverOptions { failures: 1_000, deadline: ms(2_000), ..FailoverOptions::default() };
        let redis = slidegate::redis::RedisOptions {
            response_timeout: ms(20_000),
            ..slidegate::redis::RedisOptions::new(proxy.url())
        };
        let store = slidegate::redis::RedisStore::with_options(&redis).unwrap();
        let failover =
            slidegate::redis::Failover::new(store, FailoverOptions { heartbeat, ..options }).unwrap();
        for on_error in [OnError::Local, OnError::Closed, OnError::Open] {
            let verdicts = admit(&failover, check(&format!("{on_error:?}"), 100, on_error)).await;
            assert_eq!(verdicts.source, Source::Store);
        }
        // The round trip takes longer than the deadline, and less than the response timeout of a connection.
        proxy.set(Fault::Delay(ms(1_300)));
        let mut tasks = Vec::new();
        for _ in 0..5 {
            for (on_error, source) in [
                (OnError::Local, Source::Local),
                (OnError::Closed, Source::FailClosed),
                (OnError::Open, Source::FailOpen),
            ] {
                let failover = failover.clone();
                tasks.push(tokio::spawn(async move {
                    let verdicts = admit(&failover, check(&format!("{on_error:?}"), 100, on_error)).await;
                    assert_eq!(verdicts.source, source);
                }));
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(failover.stats().late, 15);
        proxy.set(Fault::None);
        soon("calls end", || failover.stats().in_flight == 0).await;
        let counts = async || {
            let mut counts = Vec::new();
            for on_error in [OnError::Local, OnError::Closed, OnError::Open] {
                let key = check(&format!("{on_error:?}"), 100, on_error).key;
                counts.push(failover.inspect(&key).await.unwrap().unwrap().used);
            }
            counts
        };
        // An open rule counts the calls that reached the server.
        let expected = [6, 1, 6];
        later("the store counts the admissions that callers got", async || counts().await == expected).await;
        // The counts stay the same when the failover store writes its next decision without the server.
        proxy.set(Fault::Reset);
        assert_eq!(admit(&failover, check("marker", 100, OnError::Local)).await.source, Source::Local);
        proxy.set(Fault::None);
        let marker = check("marker", 100, OnError::Local).key;
        later("the marker is written", async || {
            failover.inspect(&marker).await.is_ok_and(|found| found.is_some_and(|found| found.used == 1))
        })
        .await;
        let counted = counts().await;
        eprintln!("5 late answers each: {counted:?} counted with policies local, closed, open, and 1 before");
        assert_eq!(counted, expected);
    }
}

/// A reservation made without the store is settled before it is written back, and after.
#[tokio::test]
async fn local_reservation_is_settled() {
    let port = lasting_port();
    let failover = failover(&format!("redis://127.0.0.1:{port}"), FailoverOptions::default());
    let mut reserved = Vec::new();
    for check in ways() {
        let mut entries = Vec::new();
        for _ in 0..3 {
            let verdicts = admit(&failover, Check { cost: 10, ..check.clone() }).await;
            assert_eq!(verdicts.source, Source::Local);
            entries.push(verdicts.verdicts[0].entry);
        }
        reserved.push((check.key, entries));
    }
    let settle = async |place: usize, permits: u64| {
        let mut settled = Vec::new();
        for (key, entries) in &reserved {
            let settlement =
                Settlement { key: key.clone(), entry: entries[place], correction: Correction::Cost(permits) };
            settled.push(failover.settle(&[settlement]).await.unwrap().settled[0]);
        }
        settled
    };
    assert_eq!(settle(0, 4).await, [Settled::Done; 7]);
    given_up(&failover, 1).await;
    let _server = tokio::task::spawn_blocking(move || RedisServer::at(Flavour::Redis7, port)).await.unwrap();
    back(&failover, 1).await;
    assert_eq!(used(&failover).await, [24; 7]);
    assert_eq!(settle(1, 3).await, [Settled::Done; 7]);
    assert_eq!(used(&failover).await, [17; 7]);
    assert_eq!(settle(2, 0).await, [Settled::Done; 7]);
    let left = used(&failover).await;
    eprintln!("three reservations of 10 made without the store, settled to 4, 3 and 0: {left:?} in use");
    assert_eq!(left, [7; 7]);
}

/// Reservation numbers that the store derives from request ids are large, and still belong to the store.
#[tokio::test]
async fn reservation_with_id_is_settled_in_the_store() {
    let server = RedisServer::start(Flavour::Redis7);
    let options = FailoverOptions { deadline: ms(2_000), ..FailoverOptions::default() };
    let failover = failover(&server.url(), options);
    for check in ways() {
        for n in 0..20 {
            let checks =
                Checks::one(check.clone()).unwrap().with_id(RequestId::new(&format!("r{n}")).unwrap());
            let verdicts = failover.admit(&[checks]).await.unwrap().remove(0);
            let entry = verdicts.verdicts[0].entry;
            let settlement = [Settlement::refund(check.key.clone(), entry)];
            assert_eq!(failover.settle(&settlement).await.unwrap().settled, [Settled::Done], "{entry:?}");
            // A bucket that is full again no longer knows the reservation.
            assert_ne!(failover.settle(&settlement).await.unwrap().settled, [Settled::Done]);
        }
    }
    assert_eq!(used(&failover).await, [0; 7]);
}

/// The same with a limiter and the text that a client has of the reservation.
#[tokio::test]
async fn reservation_text_survives_the_return_of_the_store() {
    let port = lasting_port();
    let rules = "rules: [{ name: per-user, key: [user], limit: 100, window: 1h }]";
    let failover = failover(&format!("redis://127.0.0.1:{port}"), FailoverOptions::default());
    let limiter = Limiter::new(failover.clone(), Rules::from_yaml(rules).unwrap());
    let decision = limiter.acquire(slidegate::Request::new([("user", "ann")]).permits(9)).await.unwrap();
    assert_eq!((decision.allowed(), decision.source()), (true, Source::Local));
    let reservation = limiter.sign_decision(&decision).unwrap();
    given_up(&failover, 1).await;
    let _server = tokio::task::spawn_blocking(move || RedisServer::at(Flavour::Redis7, port)).await.unwrap();
    back(&failover, 1).await;
    assert_eq!(limiter.settle(&limiter.verify(&reservation).unwrap(), 2).await.unwrap(), Settled::Done);
    let key = Key::new("per-user", [("user", "ann")]);
    assert_eq!(limiter.inspect(&key).await.unwrap().unwrap().used, 2);
}

#[tokio::test]
async fn share_grows_when_a_node_leaves() {
    let server = RedisServer::start(Flavour::Redis7);
    let (one, other) = (
        failover(&server.url(), FailoverOptions::default()),
        failover(&server.url(), FailoverOptions::default()),
    );
    let nodes = |failover: &slidegate::redis::Failover| {
        failover.stats().servers.first().map_or(0, |server| server.nodes)
    };
    one.start();
    other.start();
    soon("the nodes know of each other", || nodes(&one) == 2 && nodes(&other) == 2).await;
    let clock = SystemClock::new();
    let left = clock.now().get();
    other.leave().await;
    drop(other);
    soon("the first node is alone", || nodes(&one) == 1).await;
    eprintln!(
        "a node left, and the other knew {} later, with a heartbeat of 100 ms",
        Micros::new(clock.now().get() - left)
    );
    server.kill();
    given_up(&one, 1).await;
    let mut admitted = 0;
    while admit(&one, check("share", 10, OnError::Local)).await.verdicts[0].outcome == Outcome::Charged {
        admitted += 1;
    }
    assert_eq!(admitted, 10, "the node alone admits all of the limit");
}

/// A batch waits no longer than a single call, also while a request needs the permission of the server and of the
/// node's share.
#[tokio::test]
async fn batch_waits_for_one_deadline() {
    let server = RedisServer::start(Flavour::Redis7);
    let proxy = FaultProxy::start(server.address());
    let options = FailoverOptions { write_back: ms(20_000), ..FailoverOptions::default() };
    let start = || {
        let store = slidegate::redis::RedisStore::new(&proxy.url()).unwrap();
        let failover = slidegate::redis::Failover::new(store, options.clone()).unwrap();
        failover.start();
        failover
    };
    let (one, other) = (start(), start());
    soon("the nodes know of each other", || one.stats().servers.iter().any(|server| server.nodes == 2)).await;
    // The first node waits for the second, which does not come back.
    drop(other);
    server.restart();
    soon("the first node waits for the second", || {
        let stats = &one.stats().servers[0];
        stats.outages > 0 && stats.breaker == BreakerState::Closed && !stats.direct
    })
    .await;
    proxy.set(Fault::BlackHole);
    let clock = SystemClock::new();
    let watchdog = Watchdog::start(&clock);
    let batch: Vec<Checks> =
        (0..40).map(|_| Checks::one(check("batch", 1_000, OnError::Local)).unwrap()).collect();
    let started = clock.now().get();
    let batch_verdicts = one.admit(&batch).await.unwrap();
    let answered = clock.now().get();
    watchdog.catch_up().await;
    let took = watchdog.between(started, answered);
    eprintln!("a batch of 40 that the server does not answer: {took:?} without stalls");
    assert!(batch_verdicts.iter().all(|verdicts| verdicts.source == Source::Local));
    assert!(took <= options.deadline + ms(10));
    proxy.set(Fault::None);
}
