//! A network that fails, scripts that vanish, a clock that is set: a guard under load stays bounded, quick and exact.
//!
//! `GUARD_FAULT_MS` makes each fault last longer, `GUARD_FLUSHES` flushes the scripts more often.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slidegate::{BreakerState, Clock, Guard, GuardOptions, RedisOptions, Source};

use crate::deployment::{CLOSED, Deployment, KEYS, OPEN, Told, ms, quota, soon, worst};
use crate::faketime::Faketime;
use crate::fault_proxy::{Fault, FaultProxy};
use crate::guard_kills::{number, obeys, over};
use crate::redis_server::{Flavour, Server};
use crate::watchdog::Watchdog;

const ALL: [u64; 5] = [0, 1, 2, 3, 4];

/// A machine that is busy with other tests is not at fault.
fn patient() -> GuardOptions {
    GuardOptions { deadline: ms(20_000), ..GuardOptions::default() }
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

/// In a process of its own, whose memory is only the guard's and its callers'.
#[test]
fn a_network_that_fails() {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "guard_faults::worker", "--ignored", "--nocapture"])
        .env("GUARD_FAULTS_WORKER", "1")
        .stdout(std::process::Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

/// Not a test by itself: what that process runs.
#[tokio::test]
#[ignore = "started by the test above"]
async fn worker() {
    if std::env::var("GUARD_FAULTS_WORKER").is_err() {
        return;
    }
    let lasts = ms(number("GUARD_FAULT_MS", 3_000));
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

/// What a guard showed while it was watched.
#[derive(Default)]
struct Seen {
    in_flight: usize,
    /// From when until when its breaker was not closed.
    open: Vec<(u64, u64)>,
    /// Resident bytes, every so often.
    resident: Vec<u64>,
}

async fn watch(guard: Guard, clock: impl Clock, stop: Arc<AtomicBool>) -> Seen {
    let mut seen = Seen::default();
    let mut since = None;
    while !stop.load(Ordering::Relaxed) {
        let stats = guard.stats();
        seen.in_flight = seen.in_flight.max(stats.in_flight);
        let open =
            stats.servers.iter().all(|server| server.breaker != BreakerState::Closed && !server.direct);
        let now = clock.now().get();
        since = match (since, open) {
            (None, true) => Some(now),
            // It may have closed and opened again since the last look: those are two times.
            (Some(since), true) => {
                seen.open.push((since, now));
                Some(now)
            }
            (_, false) => None,
        };
        seen.resident.push(resident());
        tokio::time::sleep(ms(5)).await;
    }
    seen
}

async fn fails(fault: Fault, lasts: Duration) {
    let server = Server::start(Flavour::Redis7);
    let proxy = FaultProxy::start(server.address());
    let options = GuardOptions { max_in_flight: CAP, heartbeat: ms(200), ..GuardOptions::default() };
    let redis = RedisOptions::new(proxy.url());
    let deployment =
        Deployment::asking(&[0, 1, 2, 3, 4, OPEN, CLOSED], 1, 64, ms(20), &redis, &options).await;
    let watchdog = Watchdog::start(&deployment.clock);
    tokio::time::sleep(ms(700)).await;
    let stop = Arc::<AtomicBool>::default();
    let watching =
        tokio::spawn(watch(deployment.nodes[0].clone(), deployment.clock.clone(), Arc::clone(&stop)));
    proxy.set(fault);
    let from = deployment.clock.now().get();
    tokio::time::sleep(lasts).await;
    proxy.set(Fault::None);
    let until = deployment.clock.now().get();
    stop.store(true, Ordering::Relaxed);
    let seen = watching.await.unwrap();
    tokio::time::sleep(ms(1_500)).await;
    let stats = deployment.nodes[0].stats();
    let told = deployment.stop().await;

    let during = |told: &&Told| told.asked >= from && told.answered < until;
    let latency = watchdog.latency(told.iter().filter(during));
    let opened = |told: &&Told| {
        let place = seen.open.partition_point(|(_, end)| *end < told.answered);
        seen.open.get(place).is_some_and(|(start, _)| *start <= told.asked)
    };
    let quick = watchdog.latency(told.iter().filter(opened));
    // Of the second half over the first, which has filled what is filled once.
    let (first, second) = seen.resident.split_at(seen.resident.len() / 2);
    let (before, after) = (*first.iter().max().unwrap(), *second.iter().max().unwrap());
    // Without what the callers themselves remember.
    let remembered = (told.len() * size_of::<Told>()) as u64;
    let growth = after.saturating_sub(before).saturating_sub(remembered);
    let disobeyed: Vec<&Told> = told.iter().filter(|told| !obeys(told)).collect();
    let returned = told.iter().rev().take(50).filter(|told| told.source == Source::Store).count();
    let over = over(&told, &ALL);
    let most: Vec<(u64, u64)> = (0..KEYS).map(|key| (worst(&told, key), quota(key).capacity())).collect();
    eprintln!(
        "{fault:?} for {lasts:?}: {latency}; breaker open: {quick}; at most {} of {CAP} in flight, {} overloaded, {} \
         late; resident {} KiB, grown by {} KiB; {} against their policy; {} outages; windows over {over:?}, most in \
         any window and its limit {most:?}",
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
    assert!(latency.corrected <= options.deadline + ms(10));
    assert!(quick.answers > 100 && quick.median < ms(1));
    // More callers than may be in flight: some are told by this node.
    assert!(returned > 25, "by the store again: {returned} of 50");
    // Late answers, and decisions that were made here because too many were in flight, meet those of the store for as
    // long as it takes to write them there: some callers' worth of them.
    assert!(over.iter().all(|(_, most, limit)| *most <= limit + CAP as u64), "{over:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_vanish_are_no_outage() {
    let server = Server::start(Flavour::Redis7);
    let deployment = Deployment::start(2, 4, ms(2), &RedisOptions::new(server.url()), &patient()).await;
    let flushes = number("GUARD_FLUSHES", 500);
    let server = tokio::task::spawn_blocking(move || {
        let mut connection = server.client();
        for _ in 0..flushes {
            redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).unwrap();
            std::thread::sleep(ms(4));
        }
        server
    });
    let _server = server.await.unwrap();
    let told = deployment.stop().await;
    let others = told.iter().filter(|told| told.source != Source::Store).count();
    eprintln!("scripts flushed {flushes} times: {} decisions, {others} not by the store", told.len());
    assert!(told.len() > 1_000);
    assert_eq!((others, over(&told, &ALL)), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_back() {
    let time = Faketime::start();
    time.set(60_000);
    let server = Server::with(Flavour::Valkey9, &[], &time.environment());
    let proxy = FaultProxy::start(server.address());
    let options = GuardOptions { heartbeat: ms(200), ..patient() };
    let deployment = Deployment::start(2, 4, ms(3), &RedisOptions::new(proxy.url()), &options).await;
    tokio::time::sleep(ms(1_500)).await;
    time.set(30_000);
    tokio::time::sleep(ms(1_500)).await;
    let stepped = deployment.clock.now().get();
    // Nodes that decide by themselves have believed it.
    proxy.set(Fault::Reset);
    soon("the server is given up", || {
        deployment.nodes.iter().all(|guard| guard.stats().servers[0].outages > 0)
    })
    .await;
    tokio::time::sleep(ms(700)).await;
    proxy.set(Fault::None);
    tokio::time::sleep(ms(1_000)).await;
    let told = deployment.stop().await;
    let allowed =
        |after: bool| told.iter().filter(|told| told.allowed && (told.asked > stepped) == after).count();
    let local = told.iter().filter(|told| told.source == Source::Local).count();
    let over = over(&told, &ALL);
    eprintln!(
        "a clock set back by 30 s: {} answers, {local} of them local; {} allowed before, {} after; windows over {over:?}",
        told.len(),
        allowed(false),
        allowed(true),
    );
    assert!(allowed(false) > 100 && local > 0);
    assert_eq!(over, []);
}
