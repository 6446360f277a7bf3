//! Tests Redis on many servers: a cluster whose slots move and whose nodes die, independent servers, sentinels.
//!
//! `TOPOLOGY_DECISIONS` and `TOPOLOGY_SLOTS` make the first test longer, `TOPOLOGY_ASKS` the second.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use slidegate::{
    Algorithm, Clock, Count, Encoding, Fault, Key, Micros, Quota, Request, RequestId, Rules, Settled, Store,
    SystemClock,
    redis::{RedisMode, RedisOptions, RedisStore},
    store::{Check, Checks, Correction, Outcome, Settlement, Verdicts},
};
use slidegate_testkit::{Cluster, Flavour, RedisServer, Sentinels, Step};

use crate::conformance::Rng;
use crate::deployment::soon;
use crate::oracle::Oracle;

/// Returns a number from the environment, or the default.
fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Longest wait of a test for a condition.
const LIMIT: Micros = Micros::from_secs(60);

/// Long timeouts, because the machine may be busy with other tests.
fn patient(options: RedisOptions) -> RedisOptions {
    let patience = Duration::from_secs(20);
    RedisOptions { response_timeout: patience, connect_timeout: patience, max_wait: patience, ..options }
}

fn clustered(cluster: &Cluster) -> RedisStore {
    RedisStore::with_options(&patient(RedisOptions::cluster(cluster.urls()))).unwrap()
}

fn key(n: u64) -> Key {
    Key::new("moving", [("n", n.to_string().as_str())])
}

/// One event of a key.
enum Event {
    Admitted(Checks, Verdicts),
    Settled(Settlement, Settled),
}

/// Callers acquire and settle while slots move from node to node: none gets an error, and the oracle agrees with all
/// answers, key by key, in the order of instants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_without_errors() {
    let (decisions, slots) = (number("TOPOLOGY_DECISIONS", 20_000), number("TOPOLOGY_SLOTS", 50));
    const KEYS: u64 = 48;
    let cluster = Arc::new(Cluster::start());
    let store = clustered(&cluster);
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mover = {
        let (cluster, stop) = (Arc::clone(&cluster), Arc::clone(&stop));
        std::thread::spawn(move || {
            let keys = (0..KEYS).map(|n| format!("{{{}}}", key(n)));
            let used: Vec<u16> =
                keys.map(|name| cluster.slot_of(&name)).collect::<BTreeSet<_>>().into_iter().collect();
            for n in 0..slots as usize {
                let slot = used[n % used.len()];
                let from = cluster.node_of_slot(slot);
                let to = cluster.primaries().into_iter().find(|port| *port != from).unwrap();
                cluster.migrate_slot(slot, to);
            }
            stop.store(true, Ordering::Relaxed);
        })
    };
    let callers: Vec<_> = (0..16)
        .map(|caller| {
            let (store, stop, done) = (store.clone(), Arc::clone(&stop), Arc::clone(&done));
            tokio::spawn(async move {
                let mut rng = Rng::new(caller + 1);
                let mut history = Vec::new();
                while !stop.load(Ordering::Relaxed) || done.load(Ordering::Relaxed) < decisions {
                    done.fetch_add(1, Ordering::Relaxed);
                    let checks = moving(&mut rng, KEYS);
                    let verdicts = store.admit(std::slice::from_ref(&checks)).await.unwrap().remove(0);
                    let verdict = verdicts.verdicts[0];
                    let key = checks.as_slice()[0].key.clone();
                    history.push((verdicts.at, Event::Admitted(checks, verdicts)));
                    if verdict.outcome == Outcome::Charged && rng.below(8) == 0 {
                        let settlement = Settlement {
                            key,
                            entry: verdict.entry,
                            correction: Correction::Cost(rng.below(2)),
                        };
                        let receipt = store.settle(std::slice::from_ref(&settlement)).await.unwrap();
                        history.push((receipt.at, Event::Settled(settlement, receipt.settled[0])));
                    }
                }
                history
            })
        })
        .collect();
    let mut history = Vec::new();
    for caller in callers {
        history.extend(caller.await.unwrap());
    }
    mover.join().unwrap();
    history.sort_by_key(|(at, _)| *at);
    let mut oracle = Oracle::default();
    for (at, event) in &history {
        match event {
            Event::Admitted(checks, verdicts) => oracle.admitted(checks, verdicts),
            Event::Settled(settlement, settled) => oracle.settled(settlement, *at, *settled),
        }
    }
    let seen = &oracle.seen;
    assert!(seen.denied > 0 && seen.done > 0, "{seen:?}");
    eprintln!(
        "cluster: {} decisions while {slots} slots moved: 0 errors, 0 differences; {} charged, {} denied, {} settled",
        seen.requests, seen.charged, seen.denied, seen.done
    );
}

/// A script removes an idle key whole and writes it anew. While the slot moves, a key that is missing belongs to the other node,
/// so the script may not write it: the call is sent there, and charges once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_keys_are_rewritten_while_their_slot_moves() {
    let cluster = Cluster::start();
    let store = clustered(&cluster);
    let window = Duration::from_millis(100);
    let quota = Quota::new(10, window).unwrap();
    let longer = Quota::new(10, Duration::from_secs(60)).unwrap();
    let check = |n, quota| Check::new(key(n), quota, 1);
    let packed = |check| Check { encoding: Encoding::Packed, ..check };
    let id = |text: &str| RequestId::new(text).unwrap();
    // Checks before the slot moves, and checks during the move.
    let cases = [
        ("a window with different costs", check(0, quota), Checks::one(check(0, quota)).unwrap()),
        ("with an id", check(1, quota), Checks::one(check(1, quota)).unwrap().with_id(id("again"))),
        ("packed", packed(check(2, quota)), Checks::one(packed(check(2, longer))).unwrap()),
        ("another window", check(3, quota), Checks::one(check(3, longer)).unwrap()),
        (
            "another fixed window",
            check(4, quota.with_algorithm(Algorithm::FixedWindow).unwrap()),
            Checks::one(check(4, longer.with_algorithm(Algorithm::FixedWindow).unwrap())).unwrap(),
        ),
        (
            "another bucket",
            check(5, quota.with_algorithm(Algorithm::TokenBucket { burst: 10 }).unwrap()),
            Checks::one(check(5, longer.with_algorithm(Algorithm::TokenBucket { burst: 10 }).unwrap()))
                .unwrap(),
        ),
    ];
    for (n, (name, first, again)) in cases.into_iter().enumerate() {
        // Different costs, and an id, so that there are notes.
        let before = Checks::one(Check { cost: 2, ..first.clone() }).unwrap().with_id(id("first"));
        for checks in [before, Checks::one(first.clone()).unwrap()] {
            let verdicts = store.admit(&[checks]).await.unwrap().remove(0);
            assert_eq!(verdicts.verdicts[0].outcome, Outcome::Charged, "{name}");
        }
        tokio::time::sleep(2 * window).await;
        let slot = cluster.slot_of(&format!("{{{}}}", key(n as u64)));
        let from = cluster.node_of_slot(slot);
        let to = cluster.primaries().into_iter().find(|port| *port != from).unwrap();
        let admit = async || store.admit(std::slice::from_ref(&again)).await.unwrap().remove(0).verdicts[0];
        cluster.migrate_slot_by(slot, to, 100, |step| {
            if matches!(step, Step::Opened) {
                let verdict =
                    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(admit()));
                assert_eq!((verdict.outcome, verdict.used), (Outcome::Charged, 1), "{name}");
            }
        });
        let quota = again.as_slice()[0].quota;
        if quota.window() > Micros::from_secs(1) {
            let peek = Checks::one(Check { cost: 0, ..again.as_slice()[0].clone() }).unwrap();
            let verdict = store.admit(&[peek]).await.unwrap().remove(0).verdicts[0];
            assert_eq!(verdict.used, 1, "{name}: charged once");
        }
    }
}

fn moving(rng: &mut Rng, keys: u64) -> Checks {
    let n = rng.below(keys);
    let quota = Quota::new(20 + n, Duration::from_millis(100 + n)).unwrap();
    let encoding = if n.is_multiple_of(4) { Encoding::Packed } else { Encoding::Zset };
    Checks::one(Check { encoding, ..Check::new(key(n), quota, 1 + rng.below(3)) }).unwrap()
}

fn counter(what: &str, n: u64) -> Key {
    Key::new(what, [("n", n.to_string().as_str())])
}

/// Checks of a user, a tenant and all users, in three slots. About half of `requests` fit.
fn crossing(rng: &mut Rng, requests: u64, id: Option<&str>) -> Checks {
    let user = rng.below(200);
    let quota = |limit| Quota::per_hour(limit).unwrap();
    let cost = 1 + rng.below(3);
    let mut checks = vec![
        Check::new(counter("all", 0), quota(1_000_000_000), cost),
        Check::new(counter("tenant", user % 7), quota(requests / 7), cost),
        Check::new(counter("user", user), quota(requests / 160), cost),
    ];
    if rng.below(2) == 0 {
        checks.reverse();
    }
    let checks = Checks::new(checks).unwrap();
    match id {
        Some(id) => checks.with_id(RequestId::new(id).unwrap()),
        None => checks,
    }
}

/// Adds the granted permits of a request to the expected totals.
fn add_up(totals: &mut HashMap<Key, u64>, checks: &Checks, verdicts: &Verdicts) -> bool {
    let granted = !verdicts.verdicts.iter().any(|verdict| verdict.outcome.denies());
    for (check, verdict) in checks.as_slice().iter().zip(&verdicts.verdicts) {
        let charged = verdict.outcome == Outcome::Charged;
        assert_eq!(charged, granted, "all or nothing: {verdicts:?}");
        assert!(verdict.used <= verdict.limit);
        *totals.entry(check.key.clone()).or_default() += if granted { check.cost } else { 0 };
    }
    granted
}

async fn crosses(name: &str, store: &RedisStore, requests: u64) {
    let callers: Vec<_> = (0..32)
        .map(|caller| {
            let store = store.clone();
            tokio::spawn(async move {
                let (mut rng, mut totals) = (Rng::new(caller + 77), HashMap::new());
                let (mut granted, mut denied, mut left) = (0, 0, Vec::new());
                for n in 0..requests / 32 {
                    let id = format!("{caller}.{n}");
                    let checks = crossing(&mut rng, requests, (n % 3 == 0).then_some(id.as_str()));
                    let admit = store.admit(std::slice::from_ref(&checks));
                    // Some callers do not wait for the answer.
                    if n % 33 == 0 {
                        let wait = Duration::from_micros(rng.below(2_000));
                        let _ = tokio::time::timeout(wait, admit).await;
                        left.push(checks);
                        continue;
                    }
                    let verdicts = admit.await.unwrap().remove(0);
                    if add_up(&mut totals, &checks, &verdicts) { granted += 1 } else { denied += 1 }
                }
                (totals, granted, denied, left)
            })
        })
        .collect();
    let (mut totals, mut granted, mut denied, mut all_left) = (HashMap::<Key, u64>::new(), 0, 0, Vec::new());
    for caller in callers {
        let (part, g, r, left) = caller.await.unwrap();
        part.into_iter().for_each(|(key, cost)| *totals.entry(key).or_default() += cost);
        (granted, denied) = (granted + g, denied + r);
        all_left.extend(left);
    }
    // A request whose caller was cancelled is completed in a task. A retry with the same id returns its outcome.
    let (mut last, mut quiet) = (usize::MAX, 0);
    soon("no task ends any more", || {
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        quiet = if tasks == last { quiet + 1 } else { 0 };
        last = tasks;
        quiet >= 200
    })
    .await;
    for checks in &all_left {
        let verdicts = store.admit(std::slice::from_ref(checks)).await.unwrap().remove(0);
        if add_up(&mut totals, checks, &verdicts) { granted += 1 } else { denied += 1 }
    }
    let mut leaked = 0;
    for (key, expected) in &totals {
        let used = store.inspect(key).await.unwrap().map_or(0, |inspection| inspection.used);
        if used != *expected {
            eprintln!("{name}: {key} counts {used}, granted were {expected}");
            leaked += used.abs_diff(*expected);
        }
    }
    eprintln!(
        "{name}: {granted} granted and {denied} denied over three places, {} callers left: {leaked} permits leaked",
        all_left.len()
    );
    assert!(granted > 0 && denied > 0 && !all_left.is_empty());
    assert_eq!(leaked, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_over_several_slots_are_all_or_nothing() {
    let cluster = Cluster::start();
    crosses("cluster", &clustered(&cluster), number("TOPOLOGY_ASKS", 20_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_over_several_servers_are_all_or_nothing() {
    let servers = [(); 3].map(|()| RedisServer::start(Flavour::Redis7));
    let urls = servers.iter().map(RedisServer::url);
    for mode in [RedisMode::Script, RedisMode::Transaction] {
        servers.iter().for_each(|server| drop(server.run("FLUSHALL")));
        let options = RedisOptions { mode, ..patient(RedisOptions::shards(urls.clone())) };
        let requests = if mode == RedisMode::Script { 10_000 } else { 2_000 };
        crosses(&format!("shards, {mode:?}"), &RedisStore::with_options(&options).unwrap(), requests).await;
    }
}

/// Attempts are recorded up to the first denial, as on one server.
#[tokio::test]
async fn attempts_over_several_slots_stop_at_the_first_denial() {
    let cluster = Cluster::start();
    let store = clustered(&cluster);
    let quota = |limit| Quota::per_hour(limit).unwrap();
    let (first, second, third) = (counter("first", 0), counter("second", 0), counter("third", 0));
    let checks = || {
        Checks::new([
            Check::new(first.clone(), quota(100).with_count(Count::Attempts), 1),
            Check::new(second.clone(), quota(3), 1),
            Check::new(third.clone(), quota(100).with_count(Count::Attempts), 1),
        ])
        .unwrap()
    };
    for n in 1..=10 {
        let verdicts = store.admit(&[checks()]).await.unwrap().remove(0);
        let outcomes: Vec<Outcome> = verdicts.verdicts.iter().map(|verdict| verdict.outcome).collect();
        let used: Vec<u64> = verdicts.verdicts.iter().map(|verdict| verdict.used).collect();
        if n <= 3 {
            assert_eq!((outcomes, used), (vec![Outcome::Charged; 3], vec![n; 3]));
        } else {
            let expected = vec![Outcome::Fits, Outcome::Denied, Outcome::Fits];
            assert_eq!((outcomes, used), (expected, vec![n, 3, 3]));
        }
        assert_eq!(store.admit(&[checks().peek()]).await.unwrap()[0].verdicts[0].used, n);
    }
    // Without attempts, a denial writes nothing, and returns a verdict for every check.
    let plain =
        Checks::new([Check::new(third.clone(), quota(100), 5), Check::new(second.clone(), quota(3), 1)]);
    let verdicts = store.admit(&[plain.unwrap()]).await.unwrap().remove(0);
    let (given_back, denied) = (verdicts.verdicts[0], verdicts.verdicts[1]);
    assert_eq!((given_back.outcome, given_back.used), (Outcome::Fits, 3));
    assert_eq!((denied.outcome, denied.used), (Outcome::Denied, 3));
    // A shadow does not deny.
    let shadow = Check { enforced: false, ..Check::new(second.clone(), quota(3), 1) };
    let checks = Checks::new([shadow, Check::new(third.clone(), quota(100), 5)]).unwrap();
    let verdicts = store.admit(&[checks]).await.unwrap().remove(0);
    assert_eq!(verdicts.verdicts[0].outcome, Outcome::Denied);
    assert_eq!((verdicts.verdicts[1].outcome, verdicts.verdicts[1].used), (Outcome::Charged, 8));
}

/// A batch over many slots is answered in its order; keys are listed from all nodes, and reset.
#[tokio::test]
async fn batches_and_listings_reach_all_nodes() {
    let cluster = Cluster::start();
    let store = clustered(&cluster);
    store.ping().await.unwrap();
    let report = store.report().await.unwrap();
    assert!(report.version.starts_with('7') && report.warnings.is_empty(), "{report:?}");
    let quota = Quota::per_hour(3).unwrap();
    for mode in [RedisMode::Script, RedisMode::Transaction] {
        let options = RedisOptions { mode, ..patient(RedisOptions::cluster(cluster.urls())) };
        let store = RedisStore::with_options(&options).unwrap();
        let one = |n: u64| Check::new(key(n), quota, 1);
        let mut batch: Vec<Checks> = (0..200).map(|n| Checks::one(one(n % 40)).unwrap()).collect();
        batch.push(Checks::new([one(1_000), one(1_001), one(1_002)]).unwrap());
        let batch_verdicts = store.admit(&batch).await.unwrap();
        for (n, verdicts) in batch_verdicts[..200].iter().enumerate() {
            let expected = if n < 120 { Outcome::Charged } else { Outcome::Denied };
            assert_eq!(verdicts.verdicts[0].outcome, expected, "{n}");
            assert_eq!(verdicts.verdicts[0].used, (n as u64 / 40 + 1).min(3));
        }
        assert_eq!(batch_verdicts[200].verdicts.len(), 3);
        let (mut found, mut cursor) = (BTreeSet::new(), 0);
        loop {
            let page = store.keys(cursor, 10).await.unwrap();
            found.extend(page.keys.iter().map(Key::to_string));
            match page.next {
                Some(next) => cursor = next,
                None => break,
            }
        }
        assert_eq!(found.len(), 43);
        let settlements: Vec<Settlement> = (0..40)
            .map(|n| Settlement {
                key: key(n as u64),
                entry: batch_verdicts[n].verdicts[0].entry,
                correction: Correction::Cost(0),
            })
            .collect();
        let receipt = store.settle(&settlements).await.unwrap();
        assert!(receipt.settled.iter().all(|settled| *settled == Settled::Done));
        for name in found {
            let key = Key::printed(&name);
            assert!(store.inspect(&key).await.unwrap().is_some_and(|found| (1..=2).contains(&found.used)));
            assert!(store.reset(&key).await.unwrap() && !store.reset(&key).await.unwrap());
        }
    }
}

/// All rules of one tenant are in one slot, and decided as one.
#[tokio::test]
async fn tag_puts_rules_into_one_slot() {
    let cluster = Cluster::start();
    let rules = Rules::from_yaml(
        "rules:
  - { name: per-user, key: [user, tenant], tag: tenant, limit: 2, window: 1h }
  - { name: per-tenant, key: [tenant], tag: tenant, limit: 5, window: 1h, encoding: packed }
  - { name: per-api, key: [tenant, api], tag: tenant, limit: 9, window: 1h, algorithm: token-bucket }
",
    )
    .unwrap();
    let limiter = slidegate::Limiter::new(clustered(&cluster), rules);
    let request = |user| Request::new([("tenant", "{acme}"), ("user", user), ("api", "}/x{")]);
    let decision = limiter.acquire(request("bob")).await.unwrap();
    assert!(decision.allowed());
    let reservation = limiter.sign_decision(&decision).unwrap();
    assert_eq!(limiter.settle(&limiter.verify(&reservation).unwrap(), 0).await.unwrap(), Settled::Done);
    for _ in 0..2 {
        assert!(limiter.acquire(request("bob")).await.unwrap().allowed());
    }
    assert_eq!(limiter.acquire(request("bob")).await.unwrap().denied_by(), Some("per-user"));
    let (mut names, mut slots) = (BTreeSet::new(), BTreeSet::new());
    for port in cluster.primaries() {
        let found: Vec<String> = redis::from_redis_value(cluster.node(port).run("KEYS *")).unwrap();
        slots.extend(found.iter().map(|name| cluster.slot_of(name)));
        names.extend(found);
    }
    let expected = [
        "sg:{tenant=%7Bacme%7D}per-api:api=%7D/x%7B",
        "sg:{tenant=%7Bacme%7D}per-tenant:log",
        "sg:{tenant=%7Bacme%7D}per-tenant:log:notes",
        "sg:{tenant=%7Bacme%7D}per-user:user=bob",
        "sg:{tenant=%7Bacme%7D}per-user:user=bob:notes",
    ];
    assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    assert_eq!(slots.len(), 1);
    let key = Key::printed("{tenant=%7Bacme%7D}per-tenant");
    assert_eq!(limiter.inspect(&key).await.unwrap().unwrap().used, 2);
}

/// A primary is killed: the other nodes continue, and its slots are served again as soon as a replica has taken over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_recovers_from_a_dead_primary() {
    let cluster = Arc::new(Cluster::start());
    // Long timeouts, so that a slow server on a busy machine does not count as dead.
    let options =
        RedisOptions { response_timeout: Duration::from_secs(10), ..RedisOptions::cluster(cluster.urls()) };
    let store = RedisStore::with_options(&options).unwrap();
    let primaries = cluster.primaries();
    for port in primaries {
        cluster.node(port).run("CONFIG SET cluster-require-full-coverage no");
    }
    let quota = Quota::per_hour(1_000_000).unwrap();
    let shard = |n: u64| {
        let owner = cluster.node_of_slot(cluster.slot_of(&format!("{{{}}}", key(n))));
        primaries.iter().position(|port| *port == owner).unwrap()
    };
    let of = |wanted: usize| (0..).find(|n| shard(*n) == wanted).unwrap();
    let (dying, living) = (of(0), of(1));
    let checks = move |n| [Checks::one(Check::new(key(n), quota, 1)).unwrap()];
    for n in [dying, living] {
        store.admit(&checks(n)).await.unwrap();
    }
    let killed = cluster.kill_primary(0);
    let waiting = {
        let cluster = Arc::clone(&cluster);
        tokio::task::spawn_blocking(move || cluster.wait_for_failover(0, killed))
    };
    let (mut failed, mut unaffected, clock) = (0, 0, SystemClock::new());
    let begun = clock.now();
    let resumed = loop {
        store.admit(&checks(living)).await.unwrap();
        unaffected += 1;
        match store.admit(&checks(dying)).await {
            Ok(batch_verdicts) => break batch_verdicts,
            Err(error) => {
                let expected = [Fault::Unreachable, Fault::Lost, Fault::Cluster].map(Some);
                assert!(expected.contains(&error.fault()), "{error}");
                failed += 1;
            }
        }
        assert!(clock.now().since(begun) < LIMIT, "the shard does not resume");
    };
    waiting.await.unwrap();
    assert_eq!(resumed[0].verdicts[0].outcome, Outcome::Charged);
    eprintln!(
        "cluster: a primary was killed: {failed} decisions failed, then on; {unaffected} of another shard went on"
    );
    for _ in 0..100 {
        store.admit(&checks(dying)).await.unwrap();
        store.admit(&checks(living)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_recover_from_a_dead_primary() {
    let sentinels = Arc::new(Sentinels::start());
    let options = RedisOptions::sentinel(Sentinels::NAME, sentinels.sentinels());
    let store =
        RedisStore::with_options(&RedisOptions { health_check: Duration::from_millis(200), ..options })
            .unwrap();
    let batch = [Checks::one(Check::new(key(0), Quota::per_hour(1_000_000).unwrap(), 1)).unwrap()];
    store.admit(&batch).await.unwrap();
    // The remaining sentinels are enough.
    sentinels.kill_sentinel(0);
    let killed = sentinels.kill_master();
    let (mut failed, clock) = (0, SystemClock::new());
    let begun = clock.now();
    while store.admit(&batch).await.is_err() {
        failed += 1;
        assert!(clock.now().since(begun) < LIMIT, "no replica takes over");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    eprintln!("sentinel: the primary was killed: {failed} decisions failed before the next one succeeded");
    sentinels.wait_for_failover(killed);
    for _ in 0..100 {
        store.admit(&batch).await.unwrap();
    }
    store.ping().await.unwrap();
    let unknown = RedisOptions::sentinel("nobody", sentinels.sentinels());
    let error = RedisStore::with_options(&unknown).unwrap().ping().await.unwrap_err();
    assert!(error.to_string().contains("does not know `nobody`: correct sentinel.master"), "{error}");
}

/// A server that is gone affects only its own keys.
#[tokio::test]
async fn dead_shard_fails_only_its_own_keys() {
    let servers = [(); 2].map(|()| RedisServer::start(Flavour::Redis7).without_ttl_check());
    let urls = servers.iter().map(RedisServer::url);
    let store = RedisStore::with_options(&RedisOptions::shards(urls)).unwrap();
    let quota = Quota::per_hour(1_000_000).unwrap();
    let checks = |n| [Checks::one(Check::new(key(n), quota, 1)).unwrap()];
    for n in 0..100 {
        store.admit(&checks(n)).await.unwrap();
    }
    let on = |server: &RedisServer| -> BTreeSet<String> {
        let names: Vec<String> = redis::from_redis_value(server.run("KEYS *")).unwrap();
        names.into_iter().collect()
    };
    let (gone, there) = (on(&servers[0]), on(&servers[1]));
    assert!(gone.len() > 25 && there.len() > 25 && gone.len() + there.len() == 100);
    store.ping().await.unwrap();
    servers[0].kill();
    for round in 0..3 {
        for n in 0..100 {
            let here = there.contains(&format!("sg:{{{}}}", key(n)));
            match store.admit(&checks(n)).await {
                Ok(_) => assert!(here),
                Err(error) => assert!(!here && round <= 3, "{error}"),
            }
        }
    }
    let message = store.ping().await.unwrap_err().to_string();
    let dead = format!("127.0.0.1:{}", servers[0].port);
    assert!(message.starts_with("1 of 2 servers do not answer: ") && message.contains(&dead), "{message}");
    // A request over both charges nothing.
    let number =
        |names: &BTreeSet<String>| (0..100).find(|n| names.contains(&format!("sg:{{{}}}", key(*n)))).unwrap();
    let (living, dead) = (number(&there), number(&gone));
    let both = Checks::new([living, dead].map(|n| Check::new(key(n), quota, 1))).unwrap();
    assert_eq!(store.admit(&[both]).await.unwrap_err().fault(), Some(Fault::Unreachable));
    assert_eq!(store.inspect(&key(living)).await.unwrap().unwrap().used, 4);
    let batch: Vec<Checks> = [living, dead].iter().flat_map(|n| checks(*n)).collect();
    assert_eq!(store.admit(&batch).await.unwrap_err().fault(), Some(Fault::Unreachable));
    let (clock, used) =
        (SystemClock::new(), async || store.inspect(&key(living)).await.unwrap().unwrap().used);
    let begun = clock.now();
    while used().await != 4 {
        assert!(
            clock.now().since(begun) < LIMIT,
            "a request over both servers was charged and must stay charged"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    eprintln!("shards: one of two died: its {} keys failed, the other {} went on", gone.len(), there.len());
}

/// Names and texts of the broadcasts of the last minute, the newest first.
async fn broadcasts(store: &RedisStore) -> Vec<(String, String)> {
    let broadcasts = store.broadcasts("fleet", Duration::from_secs(60)).await.unwrap();
    broadcasts.into_iter().map(|broadcast| (broadcast.sender, broadcast.text)).collect()
}

fn texts(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(sender, text)| ((*sender).to_owned(), (*text).to_owned())).collect()
}

#[tokio::test]
async fn broadcasts_reach_every_process() {
    let cluster = Cluster::start();
    let one = RedisServer::start(Flavour::Redis7);
    let on_one = || RedisStore::with_options(&patient(RedisOptions::new(one.url()))).unwrap();
    for (here, there) in [(clustered(&cluster), clustered(&cluster)), (on_one(), on_one())] {
        assert!(broadcasts(&there).await.is_empty());
        here.broadcast("fleet", "a", "1").await.unwrap();
        there.broadcast("fleet", "b", "2").await.unwrap();
        for store in [&here, &there] {
            assert_eq!(broadcasts(store).await, texts(&[("b", "2"), ("a", "1")]));
        }
        here.broadcast("other", "a", "3").await.unwrap();
        assert_eq!(broadcasts(&there).await.len(), 2, "of another topic");
    }
    let (slot, store) = (cluster.slot_of("{fleet}"), clustered(&cluster));
    let from = cluster.node_of_slot(slot);
    assert_eq!(broadcasts(&store).await.len(), 2);
    cluster.migrate_slot(slot, cluster.primaries().into_iter().find(|port| *port != from).unwrap());
    store.broadcast("fleet", "c", "4").await.unwrap();
    assert_eq!(broadcasts(&store).await, texts(&[("c", "4"), ("b", "2"), ("a", "1")]));
}

/// Any program that can write to Redis can add entries that are no text, too many entries, and ids that no clock makes.
#[tokio::test]
async fn entries_of_other_programs_do_not_stop_broadcasts() {
    const STREAM: &str = "sg:{fleet}:shared";
    let server = RedisServer::start(Flavour::Redis7);
    let store = RedisStore::with_options(&patient(RedisOptions::new(server.url()))).unwrap();
    store.broadcast("fleet", "a", "1").await.unwrap();
    let mut client = server.client();
    for (name, text) in [(&b"\xff"[..], &b"x"[..]), (b"x", b"\xff"), (b"b", b"")] {
        redis::cmd("XADD").arg(STREAM).arg("*").arg(name).arg(text).exec(&mut client).unwrap();
    }
    assert_eq!(broadcasts(&store).await, texts(&[("b", ""), ("a", "1")]));
    let mut flood = redis::pipe();
    for n in 0..2_500 {
        flood.cmd("XADD").arg(STREAM).arg("*").arg("flood").arg(n).ignore();
    }
    flood.exec(&mut client).unwrap();
    store.broadcast("fleet", "a", "2").await.unwrap();
    let read = broadcasts(&store).await;
    assert_eq!((read.len(), &read[..1]), (1_000, &texts(&[("a", "2")])[..]));
    let kept: u64 = redis::cmd("XLEN").arg(STREAM).query(&mut client).unwrap();
    assert!(kept <= 1_100, "about a thousand, not {kept}");
    // The last id that there is, one that no clock makes, and one in the year 9999.
    let ids = ["18446744073709551615-18446744073709551615", "253402300800000-7", "253402300799999-7"];
    for (n, id) in ids.into_iter().enumerate() {
        for reads_first in [false, true] {
            server.run(&format!("XADD {STREAM} {id} x y"));
            if reads_first {
                assert!(broadcasts(&store).await.is_empty(), "no age is known: {id}");
            }
            store.broadcast("fleet", "a", &n.to_string()).await.unwrap();
            // A message after an id of the future is dated there too, and removed by the first read.
            if broadcasts(&store).await.is_empty() {
                store.broadcast("fleet", "a", &n.to_string()).await.unwrap();
            }
            assert_eq!(broadcasts(&store).await, texts(&[("a", &n.to_string())]), "{id}");
        }
    }
}
