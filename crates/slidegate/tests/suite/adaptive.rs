//! Tests limits that follow the load: they settle at the capacity of a server with a queue, and stay within their
//! configured bounds for any report.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use proptest::prelude::*;
use slidegate::{
    Adaptive, AdaptiveController, Algorithm, Clock, Limiter, ManualClock, MemoryStore, Micros, Quota,
    Request, Rule, Rules,
    adaptive::{AdaptivePolicy, HostLoad, Load},
    redis::RedisStore,
};
use slidegate_testkit::{FakeTime, Flavour, RedisServer};

use crate::audit_healthy::patient_store;

/// Server with a number of workers and a queue, in simulated time.
#[derive(Clone, Copy)]
struct Backend {
    workers: usize,
    /// Service time of one request in seconds: the mean, or constant if `steady`.
    service: f64,
    steady: bool,
}

impl Backend {
    fn capacity(&self) -> f64 {
        self.workers as f64 / self.service
    }
}

/// Measurements of one second.
struct Second {
    limit: f64,
    admitted: u64,
}

/// Returns a fixed pseudo-random sequence of numbers between 0 and 1.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.next()).ln()
    }
}

fn micros(seconds: f64) -> Micros {
    Micros::new((seconds * 1e6) as u64)
}

/// Sends more requests through the real limiter than the server can serve. `later` replaces the server halfway.
async fn overload(
    rule: Rule,
    server: Backend,
    later: Backend,
    offered: f64,
    seconds: u64,
    seed: u64,
) -> Vec<Second> {
    let clock = ManualClock::at(Micros::from_secs(1_000_000));
    let limit = rule.quota().limit() as f64;
    let store = MemoryStore::with_clock(clock.clone(), 100);
    let limiter = Limiter::new(store, Rules::new([rule]).unwrap());
    let mut adapter = AdaptiveController::alone().with_clock(clock.clone());
    let mut chance = Chance(seed * 2 + 1);
    // Instants at which workers become free, and end and duration of each request.
    let mut free: BinaryHeap<Reverse<u64>> = (0..server.workers).map(|_| Reverse(0)).collect();
    let mut done = BinaryHeap::new();
    let (mut seen, mut admitted) = (Vec::new(), 0);
    let start = clock.now();
    let (mut now, mut tick) = (0.0, 1.0);
    while now < seconds as f64 {
        now += chance.exponential(1.0 / offered);
        while now >= tick {
            clock.set(Micros::new(start.get() + micros(tick).get()));
            while done.peek().is_some_and(|Reverse((at, _))| *at <= micros(tick).get()) {
                let Some(Reverse((_, took))) = done.pop() else { break };
                limiter.report("x", Duration::from_micros(took), true).unwrap();
            }
            adapter.step(&limiter, HostLoad::default()).await.unwrap();
            let factor = limiter.rules().iter().next().unwrap().factor().unwrap();
            seen.push(Second { limit: limit * f64::from(factor) / 10_000.0, admitted });
            admitted = 0;
            tick += 1.0;
        }
        clock.set(Micros::new(start.get() + micros(now).get()));
        if limiter.acquire("x").await.unwrap().allowed() {
            admitted += 1;
            let server = if now < seconds as f64 / 2.0 { server } else { later };
            let took = if server.steady { server.service } else { chance.exponential(server.service) };
            let Reverse(idle) = free.pop().unwrap();
            let at = idle.max(micros(now).get()) + micros(took).get();
            free.push(Reverse(at));
            done.push(Reverse((at, at - micros(now).get())));
        }
    }
    seen
}

fn paced(limit: u64, terms: Adaptive) -> Rule {
    let quota =
        Quota::per_second(limit).unwrap().with_algorithm(Algorithm::TokenBucket { burst: limit / 10 });
    Rule::new("paced", quota.unwrap()).unwrap().adaptive(terms).unwrap()
}

/// Returns the largest distance of the limit from the capacity and from its own mean, both as fractions.
fn deviations(seen: &[Second], capacity: f64) -> (f64, f64) {
    let mean = seen.iter().map(|second| second.limit).sum::<f64>() / seen.len() as f64;
    let furthest =
        |from: f64| seen.iter().map(|second| (second.limit - from).abs() / from).fold(0.0, f64::max);
    (furthest(capacity), furthest(mean))
}

#[tokio::test]
async fn limit_settles_at_server_capacity_under_overload() {
    let gradient = || Adaptive::default().gradient(200).unwrap();
    let bands = Adaptive::default;
    let many = Backend { workers: 160, service: 0.16, steady: false };
    let steady = Backend { workers: 16, service: 0.016, steady: true };
    let slow = Backend { workers: 640, service: 0.64, steady: false };
    let cases = [
        ("gradient, 160 workers, limit twice the capacity", 2_000, gradient(), many),
        ("gradient, limit four times the capacity", 4_000, gradient(), many),
        ("gradient, limit a little below the capacity", 900, gradient(), many),
        ("gradient, 16 workers with a constant service time", 2_000, gradient(), steady),
        ("gradient, 640 workers that take 640 ms", 2_000, gradient(), slow),
        ("bands, limit a little above the capacity", 1_150, bands(), many),
        ("bands, at the capacity", 1_000, bands(), many),
    ];
    for (what, limit, terms, server) in cases {
        for seed in 1..=2 {
            let seen = overload(paced(limit, terms.clone()), server, server, 3_000.0, 120, seed).await;
            // After thirty seconds the limit has settled, and it no longer moves.
            let (off, _) = deviations(&seen[29..], server.capacity());
            let (_, swing) = deviations(&seen[59..], server.capacity());
            let served: u64 = seen[29..].iter().map(|second| second.admitted).sum();
            let used = served as f64 / (seen.len() - 29) as f64 / server.capacity();
            println!(
                "{what}: off by {:.1} % at most, swings by {:.1} %, {:.0} % of the capacity used",
                off * 100.0,
                swing * 100.0,
                used * 100.0
            );
            assert!(off <= 0.2, "{what}, seed {seed}: {off}");
            assert!(swing <= 0.1, "{what}, seed {seed}: {swing}");
            assert!(used >= 0.8, "{what}, seed {seed}: {used}");
        }
    }
}

#[tokio::test]
async fn limit_follows_a_lasting_slowdown() {
    let terms = Adaptive::default().gradient(200).unwrap();
    let before = Backend { workers: 160, service: 0.16, steady: false };
    let after = Backend { service: 0.32, ..before };
    for seed in 1..=2 {
        let seen = overload(paced(2_000, terms.clone()), before, after, 3_000.0, 240, seed).await;
        let (off, _) = deviations(&seen[29..119], before.capacity());
        let (off_then, swing) = deviations(&seen[199..], after.capacity());
        println!(
            "off by {:.1} %, then {:.1} %, swings by {:.1} %",
            off * 100.0,
            off_then * 100.0,
            swing * 100.0
        );
        assert!(off <= 0.2 && off_then <= 0.2 && swing <= 0.1, "seed {seed}: {off} {off_then} {swing}");
    }
}

#[test]
fn default_thresholds_are_those_of_the_documents() {
    let load = |cpu, memory, millis| Load {
        host: HostLoad { cpu: Some(cpu), memory: Some(memory) },
        latency: Some(Micros::from_millis(millis)),
        failed: 0,
    };
    for (cpu, memory, millis, factor) in [
        (4_999, 5_999, 99, 12_000u32), // 1.2 * 1.1 * 1.1, and no more than max
        (5_000, 6_000, 100, 10_000),
        (7_999, 8_499, 499, 10_000),
        (8_000, 8_500, 500, 4_480), // 0.8 * 0.7 * 0.8
        (8_000, 6_000, 100, 8_000),
        (5_000, 8_500, 100, 7_000),
        (5_000, 6_000, 500, 8_000),
        (4_000, 8_500, 100, 8_400), // 1.2 * 0.7
    ] {
        let mut policy = AdaptivePolicy::new(10_000);
        for _ in 0..300 {
            let factor = policy.step(&Adaptive::default(), Micros::from_secs(1), &load(cpu, memory, millis));
            policy.follow(factor);
        }
        assert_eq!(policy.factor(), factor, "{cpu} {memory} {millis}");
    }
}

#[test]
fn load_near_a_threshold_does_not_flap() {
    let mut policy = AdaptivePolicy::new(10_000);
    let mut factors = Vec::new();
    for second in 0..200 {
        // The load is just above and just below 80 % in turns.
        let cpu = if second % 2 == 0 { 8_100 } else { 7_900 };
        let load = Load { host: HostLoad { cpu: Some(cpu), memory: None }, ..Load::default() };
        let factor = policy.step(&Adaptive::default(), Micros::from_secs(1), &load);
        policy.follow(factor);
        factors.push(factor);
    }
    assert!(factors.is_sorted_by(|a, b| a >= b), "the factor must only fall: {factors:?}");
    assert_eq!(factors.last(), Some(&8_000));
}

fn any_load() -> impl Strategy<Value = Load> {
    let share = || proptest::option::of(prop_oneof![0..=10_000u32, Just(u32::MAX)]);
    let latency =
        proptest::option::of(prop_oneof![Just(0), 1..1_000_000u64, Just(3_600_000_000), Just(u64::MAX),]);
    (share(), share(), latency, prop_oneof![Just(0), 0..=10_000u32, Just(u32::MAX)]).prop_map(
        |(cpu, memory, latency, failed)| Load {
            host: HostLoad { cpu, memory },
            latency: latency.map(Micros::new),
            failed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Inputs are false, missing or intermittent; steps take no time or a year.
    #[test]
    fn factor_stays_between_min_and_max_for_any_report(
        loads in proptest::collection::vec((any_load(), 0..4u8), 1..200),
        gradient in any::<bool>(),
        min in 1..=100u32,
        max in 100..=1_000u32,
        sensitivity in 1..=1_000u32,
    ) {
        let terms = Adaptive::default().between(min, max).unwrap().sensitivity(sensitivity).unwrap();
        let terms = if gradient { terms.gradient(200).unwrap() } else { terms };
        let mut policy = AdaptivePolicy::new(10_000);
        for (load, pause) in loads {
            let elapsed = [Micros::ZERO, Micros::new(1), Micros::from_secs(1), Micros::from_secs(31_536_000)];
            let factor = policy.step(&terms, elapsed[usize::from(pause)], &load);
            prop_assert!((min * 100..=max * 100).contains(&factor), "{factor}");
            policy.follow(factor);
            prop_assert_eq!(policy.factor(), factor);
        }
    }
}

/// Three nodes on one Redis have the same factor, also after nodes have died. A dead node no longer counts. The test moves
/// the clock of Redis, by which nodes are dropped.
#[tokio::test]
async fn all_nodes_agree_on_one_factor() {
    let time = FakeTime::start();
    let redis = time.stopped();
    let clock = ManualClock::at(Micros::from_secs(1));
    let terms = Adaptive::default().smooth(Duration::from_secs(1)).unwrap();
    let mut nodes: Vec<_> = (0..3)
        .map(|_| {
            let store = patient_store(&redis);
            let limiter = Limiter::new(store.clone(), Rules::new([paced(1_000, terms.clone())]).unwrap());
            (limiter, AdaptiveController::shared(store).with_clock(clock.clone()))
        })
        .collect();
    let factors = |nodes: &[(Limiter<RedisStore>, AdaptiveController)]| -> Vec<u32> {
        nodes.iter().map(|(limiter, _)| limiter.rules().iter().next().unwrap().factor().unwrap()).collect()
    };
    let steps = async |nodes: &mut [(Limiter<RedisStore>, AdaptiveController)], cpus: &[u32]| {
        assert_eq!(nodes.len(), cpus.len());
        for _ in 0..40 {
            clock.advance(Micros::from_secs(1));
            time.stop_at(clock.now().get());
            for ((limiter, adapter), cpu) in nodes.iter_mut().zip(cpus) {
                adapter.step(limiter, HostLoad { cpu: Some(*cpu), memory: Some(7_000) }).await.unwrap();
            }
        }
    };
    steps(&mut nodes, &[9_000, 8_500, 6_000]).await;
    assert_eq!(factors(&nodes), [8_000; 3], "two of three nodes are busy");
    steps(&mut nodes, &[6_000, 9_000, 6_000]).await;
    assert_eq!(factors(&nodes), [10_000; 3], "one of three nodes is busy");
    // The node that dies was idle. With it the median would be 70 %; without it the median is 82.5 %, which
    // is busy.
    drop(nodes.remove(0));
    steps(&mut nodes, &[9_500, 7_000]).await;
    assert_eq!(factors(&nodes), [8_000; 2], "the first node is dead");
    // The node that dies was busy. With it the median would be 77.5 %, which is not low enough to recover.
    drop(nodes.remove(0));
    steps(&mut nodes, &[6_000]).await;
    assert_eq!(factors(&nodes), [10_000], "only the last node is left");
}

/// False reports of a process cannot move the limit of other nodes out of its bounds.
#[tokio::test]
async fn false_reports_move_the_limit_only_within_its_bounds() {
    let redis = RedisServer::start(Flavour::Redis7);
    let store = patient_store(&redis);
    let limiter = Limiter::new(store.clone(), Rules::new([paced(1_000, Adaptive::default())]).unwrap());
    let mut adapter = AdaptiveController::shared(store);
    let factor = || limiter.rules().iter().next().unwrap().factor().unwrap();
    let mut client = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    for (field, taken) in [("paced=1", 1_000), ("paced=4294967295", 12_000), ("paced=-5 x ==", 12_000)] {
        let _: String = redis::cmd("XADD")
            .arg(&["sg:{adaptive}:shared", "*", "factors:0", field])
            .query(&mut client)
            .unwrap();
        let _: String = redis::cmd("XADD")
            .arg(&["sg:{adaptive}:shared", "*", "load:0", "cpu=x"])
            .query(&mut client)
            .unwrap();
        adapter.step(&limiter, HostLoad::default()).await.unwrap();
        assert_eq!(factor(), taken, "{field}");
    }
}

#[tokio::test]
async fn failures_lower_the_limit_as_latencies_do() {
    let rules = Rules::new([paced(1_000, Adaptive::default())]).unwrap();
    let limiter = Limiter::new(MemoryStore::new(), rules);
    let clock = ManualClock::at(Micros::from_secs(1));
    let mut adapter = AdaptiveController::alone().with_clock(clock.clone());
    for _ in 0..100 {
        clock.advance(Micros::from_secs(1));
        for n in 0..10 {
            limiter.report("x", Duration::from_millis(200), n != 0).unwrap();
        }
        adapter.step(&limiter, HostLoad::default()).await.unwrap();
    }
    assert_eq!(limiter.rules().iter().next().unwrap().factor(), Some(8_000));
}

#[tokio::test]
async fn decisions_use_the_current_limit() {
    let bands = "cpu: { low: 1%, high: 2%, below: 100%, above: 50% }, memory: off, latency: off";
    let rules = Rules::from_yaml(&format!(
        "rules: [{{ name: r, key: [user], limit: 10, window: 1m, adaptive: {{ {bands}, smooth: 100ms }},
           overrides: [{{ key: {{ user: vip }}, limit: 100 }}] }}]"
    ))
    .unwrap();
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let limiter = Limiter::new(MemoryStore::with_clock(clock.clone(), 100), rules.clone());
    let mut adapter = AdaptiveController::alone().with_clock(clock.clone());
    let admitted = async |user: &str, n: u64| {
        let mut admitted = 0;
        for _ in 0..n {
            admitted += u64::from(limiter.acquire(Request::new([("user", user)])).await.unwrap().allowed());
        }
        admitted
    };
    assert_eq!((admitted("a", 20).await, admitted("vip", 200).await), (10, 100));
    for _ in 0..10 {
        clock.advance(Micros::from_secs(1));
        adapter.step(&limiter, HostLoad { cpu: Some(9_000), memory: None }).await.unwrap();
    }
    clock.advance(Micros::from_secs(60));
    assert_eq!((admitted("a", 20).await, admitted("vip", 200).await), (5, 50), "half of it is left");
    // A request that costs more than the current limit is denied for now, not for ever.
    let large = limiter.acquire(Request::new([("user", "b")]).permits(8)).await.unwrap();
    assert_eq!((large.allowed(), large.limits().next().unwrap().limit()), (false, 5));
    let never = limiter.acquire(Request::new([("user", "b")]).permits(13)).await.unwrap_err();
    assert!(never.is_too_costly(), "{never}");
    // New rules with the same names continue from the current factor.
    limiter.set_rules(rules);
    assert_eq!(limiter.rules().iter().next().unwrap().quota_now().limit(), 5);
    for _ in 0..10 {
        clock.advance(Micros::from_secs(1));
        adapter.step(&limiter, HostLoad { cpu: Some(50), memory: None }).await.unwrap();
    }
    assert!(limiter.acquire(Request::new([("user", "b")]).permits(8)).await.unwrap().allowed());
}
