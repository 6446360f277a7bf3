//! Tests shadow rules: a rule that is tried out beside another counts what it would have admitted in its place.

use std::time::Duration;

use proptest::prelude::*;
use slidegate::{
    Count, Decision, Limiter, ManualClock, MemoryStore, Micros, Mode, Quota, Request, RequestId, Rule, Rules,
    store::Outcome,
};

fn limiter(rules: impl IntoIterator<Item = Rule>) -> (ManualClock, Limiter<MemoryStore<ManualClock>>) {
    let clock = ManualClock::at(Micros::from_secs(1_000_000));
    let store = MemoryStore::with_clock(clock.clone(), 1_000);
    (clock, Limiter::new(store, Rules::new(rules).unwrap()))
}

fn quota(limit: u64, attempts: bool) -> Quota {
    let count = if attempts { Count::Attempts } else { Count::Admitted };
    Quota::new(limit, Duration::from_secs(1)).unwrap().with_count(count)
}

/// Verdict of a rule: true if it denies, and its usage.
fn verdict_of(decision: &Decision, rule: &str) -> (bool, u64) {
    let limit = decision.limits().find(|limit| limit.rule() == rule).unwrap();
    (limit.outcome().denies(), limit.used())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A limiter that enforces the shadow rule decides the same requests as the shadow reported.
    #[test]
    fn shadow_decides_as_it_would_in_force(
        now in 1..8u64,
        soon in 1..8u64,
        attempts in any::<bool>(),
        other in 3..12u64,
        last in any::<bool>(),
        requests in prop::collection::vec((0..400u64, 1..3u64, 0..2usize), 1..80),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let per_user = |name: &str, quota| Rule::new(name, quota).unwrap().per(["user"]).unwrap();
        let mut rules = vec![
            per_user("now", quota(now, attempts)),
            per_user("soon", quota(soon, attempts)).shadow_of("now").unwrap(),
        ];
        // A third rule, before or after these two.
        rules.insert(if last { 2 } else { 0 }, Rule::new("all", quota(other, false)).unwrap());
        let (clock, beside) = limiter(rules);
        let (other_clock, instead) = limiter([per_user("soon", quota(soon, attempts))]);
        for (wait, permits, user) in requests {
            clock.advance(Micros::from_millis(wait));
            other_clock.advance(Micros::from_millis(wait));
            let request = Request::new([("user", ["alice", "bob"][user])]).permits(permits);
            let decision = match runtime.block_on(beside.acquire(request.clone())) {
                Ok(decision) => decision,
                Err(error) => {
                    prop_assert!(error.is_too_costly() && permits > now.min(other), "{}", error);
                    continue;
                }
            };
            // A request that another rule denies is not charged; but it counts as an attempt if that rule comes later.
            let stays = verdict_of(&decision, "all").0 && !(attempts && last);
            let shadow = verdict_of(&decision, "soon");
            match runtime.block_on(async {
                if stays { instead.peek(request).await } else { instead.acquire(request).await }
            }) {
                Ok(decided) => prop_assert_eq!(shadow, verdict_of(&decided, "soon")),
                Err(error) => prop_assert!(error.is_too_costly() && shadow.0),
            }
        }
    }
}

#[tokio::test]
async fn shadow_follows_batches_peeks_and_refunds() {
    let (_, limiter) = limiter([
        Rule::new("now", quota(1, false)).unwrap(),
        Rule::new("soon", quota(3, false)).unwrap().shadow_of("now").unwrap(),
    ]);
    let five = vec![Request::new([]); 5];
    let decisions: Vec<Decision> =
        limiter.acquire_many(&five).await.unwrap().into_iter().map(Result::unwrap).collect();
    let results: Vec<_> = decisions.iter().map(|one| (one.allowed(), verdict_of(one, "soon"))).collect();
    let expected = [
        (true, (false, 1)),
        (false, (false, 2)),
        (false, (false, 3)),
        (false, (true, 3)),
        (false, (true, 3)),
    ];
    assert_eq!(results, expected);
    assert_eq!(verdict_of(&limiter.peek(Request::new([])).await.unwrap(), "soon"), (true, 3));
    let reservation = decisions[0].reservation().unwrap();
    limiter.settle(&reservation, 0).await.unwrap();
    let peeked = limiter.peek(Request::new([])).await.unwrap();
    assert_eq!(
        (verdict_of(&peeked, "now"), verdict_of(&peeked, "soon")),
        ((false, 0), (false, 2)),
        "both rules are refunded"
    );
    // Each rule charges an id once.
    let named = || Request::new([]).id(RequestId::new("once").unwrap());
    for _ in 0..2 {
        let decision = limiter.acquire(named()).await.unwrap();
        assert_eq!((decision.allowed(), verdict_of(&decision, "soon")), (true, (false, 3)));
    }
}

#[tokio::test]
async fn shadow_may_be_the_only_matching_rule() {
    let (_, limiter) = limiter([
        Rule::new("now", quota(1, false)).unwrap().when("api", ["/a"]).unwrap(),
        Rule::new("soon", quota(1, false)).unwrap().shadow_of("now").unwrap(),
        Rule::blocked("closed").unwrap().when("api", ["/closed"]).unwrap(),
    ]);
    let decision = limiter.acquire(Request::new([("api", "/b")])).await.unwrap();
    assert_eq!((decision.allowed(), verdict_of(&decision, "soon")), (true, (false, 1)));
    assert!(decision.at() > Micros::ZERO);
    let limit = decision.limits().next().unwrap();
    assert_eq!(
        (limit.mode(), limit.outcome(), limit.shadow_of()),
        (Mode::Shadow, Outcome::Charged, Some("now"))
    );
    let blocked = limiter.acquire(Request::new([("api", "/closed")])).await.unwrap();
    assert_eq!(
        (blocked.denied_by(), blocked.limits().count()),
        (Some("closed"), 1),
        "the store was not called"
    );
    let lost = Rule::new("a", quota(1, false)).unwrap().shadow_of("b").unwrap();
    assert_eq!(Rules::new([lost]).unwrap_err().to_string(), "shadow-of names `b`, which is not a rule");
}
