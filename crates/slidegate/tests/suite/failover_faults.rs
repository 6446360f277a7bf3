//! Tests failover under load with a failing network, flushed scripts and a clock that is set: bounded, quick and exact.
//!
//! `FAILOVER_FAULT_MS` makes each fault last longer, `FAILOVER_FLUSHES` flushes the scripts more often.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slidegate::{
    Clock, Key, Micros, Quota, Source, Store,
    redis::{BreakerState, Failover, FailoverOptions, RedisOptions, RedisStore},
    store::{Check, Checks, Outcome},
};
use slidegate_testkit::{FakeTime, Fault, FaultProxy, Flavour, RedisServer};

use crate::deployment::{CLOSED, CallRecord, Deployment, OPEN, ms, soon};
use crate::failover_kills::{number, obeys};
use crate::fault_bounds::{Outage, Run, over};

const ALL: [u64; 5] = [0, 1, 2, 3, 4];

/// Long timeouts, because the machine may be busy with other tests.
fn patient() -> FailoverOptions {
    FailoverOptions { deadline: ms(20_000), ..FailoverOptions::default() }
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

/// Runs in a separate process, so that only the failover store and its callers use its memory.
#[test]
fn network_faults_stay_bounded() {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "failover_faults::worker", "--ignored", "--nocapture"])
        .env("FAILOVER_FAULTS_WORKER", "1")
        .stdout(std::process::Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

/// Not a test by itself: the code of the process that the test starts.
#[tokio::test]
#[ignore = "started by the test above"]
async fn worker() {
    if std::env::var("FAILOVER_FAULTS_WORKER").is_err() {
        return;
    }
    let lasts = ms(number("FAILOVER_FAULT_MS", 1_500));
    for fault in [
        Fault::BlackHole,
        Fault::Delay(ms(200)),
        Fault::Reset,
        Fault::HalfOpen,
        Fault::Drip { bytes: 16, every: ms(10) },
    ] {
        fails(fault, lasts).await;
    }
}

const CAP: usize = 32;
const NODES: usize = 2;

/// Observations of the first node during a fault.
#[derive(Default)]
struct Seen {
    in_flight: usize,
    /// Periods in which its breaker was not closed.
    open: Vec<(u64, u64)>,
    /// Resident bytes, sampled at intervals.
    resident: Vec<u64>,
}

impl Seen {
    /// Returns true if the breaker was open all the time from the start of a call to its end.
    fn was_open(&self, call: &CallRecord) -> bool {
        let place = self.open.partition_point(|(_, end)| *end < call.answered);
        call.node == 0 && self.open.get(place).is_some_and(|(start, _)| *start <= call.started)
    }
}

async fn watch(failover: Failover, clock: impl Clock, seen: Arc<Mutex<Seen>>, stop: Arc<AtomicBool>) {
    let mut since = None;
    while !stop.load(Ordering::Relaxed) {
        let stats = failover.stats();
        let open =
            stats.servers.iter().all(|server| server.breaker != BreakerState::Closed && !server.direct);
        let now = clock.now().get();
        {
            let mut seen = seen.lock().unwrap();
            seen.in_flight = seen.in_flight.max(stats.in_flight);
            seen.resident.push(resident());
            // One period per pair of samples: between two samples the breaker may have closed and opened again.
            if let (Some(since), true) = (since, open) {
                seen.open.push((since, now));
            }
        }
        since = open.then_some(now);
        tokio::time::sleep(ms(5)).await;
    }
}

async fn fails(fault: Fault, lasts: Duration) {
    let server = RedisServer::start(Flavour::Redis7);
    let proxy = FaultProxy::start(server.address());
    let options = FailoverOptions {
        max_in_flight: CAP,
        heartbeat: ms(500),
        write_back: ms(20_000),
        ..FailoverOptions::default()
    };
    let redis = RedisOptions::new(proxy.url());
    // More callers on each node than may be in flight.
    let deployment =
        Deployment::start_with_keys(&[0, 1, 2, 3, 4, OPEN, CLOSED], NODES, 40, ms(25), &redis, &options)
            .await;
    let watchdog = Arc::clone(&deployment.watchdog);
    deployment.until_full(&ALL).await;
    let (seen, stop) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
    let (failover, clock) = (deployment.nodes[0].clone(), deployment.clock.clone());
    let watching = tokio::spawn(watch(failover, clock, Arc::clone(&seen), Arc::clone(&stop)));
    proxy.set(fault);
    let gone = deployment.now();
    let given_up = |failover: &Failover| failover.stats().servers.iter().any(|server| server.outages > 0);
    soon("every node gives the server up", || deployment.nodes.iter().all(given_up)).await;
    // A leak of memory would show in this time.
    tokio::time::sleep(lasts).await;
    let until = deployment.now();
    proxy.set(Fault::None);
    let back = deployment.now();
    stop.store(true, Ordering::Relaxed);
    watching.await.unwrap();
    deployment.until_by_store(0).await;
    deployment.until_full(&ALL).await;
    let stats = deployment.nodes[0].stats();
    let calls = deployment.stop().await;

    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let during = |call: &&CallRecord| call.started >= gone && call.answered < until;
    let latency = watchdog.latency(calls.iter().filter(during));
    let quick = watchdog.latency(calls.iter().filter(|call| seen.was_open(call)));
    // Growth of the second half over the first half, in which caches and buffers were filled.
    let (first, second) = seen.resident.split_at(seen.resident.len() / 2);
    let (before, after) = (*first.iter().max().unwrap(), *second.iter().max().unwrap());
    // Without the records of the callers.
    let remembered = (calls.len() * size_of::<CallRecord>()) as u64;
    let growth = after.saturating_sub(before).saturating_sub(remembered);
    let disobeyed: Vec<&CallRecord> = calls.iter().filter(|call| !obeys(call)).collect();
    let what = format!("{fault:?}");
    eprintln!(
        "{what} for {lasts:?}: {latency}; breaker open: {quick}; at most {} of {CAP} in flight, {} overloaded, {} late;          resident {} KiB, grown by {} KiB; {} against their policy; {} outages",
        seen.in_flight,
        stats.overloaded,
        stats.late,
        after / 1_024,
        growth / 1_024,
        disobeyed.len(),
        stats.servers[0].outages,
    );
    assert!(disobeyed.is_empty(), "{disobeyed:?}");
    assert!(seen.in_flight <= CAP);
    assert!(growth < 8 << 20, "{before} -> {after}");
    assert!(latency.corrected <= options.deadline + ms(10), "{latency}");
    assert!(quick.answers > 0 && quick.median < ms(1), "{quick}");
    // There are more callers than calls in flight, so a node that returns may decide alone once more.
    let outages = [Outage { gone, until, back, given_up: false }];
    Run { calls: &calls, nodes: NODES, deadline: options.deadline, in_flight: CAP as u64, outages: &outages }
        .assert_bounds(&what, &ALL);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flush_is_no_outage() {
    let server = RedisServer::start(Flavour::Redis7);
    let deployment = Deployment::start(2, 4, ms(2), &RedisOptions::new(server.url()), &patient()).await;
    let (flushes, stop) = (number("FAILOVER_FLUSHES", 500), Arc::<AtomicBool>::default());
    let flushing = tokio::task::spawn_blocking({
        let stop = Arc::clone(&stop);
        move || {
            let mut connection = server.client();
            let mut flushed = 0;
            while flushed < flushes || !stop.load(Ordering::Relaxed) {
                redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).unwrap();
                flushed += 1;
                std::thread::sleep(ms(4));
            }
            (server, flushed)
        }
    });
    deployment.until("1,000 decisions on each node", |calls| calls.len() >= 1_000).await;
    stop.store(true, Ordering::Relaxed);
    let (_server, flushed) = flushing.await.unwrap();
    let calls = deployment.stop().await;
    let others = calls.iter().filter(|call| call.source != Source::Store).count();
    eprintln!("scripts flushed {flushed} times: {} decisions, {others} not by the store", calls.len());
    assert_eq!((others, over(&calls, &ALL)), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_set_back_stays_bounded() {
    let time = FakeTime::start();
    time.set(60_000);
    let server = RedisServer::with(Flavour::Valkey9, &[], &time.environment());
    let proxy = FaultProxy::start(server.address());
    let options = FailoverOptions { heartbeat: ms(500), write_back: ms(20_000), ..patient() };
    let deployment = Deployment::start(2, 4, ms(3), &RedisOptions::new(proxy.url()), &options).await;
    let every = [0, 1, 2, 3, 4, 5];
    deployment.until_full(&every).await;
    time.set(30_000);
    let stepped = deployment.now();
    // Every node has seen the new clock: the admissions are in the future, so no key has room.
    deployment.until_full(&every).await;
    proxy.set(Fault::Reset);
    soon("the server is given up", || {
        deployment.nodes.iter().all(|failover| failover.stats().servers[0].outages > 0)
    })
    .await;
    deployment.until_given_up(0).await;
    proxy.set(Fault::None);
    deployment.until_by_store(0).await;
    let calls = deployment.stop().await;
    let allowed =
        |after: bool| calls.iter().filter(|call| call.allowed && (call.started > stepped) == after).count();
    let local = calls.iter().filter(|call| call.source == Source::Local).count();
    let over = over(&calls, &ALL);
    eprintln!(
        "a clock set back by 30 s: {} answers, {local} of them local; {} allowed before, {} after; windows over {over:?}",
        calls.len(),
        allowed(false),
        allowed(true),
    );
    assert_eq!(over, []);
}

/// Row of the fault table for a clock that is set ahead: admissions expire earlier by the jump.
#[tokio::test]
async fn clock_set_ahead_expires_entries_early() {
    let time = FakeTime::start();
    let server = time.stopped();
    let store = RedisStore::new(&server.url()).unwrap();
    let check = Check::new(Key::new("ahead", []), Quota::per_minute(10).unwrap(), 1);
    let batch = [Checks::one(check).unwrap()];
    let admit = async || store.admit(&batch).await.unwrap().remove(0).verdicts[0];
    for _ in 0..10 {
        assert_eq!(admit().await.outcome, Outcome::Charged);
    }
    assert_eq!(admit().await.retry_after, Micros::from_secs(60));
    time.stop_at(31_000_000);
    assert_eq!(admit().await.retry_after, Micros::from_secs(30), "half a minute early");
    time.stop_at(61_000_000);
    assert_eq!(admit().await.outcome, Outcome::Charged);
}
