//! Tests failover on a simulated server in virtual time: three nodes, random faults, thousands of seeds.
//!
//! A run depends on its seed only. `SLIDEGATE_SIMULATION_SEEDS` runs more seeds, `SLIDEGATE_SIMULATION_SEED` one of them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use slidegate::{
    Clock, Source,
    redis::{BreakerState, Failover, FailoverOptions},
};

use crate::conformance::Rng;
use crate::deployment::{CallRecord, ms, peak, quota, send};
use crate::failover_kills::number;
use crate::fault_bounds::{Outage, Run, over};
use crate::simulated_store::{Link, SimulatedStore, Simulation};

const NODES: usize = 3;

/// Seeds that the suite runs.
const SEEDS: u64 = 200;

/// Fault of one run, and how long it lasts.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The link of one node, or of all nodes, behaves like this.
    Link { node: Option<usize>, link: Link },
    /// The server stops and starts again.
    Restart { with_memory: bool },
    /// The server's clock is set ahead or back by some milliseconds.
    ClockStep(i64),
}

impl Fault {
    fn random(rng: &mut Rng) -> Self {
        let node = (rng.below(2) == 0).then(|| rng.below(NODES as u64) as usize);
        let resets = rng.below(2) == 0;
        match rng.below(6) {
            0 => Fault::Link { node, link: Link { delay_ms: 5 + rng.below(250), ..Link::default() } },
            1 => Fault::Link { node, link: Link { lost: 20 + rng.below(400), resets, ..Link::default() } },
            2 => Fault::Link { node, link: Link { cut: true, resets, ..Link::default() } },
            3 => Fault::Link { node: None, link: Link { cut: true, resets, ..Link::default() } },
            _ => Fault::Restart { with_memory: rng.below(2) == 0 },
        }
    }

    fn begin(self, simulation: &Simulation) {
        match self {
            Fault::Link { node, link } => {
                let nodes = 0..NODES;
                nodes
                    .filter(|n| node.is_none_or(|node| node == *n))
                    .for_each(|n| simulation.set_link(n, link));
            }
            Fault::Restart { .. } => simulation.stop_server(),
            Fault::ClockStep(by) => simulation.step_clock(by * 1_000),
        }
    }

    fn end(self, simulation: &Simulation) {
        match self {
            Fault::Link { .. } => (0..NODES).for_each(|n| simulation.set_link(n, Link::default())),
            Fault::Restart { with_memory } => simulation.start_server(with_memory),
            Fault::ClockStep(_) => {}
        }
    }

    /// Returns true if no node can reach the server during the fault.
    fn is_for_all(self) -> bool {
        match self {
            Fault::Link { node, link } => node.is_none() && link.cut,
            Fault::Restart { .. } => true,
            Fault::ClockStep(_) => false,
        }
    }
}

/// Three nodes in one runtime, and the callers of each.
struct Cluster {
    simulation: Simulation,
    nodes: Vec<Failover<SimulatedStore>>,
    calls: Arc<Mutex<Vec<CallRecord>>>,
    stop: Arc<AtomicBool>,
    key: u64,
}

impl Cluster {
    /// Starts the nodes, and returns when they know of each other.
    async fn start(seed: u64, options: &FailoverOptions, rng: &mut Rng) -> Self {
        let simulation = Simulation::new(NODES, seed ^ 0x5EED);
        let node = |n: usize| {
            let seed = seed.wrapping_mul(0xD134_2543_DE82_EF95).wrapping_add(n as u64);
            let clock = simulation.clock.clone();
            Failover::with_seed(simulation.store(n), options.clone(), clock, seed).unwrap()
        };
        let cluster = Cluster {
            nodes: (0..NODES).map(node).collect(),
            simulation: simulation.clone(),
            calls: Arc::default(),
            stop: Arc::default(),
            key: rng.below(3),
        };
        cluster.nodes.iter().for_each(Failover::start);
        cluster
            .wait_until("the nodes know of each other", ms(5_000), |cluster| {
                let servers = || cluster.nodes.iter().flat_map(Failover::servers);
                servers().count() == NODES && servers().all(|server| server.nodes == NODES as u64)
            })
            .await;
        cluster
    }

    /// Starts the callers of each node. Some nodes get more requests than others.
    fn start_callers(&self, rng: &mut Rng) {
        for (n, failover) in self.nodes.iter().enumerate() {
            let (pause, callers) = (10 + rng.below(40), 1 + rng.below(2));
            for _ in 0..callers {
                let mut rng = Rng::new(rng.below(u64::MAX));
                let (failover, calls, stop, key) =
                    (failover.clone(), Arc::clone(&self.calls), Arc::clone(&self.stop), self.key);
                let clock = self.simulation.clock.clone();
                tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let answer = send(&[key], &failover, &clock, &mut rng).await;
                        calls.lock().push(CallRecord { node: n, ..answer });
                        tokio::time::sleep(ms(1 + rng.below(pause))).await;
                    }
                });
            }
        }
    }

    fn now(&self) -> u64 {
        self.simulation.clock.now().get()
    }

    async fn wait_until(&self, what: &str, longest: Duration, holds: impl Fn(&Cluster) -> bool) {
        let begun = self.now();
        while !holds(self) {
            let waited = Duration::from_micros(self.now() - begun);
            assert!(waited < longest, "not within {longest:?} of virtual time: {what}");
            tokio::time::sleep(ms(5)).await;
        }
    }

    /// Waits until the server has answered a call of each node that was made after `since`.
    async fn wait_until_answered(&self, since: u64) {
        self.wait_until("the server answers every node", ms(25_000), |cluster| {
            let calls = cluster.calls.lock();
            let answered = |call: &CallRecord| call.source == Source::Store && call.started > since;
            cluster.all_direct()
                && (0..NODES).all(|node| calls.iter().any(|call| call.node == node && answered(call)))
        })
        .await;
    }

    fn all_given_up(&self) -> bool {
        let servers = self.nodes.iter().flat_map(Failover::servers);
        servers.into_iter().all(|server| server.breaker != BreakerState::Closed)
    }

    fn all_direct(&self) -> bool {
        self.nodes.iter().flat_map(Failover::servers).all(|server| server.direct)
    }

    /// Injects a fault. Returns the outage if the server certainly decided for no node: all nodes have given it up, or
    /// it has restarted.
    async fn suffer(&self, fault: Fault, lasts: Duration) -> Option<Outage> {
        fault.begin(&self.simulation);
        let gone = self.now();
        tokio::time::sleep(lasts).await;
        // A server that has restarted decides for a node only after the node has written back, so that no node may have
        // given it up yet.
        let restarted = matches!(fault, Fault::Restart { .. });
        let outage = (restarted || fault.is_for_all() && self.all_given_up()).then(|| {
            let now = self.now();
            Outage { gone, until: now, back: now, given_up: true }
        });
        fault.end(&self.simulation);
        outage
    }

    /// Waits until all nodes are back, and stops the callers after some more windows. Asserts that the server decided
    /// all of the last calls, and that the limit was reached. Returns all answers in order.
    async fn finish(self) -> Vec<CallRecord> {
        self.wait_until("every node is back", ms(25_000), Cluster::all_direct).await;
        let window = Duration::from(quota(self.key).window());
        // Admissions that were made while nodes returned still count for a window.
        tokio::time::sleep(window + ms(100)).await;
        let since = self.now();
        tokio::time::sleep(window * 2).await;
        self.stop.store(true, Ordering::Relaxed);
        tokio::time::sleep(ms(600)).await;
        assert!(self.all_direct(), "a node left the server again");
        let mut calls = std::mem::take(&mut *self.calls.lock());
        calls.sort_by_key(|call| call.answered);
        let last: Vec<CallRecord> = calls.iter().filter(|call| call.started > since).copied().collect();
        assert!(
            last.iter().all(|call| call.source == Source::Store),
            "the server must decide all calls after recovery"
        );
        let most = peak(&last, self.key, quota(self.key).window().get(), |call| call.at);
        let unused = if self.key == 1 { 2 } else { 0 };
        let limit = quota(self.key).capacity();
        assert!(most <= limit && most + unused >= limit, "{most} of {limit} in a window after recovery");
        calls
    }
}

/// Runs one seed: faults of links and servers, or a clock that is set.
async fn run(seed: u64) -> String {
    let mut rng = Rng::new(seed);
    let options = FailoverOptions {
        heartbeat: ms(1_000 + rng.below(500)),
        failures: 2 + rng.below(5) as u32,
        // A node that has not written back within this time exceeds its share by the admissions that are missing.
        write_back: ms(20_000),
        ..FailoverOptions::default()
    };
    let cluster = Cluster::start(seed, &options, &mut rng).await;
    cluster.start_callers(&mut rng);
    tokio::time::sleep(ms(300 + rng.below(1_500))).await;
    if rng.below(8) == 0 {
        set_clock(cluster, &mut rng).await
    } else {
        break_links(cluster, &options, &mut rng).await
    }
}

/// Random faults of links and servers. The bounds are those of the table in docs/explanation/operations.md.
async fn break_links(cluster: Cluster, options: &FailoverOptions, rng: &mut Rng) -> String {
    let (mut outages, mut what) = (Vec::new(), Vec::new());
    for _ in 0..1 + rng.below(3) {
        let fault = Fault::random(rng);
        let lasts = ms(if rng.below(3) == 0 { 1 + rng.below(30) } else { 30 + rng.below(1_500) });
        what.push(format!("{fault:?} for {lasts:?}"));
        let outage = cluster.suffer(fault, lasts).await;
        // If the next fault begins while nodes return, one node may decide alone again: the bound always includes its
        // share.
        if let Some(outage) = outage.filter(|_| rng.below(3) > 0) {
            cluster.wait_until_answered(outage.back).await;
            outages.push(outage);
        }
        tokio::time::sleep(ms(rng.below(2_500))).await;
    }
    let key = cluster.key;
    let calls = cluster.finish().await;
    let run =
        Run { calls: &calls, nodes: NODES, deadline: options.deadline, in_flight: 8, outages: &outages };
    run.check_bounds(&what.join(", "), key)
}

/// The server's clock is set back or ahead while the server answers.
async fn set_clock(cluster: Cluster, rng: &mut Rng) -> String {
    let by = 100 + rng.below(3_000) as i64;
    let by = if rng.below(2) == 0 { by } else { -by };
    let what = format!("{:?}", Fault::ClockStep(by));
    cluster.suffer(Fault::ClockStep(by), ms(0)).await;
    let stepped = cluster.now();
    // A clock that was set back must catch up.
    tokio::time::sleep(ms(by.unsigned_abs() + rng.below(1_000))).await;
    let key = cluster.key;
    let calls = cluster.finish().await;
    let most = peak(&calls, key, quota(key).window().get(), |call| call.at);
    assert!(most <= quota(key).capacity(), "{what}: {most} in a window of the server's clock");
    // Windows end earlier, by the length of the jump.
    let parts: [Vec<CallRecord>; 2] = if by > 0 {
        let (before, rest) = calls.into_iter().partition(|call| call.answered < stepped);
        let rest: Vec<CallRecord> = rest;
        [before, rest.into_iter().filter(|call| call.started > stepped).collect()]
    } else {
        [calls, Vec::new()]
    };
    for part in parts {
        assert_eq!(over(&part, &[key]), [], "{what}");
    }
    format!("{what}: key {key}: at most {most} of {}", quota(key).capacity())
}

fn run_in_virtual_time(seed: u64) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(run(seed))
}

#[test]
fn random_faults_stay_within_the_bounds() {
    if let Ok(seed) = std::env::var("SLIDEGATE_SIMULATION_SEED") {
        eprintln!("{}", run_in_virtual_time(seed.parse().unwrap()));
        return;
    }
    let seeds = number("SLIDEGATE_SIMULATION_SEEDS", SEEDS);
    let (next, failed) = (AtomicU64::new(1), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > seeds {
                        return;
                    }
                    if std::panic::catch_unwind(AssertUnwindSafe(|| run_in_virtual_time(seed))).is_err() {
                        failed.lock().push(seed);
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner();
    failed.sort_unstable();
    eprintln!("failover simulation: {seeds} seeds, {NODES} nodes: {} failed", failed.len());
    assert!(
        failed.is_empty(),
        "seeds {failed:?} failed. One alone: SLIDEGATE_SIMULATION_SEED={} cargo nextest run --all-features \
         -E 'test(random_faults_stay_within_the_bounds)' --no-capture",
        failed[0],
    );
}

/// Each run of a seed is the same, so a failure can be repeated.
#[test]
fn seed_decides_the_run() {
    for seed in [3, 11, 12] {
        assert_eq!(run_in_virtual_time(seed), run_in_virtual_time(seed));
    }
}
