//! Tests the deny cache, which must never deny a request that the store would allow.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use slidegate::{
    Clock, Count, Key, ManualClock, MemoryStore, Micros, Quota, RequestId, Rule, Rules, Source, Store,
    SystemClock,
    redis::{RedisMode, RedisOptions, RedisStore},
    store::{Check, Checks, DenyCache, Outcome, Precision, Settlement, Verdicts},
};
use slidegate_testkit::{Fault, FaultProxy, Flavour, RedisServer, until};

use crate::conformance::Rng;
use crate::oracle::Oracle;
use crate::store_wrappers::Recorder;
use crate::watchdog::Watchdog;

fn quota(limit: u64, millis: u64) -> Quota {
    Quota::new(limit, Duration::from_millis(millis)).unwrap()
}

fn check(rule: &str, limit: u64, cost: u64) -> Check {
    Check::new(Key::new(rule, []), quota(limit, 1_000), cost)
}

struct Fixture {
    clock: ManualClock,
    store: DenyCache<Recorder<MemoryStore<ManualClock>>>,
}

impl Fixture {
    fn new() -> Self {
        let clock = ManualClock::at(Micros::from_secs(1_000));
        let memory = Recorder::new(MemoryStore::with_clock(clock.clone(), 100));
        Fixture { store: DenyCache::with_clock(memory, 1_000, clock.clone()), clock }
    }

    async fn admit(&self, checks: impl IntoIterator<Item = Check>) -> Verdicts {
        self.store.admit(&[Checks::new(checks).unwrap()]).await.unwrap().remove(0)
    }

    /// Number of requests that reached the store.
    fn store_calls(&self) -> usize {
        self.store.store().log.lock().len()
    }
}

#[tokio::test]
async fn denies_until_retry_after_has_passed() {
    let fixture = Fixture::new();
    assert_eq!(fixture.admit([check("k", 10, 8)]).await.source, Source::Store);
    fixture.clock.advance(Micros::from_millis(100));
    let denied = fixture.admit([check("k", 10, 3)]).await;
    assert_eq!((denied.source, denied.verdicts[0].retry_after), (Source::Store, Micros::from_millis(900)));
    // The cache denies the same cost and larger costs; a smaller cost may fit.
    fixture.clock.advance(Micros::from_millis(50));
    for cost in [3, 4, 10] {
        let again = fixture.admit([check("k", 10, cost)]).await;
        let verdict = again.verdicts[0];
        assert_eq!((again.source, verdict.outcome), (Source::DenyCache, Outcome::Denied));
        assert_eq!((verdict.used, verdict.retry_after), (8, Micros::from_millis(850)));
        assert_eq!(again.at, fixture.clock_now());
    }
    assert_eq!(fixture.store_calls(), 2);
    assert_eq!(fixture.admit([check("k", 10, 2)]).await.verdicts[0].outcome, Outcome::Charged);
    // One microsecond before the end of the denial, and then at its end.
    fixture.admit([check("k", 10, 1)]).await;
    fixture.clock.set(Micros::new(1_000_999_999));
    assert_eq!(fixture.admit([check("k", 10, 1)]).await.source, Source::DenyCache);
    fixture.clock.advance(Micros::new(1));
    let then = fixture.admit([check("k", 10, 1)]).await;
    assert_eq!((then.source, then.verdicts[0].outcome), (Source::Store, Outcome::Charged));
}

/// Finding 1: a denied peek, and peeks after a denial, do not reach the store again.
#[tokio::test]
async fn denied_peeks_are_cached() {
    let fixture = Fixture::new();
    let attempts = |cost| {
        let check = check("attempts", 10, cost);
        Check { quota: check.quota.with_count(Count::Attempts), ..check }
    };
    for kind in [|cost| check("k", 10, cost), attempts] {
        let peek = async |cost| {
            let checks = Checks::one(kind(cost)).unwrap().peek();
            fixture.store.admit(&[checks]).await.unwrap().remove(0)
        };
        assert_eq!(fixture.admit([kind(8)]).await.verdicts[0].outcome, Outcome::Charged);
        let first = peek(5).await;
        assert_eq!((first.source, first.verdicts[0].outcome), (Source::Store, Outcome::Denied));
        fixture.clock.advance(Micros::from_millis(100));
        for cost in [5, 7, 10] {
            let again = peek(cost).await;
            let verdict = again.verdicts[0];
            assert_eq!((again.source, verdict.outcome), (Source::DenyCache, Outcome::Denied));
            assert_eq!(verdict.retry_after, Micros::from_millis(900));
            // A smaller request may have been admitted since.
            assert_eq!(verdict.precision, Precision::LowerBound);
        }
        assert_eq!(peek(2).await.verdicts[0].outcome, Outcome::Fits);
        assert_eq!(peek(3).await.source, Source::Store, "a smaller cost may fit");
        assert_eq!(peek(4).await.source, Source::DenyCache);
        fixture.clock.advance(Micros::from_millis(900));
        assert_eq!(peek(5).await.verdicts[0].outcome, Outcome::Fits);
    }
    // The denial of a peek denies a request, except an attempt, which counts.
    fixture.admit([check("k", 10, 10)]).await;
    let checks = Checks::one(check("k", 10, 1)).unwrap().peek();
    assert_eq!(fixture.store.admit(&[checks]).await.unwrap()[0].source, Source::Store);
    let denied = fixture.admit([check("k", 10, 1)]).await;
    assert_eq!((denied.source, denied.verdicts[0].precision), (Source::DenyCache, Precision::Exact));
    fixture.admit([attempts(10)]).await;
    let checks = Checks::one(attempts(1)).unwrap().peek();
    assert_eq!(fixture.store.admit(std::slice::from_ref(&checks)).await.unwrap()[0].source, Source::Store);
    assert_eq!(fixture.admit([attempts(1)]).await.source, Source::Store);
    assert_eq!(fixture.store.admit(&[checks]).await.unwrap()[0].source, Source::DenyCache);
}

impl Fixture {
    fn clock_now(&self) -> Micros {
        self.clock.now()
    }
}

#[tokio::test]
async fn uncacheable_checks_reach_the_store() {
    let fixture = Fixture::new();
    // A cost that can never fit.
    for _ in 0..2 {
        let never = fixture.admit([check("never", 10, 11)]).await;
        assert_eq!((never.source, never.verdicts[0].outcome), (Source::Store, Outcome::Impossible));
    }
    // Denied attempts count, even if the cache knows that another rule denies.
    let attempts = |limit| {
        let check = check("attempts", limit, 1);
        Check { quota: check.quota.with_count(Count::Attempts), ..check }
    };
    fixture.admit([check("k", 1, 1)]).await;
    fixture.admit([check("k", 1, 1)]).await;
    for _ in 0..3 {
        assert_eq!(fixture.admit([attempts(1)]).await.source, Source::Store);
        assert_eq!(fixture.admit([attempts(9), check("k", 1, 1)]).await.source, Source::Store);
    }
    // Attempts after the denying check are not recorded, so the cache may deny.
    assert_eq!(fixture.admit([check("k", 1, 1), attempts(9)]).await.source, Source::DenyCache);
    // A request with an id may have been admitted before by another node.
    let named = Checks::new([check("k", 1, 1)]).unwrap().with_id(RequestId::new("r").unwrap());
    assert_eq!(fixture.store.admit(&[named]).await.unwrap()[0].source, Source::Store);
    // A shadow denies nothing.
    let shadow = |rule| Check { enforced: false, ..check(rule, 1, 1) };
    fixture.admit([shadow("s")]).await;
    for _ in 0..2 {
        let verdicts = fixture.admit([shadow("s")]).await;
        assert_eq!((verdicts.source, verdicts.verdicts[0].outcome), (Source::Store, Outcome::Denied));
    }
    // A denial is cached for one limit. With another limit the store decides again.
    assert_eq!(fixture.admit([check("k", 1, 1)]).await.source, Source::DenyCache);
    assert_eq!(fixture.admit([check("k", 2, 1)]).await.verdicts[0].outcome, Outcome::Charged);
    assert_eq!(fixture.admit([check("k", 1, 1)]).await.source, Source::Store);
    assert_eq!(fixture.admit([check("k", 1, 1)]).await.source, Source::DenyCache);
}

#[tokio::test]
async fn cached_denial_names_its_rule() {
    let rules = Rules::from_yaml(
        "rules: [{ name: user, key: [user], limit: 5, window: 1m }, { name: all, limit: 1, window: 1m, code: 7 }]",
    )
    .unwrap();
    let limiter = slidegate::Limiter::new(DenyCache::new(MemoryStore::new()), rules);
    for user in ["a", "b", "c"] {
        let decision = limiter.acquire(slidegate::Request::new([("user", user)])).await.unwrap();
        let limits: Vec<&str> = decision.limits().map(|limit| limit.rule()).collect();
        match user {
            "a" => assert!(decision.allowed()),
            "b" => assert_eq!((decision.source(), limits), (Source::Store, vec!["user", "all"])),
            // A new user is denied by the cached denial of the shared key.
            _ => {
                assert_eq!((decision.source(), limits), (Source::DenyCache, vec!["all"]));
                assert_eq!((decision.denied_by(), decision.code()), (Some("all"), 7));
                assert!(decision.retry_after() > Micros::from_secs(55) && decision.reservation().is_none());
            }
        }
    }
}

#[tokio::test]
async fn local_refunds_and_resets_invalidate_at_once() {
    let fixture = Fixture::new();
    let charged = fixture.admit([check("k", 1, 1)]).await.verdicts[0].entry;
    let key = Key::new("k", []);
    for _ in 0..2 {
        assert!(fixture.admit([check("k", 1, 1)]).await.verdicts[0].outcome.denies());
    }
    assert_eq!(fixture.store_calls(), 2);
    fixture.store.settle(&[Settlement::refund(key.clone(), charged)]).await.unwrap();
    assert_eq!(fixture.admit([check("k", 1, 1)]).await.verdicts[0].outcome, Outcome::Charged);
    fixture.admit([check("k", 1, 1)]).await;
    assert_eq!(fixture.admit([check("k", 1, 1)]).await.source, Source::DenyCache);
    fixture.store.reset(&key).await.unwrap();
    assert_eq!(fixture.admit([check("k", 1, 1)]).await.verdicts[0].outcome, Outcome::Charged);
}

/// Returns the denial of a separate key, which ends `seconds` after now.
fn denial(seconds: u64) -> Checks {
    let quota = Quota::new(1, Duration::from_secs(seconds)).unwrap();
    Checks::one(Check::new(Key::new("k", [("n", seconds.to_string().as_str())]), quota, 1)).unwrap()
}

/// A cache with four slots, compared with a list: a new denial replaces the denial that ends first.
#[tokio::test]
async fn full_cache_evicts_the_denial_that_ends_first() {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let store = DenyCache::with_clock(MemoryStore::with_clock(clock.clone(), 100), 4, clock.clone());
    let admit = async |seconds| store.admit(&[denial(seconds)]).await.unwrap().remove(0);
    for seconds in 1..=12 {
        assert_eq!(admit(seconds).await.verdicts[0].outcome, Outcome::Charged);
    }
    let (mut rng, mut cached, mut hits) = (Rng::new(1), Vec::new(), 0);
    for _ in 0..500 {
        let seconds = 1 + rng.below(12);
        let verdicts = admit(seconds).await;
        assert_eq!(verdicts.verdicts[0].outcome, Outcome::Denied);
        let is_cached = cached.contains(&seconds);
        let source = if is_cached { Source::DenyCache } else { Source::Store };
        assert_eq!(verdicts.source, source, "denied for {seconds} s, cached: {cached:?}");
        hits += u64::from(is_cached);
        if !is_cached {
            if cached.len() == 4 {
                let ends_first = (0..4).min_by_key(|i| cached[*i]).unwrap();
                cached.swap_remove(ends_first);
            }
            cached.push(seconds);
        }
    }
    assert!((50..450).contains(&hits), "hits and misses must occur: {hits} hits of 500");
}

#[tokio::test]
async fn cache_holds_at_most_its_capacity() {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let store = DenyCache::with_clock(MemoryStore::with_clock(clock.clone(), 10_000), 64, clock.clone());
    for n in 1..=2_000 {
        store.admit(&[denial(n)]).await.unwrap();
        store.admit(&[denial(n)]).await.unwrap();
    }
    let mut cached = 0;
    // The latest denials come first, because a repeated denial replaces one that ends sooner.
    for n in (1..=2_000).rev() {
        cached += usize::from(store.admit(&[denial(n)]).await.unwrap()[0].source == Source::DenyCache);
    }
    assert_eq!(cached, 64);
}

fn redis(url: String) -> RedisStore {
    let options = RedisOptions { response_timeout: Duration::from_secs(20), ..RedisOptions::new(url) };
    RedisStore::with_options(&options).unwrap()
}

async fn source<S: Store>(node: &S, checks: &Checks) -> Source {
    node.admit(std::slice::from_ref(checks)).await.unwrap()[0].source
}

/// Acquires until the deny cache answers.
async fn wait_until_cached<S: Store>(node: &S, checks: &Checks) {
    until("the deny cache answers", async || source(node, checks).await == Source::DenyCache).await;
}

/// Acquires until a request is allowed.
async fn wait_until_allowed<S: Store>(node: &S, checks: &Checks) {
    until("permits that another node freed are granted here", async || {
        node.admit(std::slice::from_ref(checks)).await.unwrap()[0].verdicts[0].outcome == Outcome::Charged
    })
    .await;
}

/// Another node settles or resets, and this node is notified: with scripts and transactions, also with a log.
#[tokio::test]
async fn remote_refunds_and_resets_invalidate() {
    let server = RedisServer::start(Flavour::Redis7);
    for mode in [RedisMode::Script, RedisMode::Transaction] {
        let options = RedisOptions {
            mode,
            response_timeout: Duration::from_secs(20),
            ..RedisOptions::new(server.url())
        };
        let node = || DenyCache::new(RedisStore::with_options(&options).unwrap());
        let (here, there) = (node(), node());
        let key = Key::new("k", [("mode", format!("{mode:?}").as_str())]);
        let checks = Checks::one(Check::new(key.clone(), Quota::per_hour(1).unwrap(), 1)).unwrap();
        let entry = there.admit(std::slice::from_ref(&checks)).await.unwrap()[0].verdicts[0].entry;
        wait_until_cached(&here, &checks).await;
        there.settle(&[Settlement::refund(key.clone(), entry)]).await.unwrap();
        wait_until_allowed(&here, &checks).await;
        wait_until_cached(&here, &checks).await;
        there.reset(&key).await.unwrap();
        wait_until_allowed(&here, &checks).await;
    }
}

/// The cache denies nothing while it receives no notifications of other nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_subscription_every_check_reaches_the_store() {
    let server = RedisServer::start(Flavour::Redis7);
    let proxy = FaultProxy::start(server.address());
    let here = DenyCache::new(redis(proxy.url()));
    let checks = Checks::one(Check::new(Key::new("k", []), Quota::per_hour(1).unwrap(), 1)).unwrap();
    here.admit(std::slice::from_ref(&checks)).await.unwrap();
    wait_until_cached(&here, &checks).await;
    // The connection breaks: the cache drops its denials, and calls the store until it is subscribed again.
    proxy.set(Fault::Reset);
    let admit = async || here.admit(std::slice::from_ref(&checks)).await;
    until("the lost connection is noticed", async || admit().await.is_err()).await;
    proxy.set(Fault::None);
    let mut first = None;
    until("the store answers again", async || {
        first = admit().await.ok().map(|batch_verdicts| batch_verdicts[0].source);
        first.is_some()
    })
    .await;
    assert_eq!(first, Some(Source::Store));
    wait_until_cached(&here, &checks).await;
}

/// A Redis user that may not subscribe: Redis has rejected the subscription twice, and the store still decides.
#[tokio::test]
async fn subscription_denied_by_acl_sends_every_check_to_the_store() {
    let server = RedisServer::start(Flavour::Redis7);
    server.run("ACL SETUSER deaf on nopass ~* +@all resetchannels");
    let deaf = DenyCache::new(redis(format!("redis://deaf:x@127.0.0.1:{}", server.port)));
    let checks = Checks::one(Check::new(Key::new("k", []), Quota::per_hour(1).unwrap(), 1)).unwrap();
    deaf.admit(std::slice::from_ref(&checks)).await.unwrap();
    until("Redis rejects the subscription twice", async || {
        assert_eq!(source(&deaf, &checks).await, Source::Store);
        let rejected: Vec<Vec<(String, redis::Value)>> =
            redis::from_redis_value(server.run("ACL LOG")).unwrap();
        let counts = rejected.iter().flatten().filter(|(field, _)| field == "count");
        counts.map(|(_, count)| redis::from_redis_value::<u64>(count.clone()).unwrap()).sum::<u64>() >= 2
    })
    .await;
    for _ in 0..3 {
        assert_eq!(source(&deaf, &checks).await, Source::Store);
    }
}

/// Event of one node. `seen` is the start of an admission or the end of a settlement, by the clock of the node.
struct Event {
    node: u64,
    seen: Micros,
    kind: EventKind,
}

enum EventKind {
    Admitted(Checks, Verdicts),
    Settled(Settlement, Micros, slidegate::Settled),
}

/// Four nodes on one Redis: callers acquire and refund permits, and limits are raised and lowered. Every denial of a cache is compared
/// with the oracle: it may be wrong only while the message about what was freed is on its way. One thread, so that the
/// watchdog sees when the machine delayed messages.
#[tokio::test]
async fn no_false_denial_after_invalidation_arrives() {
    let server = RedisServer::start(Flavour::Redis7);
    let events: Arc<Mutex<Vec<(Micros, Event)>>> = Arc::default();
    let raised = Arc::new(AtomicBool::new(false));
    let clock = SystemClock::new();
    let watchdog = Watchdog::start(&clock);
    let mut tasks = Vec::new();
    for node in 0..4u64 {
        let store = DenyCache::new(redis(server.url()));
        for caller in 0..8u64 {
            let (store, events, raised) = (store.clone(), Arc::clone(&events), Arc::clone(&raised));
            let clock = clock.clone();
            tasks.push(tokio::spawn(async move {
                let mut rng = Rng::new(node * 100 + caller + 1);
                let end = clock.now().get() + 3_000_000;
                let mut charges: Vec<(Key, slidegate::store::Entry)> = Vec::new();
                while clock.now().get() < end {
                    let n = rng.below(3);
                    let key = Key::new("k", [("n", n.to_string().as_str())]);
                    let limit = if raised.load(Ordering::Relaxed) { 15 } else { 10 };
                    let check = Check::new(key.clone(), quota(limit, 300), 1 + rng.below(2) * (n % 2));
                    let checks = Checks::one(check).unwrap();
                    let seen = clock.now();
                    let verdicts = store.admit(std::slice::from_ref(&checks)).await.unwrap().remove(0);
                    if verdicts.verdicts[0].outcome == Outcome::Charged {
                        charges.push((key, verdicts.verdicts[0].entry));
                    }
                    events.lock().push((
                        verdicts.at,
                        Event { node, seen, kind: EventKind::Admitted(checks, verdicts) },
                    ));
                    if !charges.is_empty() && rng.below(3) == 0 {
                        let (key, entry) = charges.swap_remove(rng.below(charges.len() as u64) as usize);
                        let settlement = Settlement::refund(key, entry);
                        let receipt = store.settle(std::slice::from_ref(&settlement)).await.unwrap();
                        let (at, seen) = (receipt.at, clock.now());
                        let kind = EventKind::Settled(settlement, at, receipt.settled[0]);
                        events.lock().push((at, Event { node, seen, kind }));
                    }
                    if caller == 0 && rng.below(200) == 0 {
                        raised.fetch_xor(true, Ordering::Relaxed);
                    }
                    tokio::time::sleep(Duration::from_micros(rng.below(3_000))).await;
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    let mut events = std::mem::take(&mut *events.lock());
    events.sort_by_key(|(at, _)| *at);
    let mut oracle = Oracle::default();
    let mut freed: HashMap<Key, (Micros, u64, Micros)> = HashMap::new();
    let (mut cached, mut early, mut own, mut latest) = (0, 0, 0, Duration::ZERO);
    for (at, Event { node, seen, kind }) in &events {
        match kind {
            EventKind::Admitted(checks, verdicts) if verdicts.source == Source::DenyCache => {
                let check = &checks.as_slice()[0];
                cached += 1;
                if !oracle.would_be(check, *at).outcome.denies() {
                    early += 1;
                    let (freed, by, done) = freed[&check.key];
                    latest = latest.max(watchdog.between(freed.get().min(at.get()), at.get()));
                    // Permits that the same node freed before the request.
                    own += u64::from(by == *node && done < *seen);
                }
            }
            EventKind::Admitted(checks, verdicts) => oracle.admitted(checks, verdicts),
            EventKind::Settled(settlement, at, settled) => {
                oracle.settled(settlement, *at, *settled);
                freed.insert(settlement.key.clone(), (*at, *node, *seen));
            }
        }
    }
    eprintln!(
        "{} events of 4 nodes, {cached} denied by a cache, {early} of them while the message was on its way, which took \
         {latest:?} at most without stalls; none later, and none by the node that freed it",
        events.len()
    );
    assert_eq!(own, 0);
    assert!(cached > 200 && oracle.seen.done > 200);
    assert!(latest < Duration::from_millis(500), "{latest:?}");
}

/// A rule that is replaced by one with a higher limit allows at once.
#[tokio::test]
async fn raised_limit_allows_at_once() {
    let rules = |limit| Rules::new([Rule::new("r", Quota::per_hour(limit).unwrap()).unwrap()]).unwrap();
    let limiter = slidegate::Limiter::new(DenyCache::new(MemoryStore::new()), rules(1));
    let acquire = || limiter.acquire(slidegate::Request::new([("a", "b")]));
    assert!(acquire().await.unwrap().allowed());
    assert!(!acquire().await.unwrap().allowed());
    assert_eq!(acquire().await.unwrap().source(), Source::DenyCache);
    limiter.set_rules(rules(2));
    assert!(acquire().await.unwrap().allowed());
}
