//! Tests permits that a node takes in advance: never more than the limit in any window, also when nodes crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slidegate::{
    Clock, Error, Fault, Key, Limiter, ManualClock, MemoryStore, Micros, Quota, Request, Rule, Rules, Source,
    Store, SystemClock,
    redis::{Lease, RedisMode, RedisOptions, RedisStore},
    store::{BatchVerdicts, Check, Checks, Entry, Inspection, Outcome, Receipt, Settlement},
};
use slidegate_testkit::{FakeTime, Flavour, RedisServer, until};

use crate::conformance::Rng;
use crate::store_wrappers::stacked;

const WINDOW: u64 = 1_000_000;
const TTL: u64 = 100_000;

fn rule(limit: u64, permits: u32) -> Rule {
    let quota = Quota::new(limit, Duration::from_micros(WINDOW)).unwrap();
    Rule::new("hot", quota).unwrap().lease(permits, Duration::from_micros(TTL)).unwrap()
}

fn check(limit: u64, permits: u32, cost: u64) -> Check {
    let rule = rule(limit, permits);
    let (lease, _) = rule.leased().unwrap();
    Check { lease: Some(lease), ..Check::new(Key::new("hot", []), rule.quota(), cost) }
}

fn checks(limit: u64, permits: u32, cost: u64) -> Checks {
    Checks::one(check(limit, permits, cost)).unwrap()
}

/// Store that can be switched off for one node. That simulates a crash of the node: no later call arrives.
#[derive(Clone)]
struct SwitchableStore<S> {
    store: S,
    shut: Arc<AtomicBool>,
}

impl<S: Store> SwitchableStore<S> {
    fn check(&self) -> Result<(), Error> {
        match self.shut.load(Ordering::Relaxed) {
            true => Err(Error::store(Fault::Unreachable, "the node has crashed")),
            false => Ok(()),
        }
    }
}

impl<S: Store> Store for SwitchableStore<S> {
    async fn admit(&self, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        self.check()?;
        self.store.admit(batch).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        self.check()?;
        self.store.settle(settlements).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        self.store.inspect(key).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        self.store.reset(key).await
    }
}

struct Node {
    lease: Lease<SwitchableStore<MemoryStore<ManualClock>>>,
    shut: Arc<AtomicBool>,
    clock: ManualClock,
    /// Error of its clock: the offset, and by how many parts per million it runs too fast.
    offset: u64,
    drift: i64,
}

/// One admission, and the time of its refund.
struct Grant {
    at: u64,
    cost: u64,
    entry: Entry,
    refunded: Option<u64>,
}

struct Fixture {
    time: u64,
    clock: ManualClock,
    store: MemoryStore<ManualClock>,
    nodes: Vec<Node>,
    rng: Rng,
}

impl Fixture {
    fn new(seed: u64) -> Self {
        let time = 1_000_000_000;
        let clock = ManualClock::at(Micros::new(time));
        let store = MemoryStore::with_clock(clock.clone(), 100);
        let mut fixture = Fixture { time, clock, store, nodes: Vec::new(), rng: Rng::new(seed) };
        for _ in 0..=fixture.rng.below(4) {
            fixture.join();
        }
        fixture
    }

    fn join(&mut self) {
        let shut = Arc::new(AtomicBool::new(false));
        let clock = ManualClock::default();
        let store = SwitchableStore { store: self.store.clone(), shut: Arc::clone(&shut) };
        let node = Node {
            lease: Lease::with_clock(store, clock.clone()),
            shut,
            clock,
            offset: self.rng.below(1 << 40),
            drift: self.rng.below(1_000) as i64 - 500,
        };
        node.set(self.time);
        self.nodes.push(node);
    }

    async fn advance(&mut self, micros: u64) {
        // Advances in steps, so that sleeping tasks wake on time.
        let mut left = micros;
        while left > 0 {
            let step = left.min(5_000);
            left -= step;
            self.time += step;
            self.clock.set(Micros::new(self.time));
            self.nodes.iter().for_each(|node| node.set(self.time));
            settle_down().await;
        }
    }
}

impl Node {
    fn set(&self, time: u64) {
        let drifted = time as i64 + (time as i64 - 1_000_000_000) * self.drift / 1_000_000;
        self.clock.set(Micros::new(self.offset + drifted as u64));
    }
}

/// Lets every task run until it waits.
async fn settle_down() {
    for _ in 0..12 {
        tokio::task::yield_now().await;
    }
}

/// Returns the most permits in any window, without those that were refunded by then.
fn peak(grants: &[Grant]) -> u64 {
    let mut peak = 0;
    for (last, grant) in grants.iter().enumerate() {
        let counts = |other: &&Grant| {
            other.at + WINDOW > grant.at && other.refunded.is_none_or(|refunded| refunded > grant.at)
        };
        peak = peak.max(grants[..=last].iter().filter(counts).map(|other| other.cost).sum());
    }
    peak
}

/// Random nodes, each with its own clock, acquire, refund, pause, join, and crash before they return permits.
#[tokio::test]
async fn no_window_exceeds_its_limit() {
    let (mut leased, mut crashes, mut all, mut full) = (0, 0, 0, 0);
    let seeds = 200;
    for seed in 1..=seeds {
        let mut fixture = Fixture::new(seed);
        let limit = 10 + fixture.rng.below(200);
        let permits = 2 + fixture.rng.below(60) as u32;
        let mut grants: Vec<Grant> = Vec::new();
        let mut busy = 40;
        for _ in 0..400 {
            match fixture.rng.below(100) {
                0 if fixture.nodes.len() > 1 => {
                    let crashed = fixture.rng.below(fixture.nodes.len() as u64) as usize;
                    let node = fixture.nodes.swap_remove(crashed);
                    node.shut.store(true, Ordering::Relaxed);
                    crashes += 1;
                    fixture.join();
                }
                1 => busy = [5, 40, 90][fixture.rng.below(3) as usize],
                2..=6 if !grants.is_empty() => {
                    let i = fixture.rng.below(grants.len() as u64) as usize;
                    let grant = &mut grants[i];
                    let (key, entry) = (Key::new("hot", []), grant.entry);
                    let settlement = Settlement::refund(key, entry);
                    let receipt = fixture.nodes[0].lease.settle(&[settlement]).await.unwrap();
                    if receipt.settled[0] == slidegate::Settled::Done {
                        grant.refunded = Some(fixture.time);
                    }
                }
                n if n < busy => {
                    let node = fixture.rng.below(fixture.nodes.len() as u64) as usize;
                    for _ in 0..=fixture.rng.below(12) {
                        let cost = 1 + fixture.rng.below(8) / 7;
                        let batch_verdicts =
                            fixture.nodes[node].lease.admit(&[checks(limit, permits, cost)]).await.unwrap();
                        let verdict = batch_verdicts[0].verdicts[0];
                        leased += u64::from(batch_verdicts[0].source == Source::Lease);
                        if verdict.outcome == Outcome::Charged {
                            let (at, entry) = (fixture.time, verdict.entry);
                            grants.push(Grant { at, cost, entry, refunded: None });
                        }
                        settle_down().await;
                    }
                }
                _ => {
                    let micros = fixture.rng.below(2 * TTL / 5) * fixture.rng.below(6) / 4;
                    fixture.advance(micros).await;
                }
            }
        }
        let peak = peak(&grants);
        assert!(peak <= limit, "seed {seed}: {peak} of {limit}");
        full += u64::from(peak == limit);
        all += grants.len();
        // No node keeps a permit longer than the TTL of its lease.
        fixture.advance(TTL).await;
        let idle: u64 = fixture.nodes.iter().map(|node| node.lease.stats().idle).sum();
        assert_eq!(idle, 0, "seed {seed}");
        fixture.advance(WINDOW + TTL).await;
        let used = fixture
            .store
            .inspect(&Key::new("hot", []))
            .await
            .unwrap()
            .map_or(0, |inspection| inspection.used);
        let keys: usize = fixture.nodes.iter().map(|node| node.lease.stats().keys).sum();
        assert_eq!((used, keys), (0, 0), "seed {seed}");
    }
    eprintln!(
        "{seeds} schedules, {all} admissions, {leased} of them out of leases, {crashes} crashes: 0 windows over, \
         {full} reached their limit"
    );
    assert!(leased > 1_000 && crashes > 100 && full > 20);
}

/// One node with steady demand: after the first request, nearly every permit comes from the lease.
#[tokio::test]
async fn lease_follows_demand_and_returns_the_rest() {
    let mut fixture = Fixture::new(7);
    fixture.nodes.truncate(1);
    let node = fixture.nodes[0].lease.clone();
    let (mut sources, checks) = ([0, 0], checks(100_000, 1_000, 1));
    for _ in 0..20 {
        for _ in 0..200 {
            let verdicts = node.admit(std::slice::from_ref(&checks)).await.unwrap().remove(0);
            assert_eq!(verdicts.verdicts[0].outcome, Outcome::Charged);
            sources[usize::from(verdicts.source == Source::Lease)] += 1;
            settle_down().await;
        }
        fixture.advance(TTL / 4).await;
    }
    assert!(sources[1] > 50 * sources[0], "{sources:?}");
    for _ in 0..9 {
        node.admit(std::slice::from_ref(&checks)).await.unwrap();
        settle_down().await;
    }
    // Without demand the node returns the unused permits when the slice ends.
    assert!(node.stats().idle > 0);
    fixture.advance(TTL).await;
    assert_eq!(node.stats().idle, 0);
    let inspection = fixture.store.inspect(&Key::new("hot", [])).await.unwrap().unwrap();
    assert_eq!(inspection.used, 4_009);
    // With less demand the node takes smaller leases.
    for _ in 0..40 {
        node.admit(std::slice::from_ref(&checks)).await.unwrap();
        settle_down().await;
        fixture.advance(TTL).await;
    }
    for _ in 0..3 {
        node.admit(std::slice::from_ref(&checks)).await.unwrap();
        settle_down().await;
    }
    assert!((1..=8).contains(&node.stats().idle), "{:?}", node.stats());
}

#[tokio::test]
async fn unused_permits_are_returned_on_shutdown() {
    let mut fixture = Fixture::new(3);
    fixture.nodes.truncate(1);
    fixture.join();
    let checks = checks(40, 32, 1);
    let [first, second] = &fixture.nodes[..] else { panic!() };
    for _ in 0..2 {
        first.lease.admit(std::slice::from_ref(&checks)).await.unwrap();
        settle_down().await;
    }
    let idle = first.lease.stats().idle;
    assert!(idle > 0);
    let left = |n: u64| async move {
        let mut granted = 0;
        for _ in 0..n {
            let batch_verdicts = second.lease.store().admit(&[self::checks(40, 32, 1)]).await.unwrap();
            granted += u64::from(batch_verdicts[0].verdicts[0].outcome == Outcome::Charged);
        }
        granted
    };
    assert_eq!(left(40).await, 38 - idle);
    first.lease.give_back().await;
    assert_eq!((first.lease.stats().idle, left(40).await), (0, idle));
}

/// Redis with a stopped clock, and a manual clock: no slice ends during the test.
fn stopped() -> (FakeTime, RedisServer, ManualClock) {
    let time = FakeTime::start();
    let server = time.stopped();
    (time, server, ManualClock::at(Micros::from_secs(1)))
}

fn redis(server: &RedisServer, mode: RedisMode) -> RedisStore {
    let patience = Duration::from_secs(20);
    let options = RedisOptions { mode, response_timeout: patience, ..RedisOptions::new(server.url()) };
    RedisStore::with_options(&options).unwrap()
}

/// A permit of a lease can be refunded once, like any other permit.
#[tokio::test]
async fn leased_permits_can_be_settled() {
    let (_time, server, clock) = stopped();
    let memory = MemoryStore::with_clock(clock.clone(), 100);
    handed_out_is_settled(Lease::with_clock(memory, clock.clone())).await;
    for mode in [RedisMode::Script, RedisMode::Transaction] {
        let store = redis(&server, mode);
        store.reset(&Key::new("hot", [])).await.unwrap();
        handed_out_is_settled(Lease::with_clock(store, clock.clone())).await;
    }
}

async fn handed_out_is_settled<S: Store + 'static>(lease: Lease<S>) {
    let limiter = Limiter::new(lease, Rules::new([rule(1_000, 100)]).unwrap());
    let (mut reservations, mut admitted) = (Vec::new(), 0);
    // Three of eight permits: the next lease is taken when half of one is used up, so no call is on its way.
    until("three permits came from a lease", async || {
        let decision = limiter.acquire(Request::new([("a", "b")])).await.unwrap();
        admitted += 1;
        if decision.source() == Source::Lease {
            reservations.push(decision.reservation().unwrap());
        }
        reservations.len() == 3
    })
    .await;
    let used = || async {
        let inspection = limiter.store().store().inspect(&Key::new("hot", [])).await.unwrap().unwrap();
        inspection.used
    };
    // Returning the unused permits changes nothing for the permits that were granted.
    assert_eq!(limiter.store().stats().idle, 5);
    assert_eq!(used().await, admitted + 5);
    limiter.store().give_back().await;
    assert_eq!(used().await, admitted);
    for (n, reservation) in reservations.iter().enumerate() {
        assert_eq!(limiter.settle(reservation, 0).await.unwrap(), slidegate::Settled::Done);
        assert_eq!(limiter.settle(reservation, 0).await.unwrap(), slidegate::Settled::Already);
        assert_eq!(used().await, admitted - 1 - n as u64);
    }
}

/// Permits of two rules with leases are granted together or not at all. If a third rule has no lease, the store
/// decides.
#[tokio::test]
async fn leases_cover_several_rules() {
    let hot = |name: &str| Check { key: Key::new(name, []), ..check(1_000, 64, 1) };
    let plain = Check::new(Key::new("plain", []), Quota::per_hour(1_000).unwrap(), 1);
    let clock = ManualClock::at(Micros::from_secs(1));
    let memory = MemoryStore::with_clock(clock.clone(), 100);
    let node = Lease::with_clock(memory.clone(), clock);
    let both = Checks::new([hot("a"), hot("b")]).unwrap();
    let mixed = Checks::new([hot("a"), plain]).unwrap();
    let mut sources = Vec::new();
    for n in 0..60 {
        let checks = if n % 3 == 2 { &mixed } else { &both };
        let verdicts = node.admit(std::slice::from_ref(checks)).await.unwrap().remove(0);
        assert!(verdicts.verdicts.iter().all(|verdict| verdict.outcome == Outcome::Charged));
        assert!(n % 3 != 2 || verdicts.source == Source::Store);
        sources.push(verdicts.source);
        settle_down().await;
    }
    assert!(sources.iter().filter(|source| **source == Source::Lease).count() > 20, "{sources:?}");
    node.give_back().await;
    for (name, expected) in [("a", 60), ("b", 40), ("plain", 20)] {
        assert_eq!(memory.inspect(&Key::new(name, [])).await.unwrap().unwrap().used, expected, "{name}");
    }
}

/// Admission as a caller saw it. The admission was made after `started` and before `answered`.
struct Admission {
    started: u64,
    answered: u64,
    source: Source,
}

/// The most admissions that were certainly made within one window: those that started and were answered in it.
fn certain_peak(mut admissions: Vec<Admission>) -> usize {
    admissions.sort_unstable_by_key(|admission| admission.started);
    let within = |first: usize| {
        let end = admissions[first].started + WINDOW;
        let begun_in_window = admissions[first..].iter().take_while(|admission| admission.started < end);
        begun_in_window.filter(|admission| admission.answered < end).count()
    };
    (0..admissions.len()).map(within).max().unwrap_or(0)
}

/// Three nodes on Redis, with all wrappers, measured by the clock of the callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_on_redis_stay_within_the_limit() {
    let server = RedisServer::start(Flavour::Redis7);
    let limit = 3_000;
    let (clock, mut tasks) = (SystemClock::new(), Vec::new());
    let begun = clock.now().get();
    for node in 0..3u64 {
        let store = stacked(redis(&server, RedisMode::Script));
        for caller in 0..8u64 {
            let (store, clock) = (store.clone(), clock.clone());
            tasks.push(tokio::spawn(async move {
                let (mut admissions, mut rng) = (Vec::new(), Rng::new(node * 10 + caller + 1));
                let mut started = clock.now().get();
                while started < begun + 4_000_000 {
                    let verdicts = store.admit(&[checks(limit, 200, 1)]).await.unwrap().remove(0);
                    if verdicts.verdicts[0].outcome == Outcome::Charged {
                        let (answered, source) = (clock.now().get(), verdicts.source);
                        admissions.push(Admission { started, answered, source });
                    }
                    // Callers send bursts, so that part of a lease is returned.
                    if rng.below(50) == 0 {
                        tokio::time::sleep(Duration::from_millis(rng.below(60))).await;
                    }
                    tokio::task::yield_now().await;
                    started = clock.now().get();
                }
                admissions
            }));
        }
    }
    let mut admissions = Vec::new();
    for task in tasks {
        admissions.extend(task.await.unwrap());
    }
    let all = admissions.len();
    let leased = admissions.iter().filter(|admission| admission.source == Source::Lease).count();
    let peak = certain_peak(admissions);
    eprintln!("{all} admissions of 3 nodes, {leased} out of leases: at most {peak} of {limit} in any window");
    assert!(peak as u64 <= limit, "{peak} of {limit} in one window");
    assert!(
        peak as u64 > limit / 2 && leased > all / 4,
        "the test had too little load: {peak}, {leased} of {all}"
    );
}

/// A reset drops the leases of other nodes. Permits that those nodes return later are not subtracted from newer admissions.
#[tokio::test]
async fn reset_drops_leases_of_other_nodes() {
    let (time, server, clock) = stopped();
    let node = || Lease::with_clock(redis(&server, RedisMode::Script), clock.clone());
    let (here, there) = (node(), node());
    let (key, checks) = (Key::new("hot", []), checks(1_000, 100, 1));
    let take = async || {
        until("the node takes a lease", async || {
            here.admit(std::slice::from_ref(&checks)).await.unwrap();
            here.stats().idle > 0
        })
        .await;
    };
    take().await;
    // The node subscribes with its first lease, and subscribing takes a moment.
    until("the node is notified of a reset", async || {
        there.reset(&key).await.unwrap();
        here.stats().idle == 0
    })
    .await;
    // A reset without a notification: the returned permits were counted before the reset.
    take().await;
    server.run("FLUSHALL");
    // This is still the same slice. The instant of the first admission identifies a count.
    time.stop_at(1_001_000);
    for _ in 0..10 {
        there.store().admit(std::slice::from_ref(&checks)).await.unwrap();
    }
    assert!(here.stats().idle > 0);
    here.give_back().await;
    assert_eq!(there.inspect(&key).await.unwrap().unwrap().used, 10);
}

/// A lease uses its clock for durations only.
#[tokio::test]
async fn node_clocks_need_not_agree() {
    let store = MemoryStore::with_clock(ManualClock::at(Micros::from_secs(5)), 10);
    let clock = ManualClock::at(Micros::from_secs(900_000));
    let node = Lease::with_clock(store, clock.clone());
    for _ in 0..3 {
        node.admit(&[checks(1_000, 10, 1)]).await.unwrap();
        settle_down().await;
    }
    let verdicts = node.admit(&[checks(1_000, 10, 1)]).await.unwrap().remove(0);
    assert_eq!((verdicts.source, verdicts.at), (Source::Lease, Micros::from_secs(5)));
    assert_eq!(clock.now(), Micros::from_secs(900_000));
}
