//! Tests several requests that are decided as one: all or nothing, with one charge per key.

use std::collections::HashMap;

use slidegate::{
    Key, Limiter, ManualClock, MemoryStore, Micros, Request, RequestId, Rules, Settled, Source, Store,
    bounds::{MAX_LIMIT, MAX_TOGETHER},
    store::Outcome,
};
use slidegate_testkit::{Flavour, RedisServer};

use crate::audit_healthy::patient_store;
use crate::conformance::Rng;
use crate::oracle::Oracle;
use crate::store_wrappers::Recorder;

const RULES: &str = "
rules:
  - { name: user, group: u, key: [user], limit: 5, window: 1h }
  - { name: api, key: [api], limit: 7, window: 1h }
  - { name: special, match: { api: /special }, key: [user], limit: 20, window: 1h, replaces: [user] }
  - { name: watch, match: { api: /a }, mode: shadow, limit: 1, window: 1h }
  - { name: banned, match: { api: /never }, blocked: true }
  - { name: free, match: { api: /free }, unlimited: true, replaces: [api] }";

fn limiter() -> Limiter {
    Limiter::new(MemoryStore::new(), Rules::from_yaml(RULES).unwrap())
}

fn user(name: &str) -> Request<'_> {
    Request::new([("user", name)])
}

fn api(name: &str) -> Request<'_> {
    Request::new([("api", name)])
}

/// Returns the used permits of a key.
async fn used<S: Store>(limiter: &Limiter<S>, rule: &str, attribute: &str, value: &str) -> u64 {
    let key = Key::new(rule, [(attribute, value)]);
    limiter.inspect(&key).await.unwrap().map_or(0, |inspection| inspection.used)
}

#[tokio::test]
async fn batch_is_charged_whole_or_not_at_all() {
    let limiter = limiter();
    let both = [user("ann").permits(2), api("/b").permits(4)];
    let decisions = limiter.acquire_together(&both).await.unwrap();
    assert!(decisions.iter().all(|decision| decision.allowed() && decision.reservation().is_some()));
    assert_eq!(
        (used(&limiter, "user", "user", "ann").await, used(&limiter, "api", "api", "/b").await),
        (2, 4)
    );
    let decisions = limiter.acquire_together(&both).await.unwrap();
    let results: Vec<_> =
        decisions.iter().map(|decision| (decision.denied_by(), decision.limits().count())).collect();
    assert_eq!(results, [(None, 1), (Some("api"), 1)]);
    assert_eq!(decisions[0].limits().next().unwrap().outcome(), Outcome::Fits);
    assert!(decisions[0].reservation().is_none(), "nothing was charged");
    assert_eq!(
        (used(&limiter, "user", "user", "ann").await, used(&limiter, "api", "api", "/b").await),
        (2, 4)
    );
}

#[tokio::test]
async fn shared_key_is_charged_for_both_requests() {
    let limiter = limiter();
    let twice = [user("ann").permits(2), user("bob"), user("ann").permits(3)];
    let decisions = limiter.acquire_together(&twice).await.unwrap();
    let used_by: Vec<u64> =
        decisions.iter().map(|decision| decision.limits().next().unwrap().used()).collect();
    assert_eq!(used_by, [5, 1, 5]);
    // Both reservations are for one charge: the first settlement settles all of it.
    let [first, _, third] = [0, 1, 2].map(|i| decisions[i].reservation().unwrap());
    assert_eq!(limiter.settle(&third, 1).await.unwrap(), Settled::Done);
    assert_eq!(limiter.settle(&first, 0).await.unwrap(), Settled::Already);
    assert_eq!(used(&limiter, "user", "user", "ann").await, 1);
    // Each request fits alone, but not both together.
    let decisions =
        limiter.acquire_together(&[user("bob").permits(3), user("bob").permits(2)]).await.unwrap();
    assert!(decisions.iter().all(|decision| decision.denied_by() == Some("user")));
    assert_eq!(used(&limiter, "user", "user", "bob").await, 1);
}

#[tokio::test]
async fn cost_over_the_limit_denies_the_batch() {
    let limiter = limiter();
    for costly in [vec![user("ann").permits(6)], vec![user("ann").permits(3), user("ann").permits(3)]] {
        let decisions = limiter.acquire_together(&costly).await.unwrap();
        assert!(decisions.iter().all(|decision| !decision.allowed()));
        assert_eq!(decisions[0].limits().next().unwrap().outcome(), Outcome::Impossible);
    }
    let error = limiter.acquire_together(&[user("a").permits(MAX_LIMIT), user("a")]).await.unwrap_err();
    assert_eq!(error.to_string(), "permits must be at most 1000000000000, not 1000000000001");
    assert!(limiter.acquire_together(&vec![user("a"); MAX_TOGETHER]).await.is_ok());
    let error = limiter.acquire_together(&vec![user("a"); MAX_TOGETHER + 1]).await.unwrap_err();
    assert_eq!(error.to_string(), "at most 64 requests can be decided together, not 65");
    assert!(limiter.acquire_together(&[user("")]).await.unwrap_err().is_invalid());
    assert!(limiter.acquire_together(&[]).await.unwrap().is_empty());
}

#[tokio::test]
async fn replaced_rule_is_replaced_for_the_whole_batch() {
    let limiter = limiter();
    let special = Request::new([("api", "/special"), ("user", "ann")]);
    let decisions = limiter.acquire_together(&[user("ann"), special, api("/x")]).await.unwrap();
    let rules = |n: usize| decisions[n].limits().map(|limit| limit.rule().to_owned()).collect::<Vec<_>>();
    assert_eq!(
        (rules(0), rules(1), rules(2)),
        (vec![], vec!["api".into(), "special".into()], vec!["api".into()])
    );
    assert_eq!(decisions[0].source(), Source::NoRule);
    assert_eq!(decisions[1].source(), Source::Store);
    assert_eq!(used(&limiter, "user", "user", "ann").await, 0);
    let decisions = limiter.acquire_together(&[api("/free"), api("/y").permits(9)]).await.unwrap();
    assert!(decisions.iter().all(|decision| decision.allowed() && decision.limits().count() == 0));
}

#[tokio::test]
async fn blocked_request_denies_the_batch() {
    let limiter = limiter();
    let decisions = limiter.acquire_together(&[user("ann"), api("/never")]).await.unwrap();
    assert_eq!(
        decisions.iter().map(|decision| decision.denied_by()).collect::<Vec<_>>(),
        [None, Some("banned")]
    );
    assert!(decisions.iter().all(|decision| decision.source() == Source::Blocked));
    assert_eq!(used(&limiter, "user", "user", "ann").await, 0);
}

#[tokio::test]
async fn one_id_covers_the_batch_and_ad_hoc_limits_are_allowed() {
    let limiter = limiter();
    let again = [user("ann").id(RequestId::new("r1").unwrap()), api("/b").permits(2)];
    for _ in 0..5 {
        assert!(limiter.acquire_together(&again).await.unwrap().iter().all(|decision| decision.allowed()));
    }
    assert_eq!(
        (used(&limiter, "user", "user", "ann").await, used(&limiter, "api", "api", "/b").await),
        (1, 2)
    );
    // The lower of two limits for one resource counts.
    let own = [Request::resource("r").limit(9), Request::resource("r").limit(3), user("bob")];
    let decisions = limiter.acquire_together(&own).await.unwrap();
    assert_eq!(decisions[0].limits().next().map(|limit| (limit.limit(), limit.used())), Some((3, 2)));
    assert!(!limiter.acquire_together(&own).await.unwrap()[0].allowed());
    assert_eq!(used(&limiter, "user", "user", "bob").await, 1);
}

/// Random calls: each call is one set of checks, charges each key the sum of its requests, and agrees with the oracle.
async fn replay(store: impl Store, window: &str, seed: u64, calls: usize, passes: impl Fn()) {
    let store = Recorder::new(store);
    let rules = RULES.replace("1h", window);
    let limiter = Limiter::new(store, Rules::from_yaml(&rules).unwrap());
    let (mut rng, mut oracle) = (Rng::new(seed), Oracle::default());
    let (mut allowed, mut denied, mut merged) = (0, 0, 0);
    for _ in 0..calls {
        passes();
        let requests: Vec<(&str, Request<'_>, u64)> = (0..1 + rng.below(4))
            .map(|_| {
                let name = ["a", "b", "c"][rng.below(3) as usize];
                let permits = 1 + rng.below(3);
                let request = if rng.below(2) == 0 { user(name) } else { api(name) };
                (name, request.permits(permits), permits)
            })
            .collect();
        let batch: Vec<Request<'_>> = requests.iter().map(|(_, request, _)| request.clone()).collect();
        let decisions = limiter.acquire_together(&batch).await.unwrap();
        let (checks, verdicts) = limiter.store().log.lock().pop().unwrap();
        oracle.admitted(&checks, &verdicts);
        let mut costs: HashMap<String, u64> = HashMap::new();
        let mut shown: HashMap<String, (Outcome, u64)> = HashMap::new();
        for (decision, (_, _, permits)) in decisions.iter().zip(&requests) {
            assert_eq!(decision.at(), verdicts.at);
            let [limit] = decision.limits().collect::<Vec<_>>()[..] else {
                panic!("each request is checked against one limit")
            };
            let key = limit.key().as_str().to_owned();
            *costs.entry(key.clone()).or_default() += permits;
            let result = (limit.outcome(), limit.used());
            assert_eq!(*shown.entry(key).or_insert(result), result);
        }
        let whole: HashMap<String, u64> =
            checks.as_slice().iter().map(|check| (check.key.as_str().to_owned(), check.cost)).collect();
        assert_eq!(whole, costs);
        let fits = decisions.iter().all(|decision| decision.allowed());
        let charged = |outcome: &Outcome| *outcome == Outcome::Charged;
        assert!(shown.values().all(|(outcome, _)| charged(outcome) == fits), "{shown:?}");
        (allowed, denied) = (allowed + usize::from(fits), denied + usize::from(!fits));
        merged += usize::from(costs.len() < requests.len());
    }
    assert!(
        allowed > calls / 20 && denied > calls / 20 && merged > calls / 20,
        "{allowed} {denied} {merged}"
    );
}

#[tokio::test]
async fn random_batches_in_memory_agree_with_the_oracle() {
    for seed in 0..20 {
        let clock = ManualClock::at(Micros::from_secs(1_000_000));
        let store = MemoryStore::with_clock(clock.clone(), 1_000);
        replay(store, "20ms", seed, 500, || clock.advance(Micros::from_millis(1))).await;
    }
}

#[tokio::test]
async fn random_batches_in_redis_agree_with_the_oracle() {
    let server = RedisServer::start(Flavour::Redis7);
    replay(patient_store(&server), "5ms", 1, 1_500, || ()).await;
}
