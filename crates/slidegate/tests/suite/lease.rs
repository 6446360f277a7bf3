//! Permits taken in advance: never more than the limit in any window, whatever becomes of the nodes that took them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slidegate::{
    Ask, Check, Clock, Entry, Error, Fault, Inspection, Key, Lease, Limiter, ManualClock, MemoryStore,
    Micros, Outcome, Quota, Readings, Receipt, RedisMode, RedisOptions, RedisStore, Request, Rule, Rules,
    Settlement, Source, Store, SystemClock,
};

use crate::conformance::Dice;
use crate::processes::TURN;
use crate::redis_server::{Flavour, Server};
use crate::wrappers::stacked;

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

fn ask(limit: u64, permits: u32, cost: u64) -> Ask {
    Ask::one(check(limit, permits, cost)).unwrap()
}

/// A store that a node can be cut off from, as by a crash: nothing of it arrives any more.
#[derive(Clone)]
struct Gate<S> {
    store: S,
    shut: Arc<AtomicBool>,
}

impl<S: Store> Gate<S> {
    fn check(&self) -> Result<(), Error> {
        match self.shut.load(Ordering::Relaxed) {
            true => Err(Error::store(Fault::Unreachable, "it has crashed")),
            false => Ok(()),
        }
    }
}

impl<S: Store> Store for Gate<S> {
    async fn admit(&self, asks: &[Ask]) -> Result<Readings, Error> {
        self.check()?;
        self.store.admit(asks).await
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
    lease: Lease<Gate<MemoryStore<ManualClock>>>,
    gate: Arc<AtomicBool>,
    clock: ManualClock,
    /// How its clock differs: by how much, and by how many parts of a million it is too fast.
    offset: u64,
    drift: i64,
}

/// What was admitted, and when it was refunded.
struct Grant {
    at: u64,
    cost: u64,
    entry: Entry,
    refunded: Option<u64>,
}

struct World {
    time: u64,
    clock: ManualClock,
    store: MemoryStore<ManualClock>,
    nodes: Vec<Node>,
    dice: Dice,
}

impl World {
    fn new(seed: u64) -> Self {
        let time = 1_000_000_000;
        let clock = ManualClock::at(Micros::new(time));
        let store = MemoryStore::with_clock(clock.clone(), 100);
        let mut world = World { time, clock, store, nodes: Vec::new(), dice: Dice::new(seed) };
        for _ in 0..=world.dice.below(4) {
            world.join();
        }
        world
    }

    fn join(&mut self) {
        let gate = Arc::new(AtomicBool::new(false));
        let clock = ManualClock::default();
        let store = Gate { store: self.store.clone(), shut: Arc::clone(&gate) };
        let node = Node {
            lease: Lease::with_clock(store, clock.clone()),
            gate,
            clock,
            offset: self.dice.below(1 << 40),
            drift: self.dice.below(1_000) as i64 - 500,
        };
        node.set(self.time);
        self.nodes.push(node);
    }

    async fn advance(&mut self, micros: u64) {
        // In steps: whoever sleeps wakes on time.
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

/// Lets what can go on go on.
async fn settle_down() {
    for _ in 0..12 {
        tokio::task::yield_now().await;
    }
}

/// The most that counts in any window: of what was not refunded by then.
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

/// Random nodes with clocks of their own, which ask, refund, stop asking, crash before they give back, and join.
#[tokio::test]
async fn no_window_is_ever_over() {
    let (mut leased, mut crashes, mut all, mut full) = (0, 0, 0, 0);
    let seeds = 400;
    for seed in 1..=seeds {
        let mut world = World::new(seed);
        let limit = 10 + world.dice.below(200);
        let permits = 2 + world.dice.below(60) as u32;
        let mut grants: Vec<Grant> = Vec::new();
        let mut busy = 40;
        for _ in 0..400 {
            match world.dice.below(100) {
                0 if world.nodes.len() > 1 => {
                    let crashed = world.dice.below(world.nodes.len() as u64) as usize;
                    let node = world.nodes.swap_remove(crashed);
                    node.gate.store(true, Ordering::Relaxed);
                    crashes += 1;
                    world.join();
                }
                1 => busy = [5, 40, 90][world.dice.below(3) as usize],
                2..=6 if !grants.is_empty() => {
                    let i = world.dice.below(grants.len() as u64) as usize;
                    let grant = &mut grants[i];
                    let (key, entry) = (Key::new("hot", []), grant.entry);
                    let settlement = Settlement::refund(key, entry);
                    let receipt = world.nodes[0].lease.settle(&[settlement]).await.unwrap();
                    if receipt.settled[0] == slidegate::Settled::Done {
                        grant.refunded = Some(world.time);
                    }
                }
                n if n < busy => {
                    let node = world.dice.below(world.nodes.len() as u64) as usize;
                    for _ in 0..=world.dice.below(12) {
                        let cost = 1 + world.dice.below(8) / 7;
                        let readings =
                            world.nodes[node].lease.admit(&[ask(limit, permits, cost)]).await.unwrap();
                        let verdict = readings[0].verdicts[0];
                        leased += u64::from(readings[0].source == Source::Lease);
                        if verdict.outcome == Outcome::Charged {
                            let (at, entry) = (world.time, verdict.entry);
                            grants.push(Grant { at, cost, entry, refunded: None });
                        }
                        settle_down().await;
                    }
                }
                _ => {
                    let micros = world.dice.below(2 * TTL / 5) * world.dice.below(6) / 4;
                    world.advance(micros).await;
                }
            }
        }
        let peak = peak(&grants);
        assert!(peak <= limit, "seed {seed}: {peak} of {limit}");
        full += u64::from(peak == limit);
        all += grants.len();
        // Nobody keeps anything longer than its time.
        world.advance(TTL).await;
        let idle: u64 = world.nodes.iter().map(|node| node.lease.stats().idle).sum();
        assert_eq!(idle, 0, "seed {seed}");
        world.advance(WINDOW + TTL).await;
        let used = world.store.inspect(&Key::new("hot", [])).await.unwrap().map_or(0, |held| held.used);
        let keys: usize = world.nodes.iter().map(|node| node.lease.stats().keys).sum();
        assert_eq!((used, keys), (0, 0), "seed {seed}");
    }
    eprintln!(
        "{seeds} schedules, {all} admissions, {leased} of them out of leases, {crashes} crashes: 0 windows over, \
         {full} reached their limit"
    );
    assert!(leased > 1_000 && crashes > 100 && full > 20);
}

/// One node that is asked steadily: after the first, nearly everything is handed out without asking.
#[tokio::test]
async fn it_takes_what_is_asked_for_and_gives_back_the_rest() {
    let mut world = World::new(7);
    world.nodes.truncate(1);
    let node = world.nodes[0].lease.clone();
    let (mut sources, ask) = ([0, 0], ask(100_000, 1_000, 1));
    for _ in 0..20 {
        for _ in 0..200 {
            let reading = node.admit(std::slice::from_ref(&ask)).await.unwrap().remove(0);
            assert_eq!(reading.verdicts[0].outcome, Outcome::Charged);
            sources[usize::from(reading.source == Source::Lease)] += 1;
            settle_down().await;
        }
        world.advance(TTL / 4).await;
    }
    assert!(sources[1] > 50 * sources[0], "{sources:?}");
    for _ in 0..9 {
        node.admit(std::slice::from_ref(&ask)).await.unwrap();
        settle_down().await;
    }
    // It is asked no more: what is left is given back when the slice ends.
    assert!(node.stats().idle > 0);
    world.advance(TTL).await;
    assert_eq!(node.stats().idle, 0);
    let held = world.store.inspect(&Key::new("hot", [])).await.unwrap().unwrap();
    assert_eq!(held.used, 4_009);
    // Asked for less, it takes less.
    for _ in 0..40 {
        node.admit(std::slice::from_ref(&ask)).await.unwrap();
        settle_down().await;
        world.advance(TTL).await;
    }
    for _ in 0..3 {
        node.admit(std::slice::from_ref(&ask)).await.unwrap();
        settle_down().await;
    }
    assert!((1..=8).contains(&node.stats().idle), "{:?}", node.stats());
}

#[tokio::test]
async fn what_is_held_is_given_back_at_the_end() {
    let mut world = World::new(3);
    world.nodes.truncate(1);
    world.join();
    let ask = ask(40, 32, 1);
    let [first, second] = &world.nodes[..] else { panic!() };
    for _ in 0..2 {
        first.lease.admit(std::slice::from_ref(&ask)).await.unwrap();
        settle_down().await;
    }
    let idle = first.lease.stats().idle;
    assert!(idle > 0);
    let left = |n: u64| async move {
        let mut granted = 0;
        for _ in 0..n {
            let readings = second.lease.store().admit(&[self::ask(40, 32, 1)]).await.unwrap();
            granted += u64::from(readings[0].verdicts[0].outcome == Outcome::Charged);
        }
        granted
    };
    assert_eq!(left(40).await, 38 - idle);
    first.lease.give_back().await;
    assert_eq!((first.lease.stats().idle, left(40).await), (0, idle));
}

/// What is handed out can be refunded like any other, by any node, and once.
#[tokio::test]
async fn what_is_handed_out_can_be_settled() {
    handed_out_is_settled(MemoryStore::new()).await;
    let server = Server::start(Flavour::Redis7);
    handed_out_is_settled(RedisStore::new(&server.url()).unwrap()).await;
    let options = RedisOptions { mode: RedisMode::Transaction, ..RedisOptions::new(server.url()) };
    let store = RedisStore::with_options(&options).unwrap();
    store.reset(&Key::new("hot", [])).await.unwrap();
    handed_out_is_settled(store).await;
}

async fn handed_out_is_settled<S: Store + 'static>(store: S) {
    // Long slices: none ends meanwhile, unless the ten minutes turn just then.
    let quota = Quota::new(1_000, Duration::from_secs(6_000)).unwrap();
    let rule = Rule::new("hot", quota).unwrap().lease(100, Duration::from_secs(600)).unwrap();
    let limiter = Limiter::new(Lease::new(store), Rules::new([rule]).unwrap());
    let mut reservations = Vec::new();
    for _ in 0..20 {
        let decision = limiter.acquire(Request::new([("a", "b")])).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
        if decision.source() == Source::Lease {
            reservations.push(decision.reservation().unwrap());
        }
    }
    assert!(reservations.len() > 5);
    let used = || async {
        let held = limiter.store().store().inspect(&Key::new("hot", [])).await.unwrap().unwrap();
        held.used
    };
    // What is left goes back in one step, and changes nothing for what was handed out.
    limiter.store().give_back().await;
    let before = used().await;
    assert_eq!(before, 20);
    for (n, reservation) in reservations.iter().enumerate() {
        assert_eq!(limiter.settle(reservation, 0).await.unwrap(), slidegate::Settled::Done);
        assert_eq!(limiter.settle(reservation, 0).await.unwrap(), slidegate::Settled::Already);
        assert_eq!(used().await, before - 1 - n as u64);
    }
}

/// Two rules with leases are handed out together or not at all; with another rule beside it, the store is asked.
#[tokio::test]
async fn several_rules() {
    let hot = |name: &str| Check { key: Key::new(name, []), ..check(1_000, 64, 1) };
    let plain = Check::new(Key::new("plain", []), Quota::per_hour(1_000).unwrap(), 1);
    let memory = MemoryStore::new();
    let node = Lease::new(memory.clone());
    let both = Ask::new([hot("a"), hot("b")]).unwrap();
    let mixed = Ask::new([hot("a"), plain]).unwrap();
    let mut sources = Vec::new();
    for n in 0..60 {
        let ask = if n % 3 == 2 { &mixed } else { &both };
        let reading = node.admit(std::slice::from_ref(ask)).await.unwrap().remove(0);
        assert!(reading.verdicts.iter().all(|verdict| verdict.outcome == Outcome::Charged));
        assert!(n % 3 != 2 || reading.source == Source::Store);
        sources.push(reading.source);
        settle_down().await;
    }
    assert!(sources.iter().filter(|source| **source == Source::Lease).count() > 20, "{sources:?}");
    node.give_back().await;
    for (name, asked) in [("a", 60), ("b", 40), ("plain", 20)] {
        assert_eq!(memory.inspect(&Key::new(name, [])).await.unwrap().unwrap().used, asked, "{name}");
    }
}

/// Three nodes on a real Redis, all wrappers, by the callers' own clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_on_redis() {
    let _turn = TURN.lock().await;
    let server = Server::start(Flavour::Redis7);
    let options =
        RedisOptions { response_timeout: Duration::from_secs(20), ..RedisOptions::new(server.url()) };
    let limit = 3_000;
    let (clock, mut tasks) = (SystemClock::new(), Vec::new());
    let begun = clock.now().get();
    for node in 0..3u64 {
        let store = stacked(RedisStore::with_options(&options).unwrap());
        for caller in 0..8u64 {
            let (store, clock) = (store.clone(), clock.clone());
            tasks.push(tokio::spawn(async move {
                let (mut told, mut dice) = (Vec::new(), Dice::new(node * 10 + caller + 1));
                while clock.now().get() < begun + 5_000_000 {
                    let reading = store.admit(&[ask(limit, 200, 1)]).await.unwrap().remove(0);
                    if reading.verdicts[0].outcome == Outcome::Charged {
                        told.push((clock.now().get(), reading.source));
                    }
                    // In bursts, so that some is given back.
                    if dice.below(50) == 0 {
                        tokio::time::sleep(Duration::from_millis(dice.below(60))).await;
                    }
                    tokio::task::yield_now().await;
                }
                told
            }));
        }
    }
    let mut told = Vec::new();
    for task in tasks {
        told.extend(task.await.unwrap());
    }
    told.sort_unstable_by_key(|(at, _)| *at);
    let (mut first, mut peak) = (0, 0);
    for (last, (at, _)) in told.iter().enumerate() {
        while told[first].0 + WINDOW <= *at {
            first += 1;
        }
        peak = peak.max(last + 1 - first);
    }
    let leased = told.iter().filter(|(_, source)| *source == Source::Lease).count();
    eprintln!(
        "{} admissions of 3 nodes, {leased} out of leases: at most {peak} of {limit} in any window",
        told.len()
    );
    // Between the store's instant and the caller's there is the way back; what is handed out is handed out at once.
    assert!(peak as u64 <= limit && leased > told.len() / 4, "{peak}");
}

/// A reset forgets what others hold: they hear of it, and what they give back later is taken from nobody.
#[tokio::test]
async fn a_reset_forgets_what_others_hold() {
    let server = Server::start(Flavour::Redis7);
    let node = || Lease::new(RedisStore::new(&server.url()).unwrap());
    let (here, there) = (node(), node());
    // Slices of ten minutes: none ends meanwhile, unless the ten minutes turn just then.
    let quota = Quota::new(1_000, Duration::from_secs(6_000)).unwrap();
    let rule = Rule::new("hot", quota).unwrap().lease(100, Duration::from_secs(600)).unwrap();
    let (lease, _) = rule.leased().unwrap();
    let key = Key::new("hot", []);
    let ask = Ask::one(Check { lease: Some(lease), ..Check::new(key.clone(), rule.quota(), 1) }).unwrap();
    let take = async || {
        for _ in 0..200 {
            here.admit(std::slice::from_ref(&ask)).await.unwrap();
            if here.stats().idle > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("it takes nothing");
    };
    take().await;
    let mut tries = 0;
    // It listens from its first lease on, which takes a moment.
    while here.stats().idle > 0 {
        there.reset(&key).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        tries += 1;
        assert!(tries < 200, "it does not hear of it");
    }
    // A reset that nobody hears of: what is given back then was counted before it.
    take().await;
    server.run("FLUSHALL");
    for _ in 0..10 {
        there.store().admit(std::slice::from_ref(&ask)).await.unwrap();
    }
    assert!(here.stats().idle > 0);
    here.give_back().await;
    assert_eq!(there.inspect(&key).await.unwrap().unwrap().used, 10);
}

/// A clock is needed only for how long.
#[tokio::test]
async fn clocks_need_not_agree() {
    let store = MemoryStore::with_clock(ManualClock::at(Micros::from_secs(5)), 10);
    let clock = ManualClock::at(Micros::from_secs(900_000));
    let node = Lease::with_clock(store, clock.clone());
    for _ in 0..3 {
        node.admit(&[ask(1_000, 10, 1)]).await.unwrap();
        settle_down().await;
    }
    let reading = node.admit(&[ask(1_000, 10, 1)]).await.unwrap().remove(0);
    assert_eq!((reading.source, reading.at), (Source::Lease, Micros::from_secs(5)));
    assert_eq!(clock.now(), Micros::from_secs(900_000));
}
