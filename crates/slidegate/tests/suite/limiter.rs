//! Tests the operations of a limiter: acquire, peek, batch, settle, wait.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{
    Algorithm, Clock, Count, Key, Limiter, ManualClock, MemoryStore, Micros, Mode, Quota, Request, RequestId,
    Rule, Rules, Settled, Source, Store,
    store::{Correction, Entry, Outcome, Settlement},
};

struct Setup {
    clock: ManualClock,
    limiter: Arc<Limiter<MemoryStore<ManualClock>>>,
}

fn setup(rules: impl IntoIterator<Item = Rule>) -> Setup {
    let clock = ManualClock::at(Micros::from_secs(1_000_000));
    let store = MemoryStore::with_clock(clock.clone(), 1_000);
    let limiter = Limiter::new(store, Rules::new(rules).unwrap()).with_clock(clock.clone());
    Setup { clock, limiter: Arc::new(limiter) }
}

fn rule(name: &str, limit: u64, secs: u64) -> Rule {
    Rule::new(name, Quota::new(limit, Duration::from_secs(secs)).unwrap()).unwrap()
}

#[tokio::test]
async fn per_minute_limiter_denies_the_third_request() {
    let limiter = Limiter::per_minute(2).unwrap();
    assert!(limiter.acquire("alice").await.unwrap().allowed());
    assert!(limiter.acquire("alice").await.unwrap().allowed());
    let denied = limiter.acquire("alice").await.unwrap();
    assert!(!denied.allowed());
    assert_eq!(denied.denied_by(), Some("per-key"));
    assert!((Micros::new(1)..=Micros::from_secs(60)).contains(&denied.retry_after()));
    assert!(limiter.acquire("bob").await.unwrap().allowed());
}

#[tokio::test]
async fn rules_apply_when_they_match_and_have_their_key() {
    let api = rule("api", 10, 1).when("api", ["/a", "/b/*"]).unwrap().per(["user"]).unwrap();
    let global = rule("global", 100, 1);
    let off = rule("off", 1, 1).mode(Mode::Off);
    let Setup { limiter, .. } = setup([api, off, global]);
    let applied = async |attributes: &[(&str, &str)]| {
        let decision = limiter.peek(Request::new(attributes.iter().copied())).await.unwrap();
        decision.limits().map(|limit| limit.rule().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(applied(&[("api", "/a"), ("user", "u")]).await, ["api", "global"]);
    assert_eq!(applied(&[("api", "/b/c"), ("user", "u")]).await, ["api", "global"]);
    assert_eq!(applied(&[("api", "/bc"), ("user", "u")]).await, ["global"]);
    assert_eq!(applied(&[("api", "/a")]).await, ["global"], "no user, no check per user");
    assert_eq!(applied(&[]).await, ["global"]);
}

#[tokio::test]
async fn reused_request_with_id_is_charged_once() {
    let Setup { limiter, .. } = setup([rule("per-user", 5, 1).per(["user"]).unwrap()]);
    let attributes = [("user", "u")];
    let request = Request::from(attributes.as_slice()).permits(2).id(RequestId::new("once").unwrap());
    for _ in 0..3 {
        let decision = limiter.acquire(&request).await.unwrap();
        assert_eq!(decision.limits().next().unwrap().used(), 2, "charged once");
    }
    let other = Request::new(attributes).permits(2);
    assert_eq!(limiter.acquire(&other).await.unwrap().limits().next().unwrap().used(), 4);
    let own = Request::resource("r").limit(3).window(Duration::from_secs(1));
    assert!(limiter.acquire(&own).await.unwrap().limits().next().unwrap().limit() == 3);
}

#[tokio::test]
async fn request_without_rules_is_allowed() {
    let Setup { limiter, .. } = setup([]);
    let decision = limiter.acquire("x").await.unwrap();
    assert!(decision.allowed());
    assert_eq!(decision.source(), Source::NoRule);
    assert!(decision.reservation().is_none());
}

#[tokio::test]
async fn denied_request_is_charged_by_no_rule() {
    let Setup { limiter, clock } = setup([rule("wide", 10, 60), rule("narrow", 1, 10)]);
    assert!(limiter.acquire("x").await.unwrap().allowed());
    clock.advance(Micros::from_secs(4));
    let denied = limiter.acquire("x").await.unwrap();
    assert_eq!(denied.denied_by(), Some("narrow"));
    assert_eq!(denied.retry_after(), Micros::from_secs(6));
    let used: Vec<u64> = denied.limits().map(|limit| limit.used()).collect();
    assert_eq!(used, [1, 1]);
}

#[tokio::test]
async fn retry_after_satisfies_all_rules() {
    let Setup { limiter, clock } = setup([rule("short", 1, 5), rule("long", 1, 30)]);
    limiter.acquire("x").await.unwrap();
    clock.advance(Micros::from_secs(1));
    let denied = limiter.acquire("x").await.unwrap();
    assert_eq!((denied.denied_by(), denied.retry_after()), (Some("short"), Micros::from_secs(29)));
    clock.advance(Micros::from_secs(29));
    assert!(limiter.acquire("x").await.unwrap().allowed());
}

#[tokio::test]
async fn shadow_rule_counts_and_never_denies() {
    let Setup { limiter, .. } = setup([rule("shadow", 1, 60).mode(Mode::Shadow), rule("real", 3, 60)]);
    let mut outcomes = Vec::new();
    for _ in 0..4 {
        let decision = limiter.acquire("x").await.unwrap();
        let shadow = decision.limits().next().unwrap();
        outcomes.push((decision.allowed(), shadow.outcome(), shadow.used()));
    }
    assert_eq!(
        outcomes,
        [
            (true, Outcome::Charged, 1),
            (true, Outcome::Denied, 1),
            (true, Outcome::Denied, 1),
            (false, Outcome::Denied, 1)
        ]
    );
    // A cost above the limit of a shadow rule is not an error either.
    assert!(limiter.acquire(Request::from("x").permits(2)).await.is_ok());
}

#[tokio::test]
async fn cost_over_the_limit_is_an_error_and_charges_nothing() {
    let Setup { limiter, .. } = setup([rule("small", 5, 60)]);
    let error = limiter.acquire(Request::from("x").permits(6)).await.unwrap_err();
    assert!(error.is_too_costly() && !error.is_invalid() && !error.is_unavailable());
    assert_eq!(
        error.to_string(),
        "6 permits exceed the limit of rule `small`, which is 5: waiting does not help"
    );
    assert_eq!(limiter.inspect(&Key::new("small", [])).await.unwrap(), None);
}

#[tokio::test]
async fn reserve_and_settle() {
    let Setup { limiter, clock } = setup([rule("tokens", 1_000, 60), rule("day", 5_000, 86_400)]);
    let used =
        async || limiter.peek("x").await.unwrap().limits().map(|limit| limit.used()).collect::<Vec<_>>();
    let reservation = limiter.acquire(Request::from("x").permits(800)).await.unwrap().reservation().unwrap();
    assert!(!limiter.acquire(Request::from("x").permits(300)).await.unwrap().allowed());
    let reservation = limiter.verify(&limiter.sign(&reservation)).unwrap();
    assert_eq!(limiter.settle(&reservation, 350).await.unwrap(), Settled::Done);
    assert_eq!(used().await, [350, 350]);
    assert_eq!(
        limiter.settle(&reservation, 0).await.unwrap(),
        Settled::Already,
        "the first settlement stands"
    );
    assert_eq!(used().await, [350, 350]);

    // The actual cost may exceed the remaining permits. The excess counts as debt.
    let reservation = limiter.acquire(Request::from("x").permits(600)).await.unwrap().reservation().unwrap();
    assert_eq!(limiter.settle(&reservation, 900).await.unwrap(), Settled::Done);
    assert_eq!(used().await, [1_250, 1_250]);

    // When the admission has left the short window, it can still be settled in the long one.
    clock.advance(Micros::from_secs(60));
    assert_eq!(used().await, [0, 1_250]);
    let reservation = limiter.acquire(Request::from("x").permits(10)).await.unwrap().reservation().unwrap();
    clock.advance(Micros::from_secs(60));
    assert_eq!(limiter.settle(&reservation, 0).await.unwrap(), Settled::Done);
    assert_eq!(used().await, [0, 1_250]);
    let reservation = limiter.acquire("x").await.unwrap().reservation().unwrap();
    clock.advance(Micros::from_secs(86_400));
    assert_eq!(limiter.settle(&reservation, 0).await.unwrap(), Settled::Gone);
}

#[tokio::test]
async fn the_same_id_is_charged_once() {
    let Setup { limiter, clock } = setup([rule("r", 2, 60)]);
    let request = || Request::from("x").id(RequestId::new("order-17").unwrap());
    let first = limiter.acquire(request()).await.unwrap();
    clock.advance(Micros::from_secs(5));
    let again = limiter.acquire(request()).await.unwrap();
    assert!(first.allowed() && again.allowed());
    assert_eq!(again.limits().next().unwrap().used(), 1);
    assert_eq!(first.reservation(), again.reservation());
    // The limit is used up: a new request is denied, and the repeated one is still allowed.
    limiter.acquire("x").await.unwrap();
    assert!(!limiter.acquire("x").await.unwrap().allowed());
    assert!(limiter.acquire(request()).await.unwrap().allowed());
    // After a refund, the same id is a new request.
    limiter.settle(&first.reservation().unwrap(), 0).await.unwrap();
    assert_eq!(limiter.acquire(request()).await.unwrap().limits().next().unwrap().used(), 2);
}

#[tokio::test]
async fn batch_items_are_decided_in_order_and_independently() {
    let Setup { limiter, .. } = setup([rule("r", 3, 60)]);
    let requests = [
        Request::from("x").permits(2),
        Request::from("x").permits(2),
        Request::new([("", "nameless")]),
        Request::from("x").permits(1),
        Request::from("x").permits(4),
    ];
    let answers = limiter.acquire_many(&requests).await.unwrap();
    let results: Vec<Option<bool>> =
        answers.iter().map(|answer| answer.as_ref().ok().map(|d| d.allowed())).collect();
    assert_eq!(results, [Some(true), Some(false), None, Some(true), None]);
    let instants: Vec<_> = answers.iter().flatten().map(|decision| decision.at()).collect();
    assert!(instants.windows(2).all(|pair| pair[0] == pair[1]));
}

#[tokio::test]
async fn until_ready_waits_exactly_retry_after() {
    let Setup { limiter, clock } = setup([rule("r", 1, 10)]);
    limiter.acquire("x").await.unwrap();
    clock.advance(Micros::from_secs(3));
    let waiting = tokio::spawn({
        let limiter = Arc::clone(&limiter);
        async move { limiter.until_ready("x", Duration::from_secs(60)).await.unwrap() }
    });
    // One microsecond too early, the caller still waits.
    settle_down().await;
    clock.advance(Micros::new(6_999_999));
    settle_down().await;
    assert!(!waiting.is_finished());
    clock.advance(Micros::new(1));
    let decision = waiting.await.unwrap();
    assert!(decision.allowed());
    assert_eq!(decision.at(), clock.now());

    // A wait that cannot succeed is not begun.
    let denied = limiter.until_ready("x", Duration::from_micros(9_999_999)).await.unwrap();
    assert!(!denied.allowed());
    assert_eq!(denied.retry_after(), Micros::from_secs(10));
}

async fn settle_down() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn until_ready_in_real_time() {
    let limiter = Limiter::per_key(Quota::new(1, Duration::from_millis(20)).unwrap()).unwrap();
    for _ in 0..4 {
        assert!(limiter.until_ready("x", Duration::from_secs(5)).await.unwrap().allowed());
    }
}

#[tokio::test]
async fn ad_hoc_limits_are_bounded() {
    let Setup { limiter, .. } = setup([]);
    let own = |limit, secs| Request::resource("user123").limit(limit).window(Duration::from_secs(secs));
    assert!(limiter.acquire(own(1, 1)).await.unwrap().allowed());
    assert!(!limiter.acquire(own(1, 1)).await.unwrap().allowed());
    assert!(limiter.acquire(own(1, 2)).await.unwrap().allowed(), "another window is another count");
    let defaults = limiter.acquire(Request::resource("other")).await.unwrap();
    let limit = defaults.limits().next().unwrap();
    assert_eq!(
        (limit.rule(), limit.limit(), limit.quota().window()),
        ("ad-hoc", 1_000, Micros::from_secs(60))
    );
    let too_much = limiter.acquire(own(100_001, 1)).await.unwrap_err();
    assert_eq!(too_much.to_string(), "limit must be between 1 and 100000, not 100001");
    let too_long = limiter.acquire(own(1, 3_601)).await.unwrap_err();
    assert_eq!(too_long.to_string(), "window must be between 1s and 1h, not 1h 1s");
}

#[tokio::test]
async fn ad_hoc_buckets_are_bounded() {
    let Setup { limiter, .. } = setup([]);
    let window = |limit| Request::resource("user123").limit(limit).window(Duration::from_secs(60));
    let bucket = |burst| window(1).burst(burst);
    for remaining in [1, 0] {
        let decision = limiter.acquire(bucket(2)).await.unwrap();
        let limit = decision.limits().next().unwrap();
        assert_eq!((limit.limit(), limit.remaining()), (2, remaining));
        assert_eq!(limit.key().as_str(), "ad-hoc:bucket=user123:window=1m");
    }
    assert!(
        limiter.acquire(window(1)).await.unwrap().allowed(),
        "a window with the same name has a separate count"
    );
    let denied = limiter.acquire(bucket(2)).await.unwrap();
    assert_eq!((denied.allowed(), denied.retry_after()), (false, Micros::from_secs(60)));
    for (request, message) in [
        (bucket(0), "burst must be between 1 and 100000, not 0"),
        (bucket(100_001), "burst must be between 1 and 100000, not 100001"),
        (window(0).burst(1), "limit must be between 1 and 100000, not 0"),
    ] {
        assert_eq!(limiter.acquire(request).await.unwrap_err().to_string(), message);
    }
}

#[tokio::test]
async fn override_changes_the_limit_of_one_key() {
    let quota = Quota::per_minute(1).unwrap();
    let vip = Rule::new("r", quota).unwrap().per(["key"]).unwrap();
    let vip = vip.with_override(["vip"], Quota::per_minute(3).unwrap()).unwrap();
    let Setup { limiter, .. } = setup([vip]);
    let mut allowed = Vec::new();
    for user in ["vip", "vip", "vip", "vip", "joe", "joe"] {
        allowed.push(limiter.acquire(user).await.unwrap().allowed());
    }
    assert_eq!(allowed, [true, true, true, false, true, false]);
}

#[tokio::test]
async fn new_rules_keep_counts_unless_window_or_algorithm_change() {
    let Setup { limiter, .. } = setup([rule("r", 5, 60)]);
    for _ in 0..4 {
        limiter.acquire("x").await.unwrap();
    }
    let used = async || limiter.peek("x").await.unwrap().limits().next().unwrap().used();
    limiter.set_rules(Rules::new([rule("r", 2, 60)]).unwrap());
    assert_eq!(used().await, 4, "a new limit keeps the count");
    assert!(!limiter.acquire("x").await.unwrap().allowed());
    limiter.set_rules(Rules::new([rule("r", 5, 30)]).unwrap());
    assert_eq!(used().await, 0, "a new window starts anew");
    limiter.set_rules(Rules::new([rule("r", 5, 60)]).unwrap());
    assert_eq!(used().await, 4, "a peek with other rules forgets nothing");
    let bucket = |limit, burst| {
        let quota =
            Quota::per_minute(limit).unwrap().with_algorithm(Algorithm::TokenBucket { burst }).unwrap();
        Rules::new([Rule::new("b", quota).unwrap()]).unwrap()
    };
    limiter.set_rules(bucket(60, 10));
    limiter.acquire(Request::from("x").permits(7)).await.unwrap();
    limiter.set_rules(bucket(30, 20));
    let decision = limiter.peek("x").await.unwrap();
    assert_eq!(decision.limits().next().unwrap().remaining(), 3, "a bucket keeps its level");
}

#[tokio::test]
async fn inspect_and_reset() {
    let Setup { limiter, clock } = setup([rule("r", 5, 60)]);
    let key = Key::new("r", []);
    limiter.acquire(Request::from("x").permits(2)).await.unwrap();
    clock.advance(Micros::from_secs(10));
    limiter.acquire("x").await.unwrap();
    let seen = limiter.inspect(&key).await.unwrap().unwrap();
    assert_eq!(seen.used, 3);
    let entries: Vec<(u64, u64)> =
        seen.entries.iter().map(|e| (e.cost, e.leaves_after.ceil_secs())).collect();
    assert_eq!(entries, [(2, 50), (1, 60)]);
    assert_eq!(seen.reset_after, Micros::from_secs(60));
    // A refunded admission is not counted, but the store remembers that it was settled.
    let other = Key::new("other", []);
    limiter.set_rules(Rules::new([rule("other", 5, 60)]).unwrap());
    let reservation = limiter.acquire("x").await.unwrap().reservation().unwrap();
    limiter.settle(&reservation, 0).await.unwrap();
    assert_eq!(limiter.inspect(&other).await.unwrap(), None);
    assert!(limiter.reset(&key).await.unwrap());
    assert!(!limiter.reset(&key).await.unwrap());
    assert_eq!(limiter.inspect(&key).await.unwrap(), None);
}

#[tokio::test]
async fn attempts_cannot_be_settled() {
    let quota = Quota::per_minute(2).unwrap().with_count(Count::Attempts);
    let Setup { limiter, .. } = setup([Rule::new("r", quota).unwrap()]);
    assert!(limiter.acquire("x").await.unwrap().reservation().is_none());
}

/// A repeated denied attempt is another attempt, also under the same id.
#[tokio::test]
async fn repeated_denied_attempt_stays_denied() {
    let quota = Quota::new(3, Duration::from_secs(5)).unwrap().with_count(Count::Attempts);
    let Setup { limiter, .. } = setup([Rule::new("guard", quota).unwrap()]);
    for _ in 0..3 {
        assert!(limiter.acquire("x").await.unwrap().allowed());
    }
    for _ in 0..5 {
        let request = Request::from("x").id(RequestId::new("again").unwrap());
        assert!(!limiter.acquire(request).await.unwrap().allowed());
    }
}

#[tokio::test]
async fn same_id_with_another_cost_is_another_request() {
    let Setup { limiter, .. } = setup([rule("r", 10, 60)]);
    let request = |permits| Request::from("x").permits(permits).id(RequestId::new("one").unwrap());
    assert!(limiter.acquire(request(1)).await.unwrap().allowed());
    assert!(!limiter.acquire(request(10)).await.unwrap().allowed());
    assert_eq!(limiter.acquire(request(5)).await.unwrap().limits().next().unwrap().used(), 6);
}

/// A reservation of a key that was reset settles no later admission.
#[tokio::test]
async fn reservation_of_a_reset_key_settles_nothing() {
    for algorithm in
        [Algorithm::FixedWindow, Algorithm::TimeSlice { slices: 4 }, Algorithm::TokenBucket { burst: 10 }]
    {
        let quota = Quota::per_minute(10).unwrap().with_algorithm(algorithm).unwrap();
        let Setup { limiter, .. } = setup([Rule::new("r", quota).unwrap()]);
        let acquire = async |permits| {
            let decision = limiter.acquire(Request::from("x").permits(permits)).await.unwrap();
            decision.reservation().unwrap()
        };
        let old = acquire(5).await;
        limiter.reset(&Key::new("r", [])).await.unwrap();
        let new = acquire(3).await;
        assert_eq!(limiter.settle(&old, 0).await.unwrap(), Settled::Gone, "{algorithm:?}");
        assert_eq!(limiter.settle(&new, 0).await.unwrap(), Settled::Done, "{algorithm:?}");
    }
}

/// Permits that have refilled cannot be refunded: that would allow more than the burst at once.
#[tokio::test]
async fn refilled_bucket_refunds_nothing() {
    let quota = Quota::new(10, Duration::from_secs(10)).unwrap();
    let quota = quota.with_algorithm(Algorithm::TokenBucket { burst: 10 }).unwrap();
    let Setup { limiter, clock } = setup([Rule::new("r", quota).unwrap()]);
    let first = limiter.acquire("x").await.unwrap().reservation().unwrap();
    clock.advance(Micros::from_secs(5));
    assert!(limiter.acquire(Request::from("x").permits(10)).await.unwrap().allowed());
    assert_eq!(limiter.settle(&first, 0).await.unwrap(), Settled::Gone);
    assert!(!limiter.acquire("x").await.unwrap().allowed());
}

/// The store settles only its own admissions: none from the future, none under another number.
#[tokio::test]
async fn forged_reservation_settles_nothing() {
    let quota = Quota::per_minute(10).unwrap().with_algorithm(Algorithm::TokenBucket { burst: 10 }).unwrap();
    let Setup { limiter, .. } = setup([Rule::new("r", quota).unwrap()]);
    limiter.acquire("x").await.unwrap();
    for (at, seq, cost) in [(u64::MAX, 0, 0), (1_000_000_000_001, 0, 0), (1, 0, 5), (1_000_000_000_000, 7, 5)]
    {
        let entry = Entry { at: Micros::new(at), seq, cost };
        let forged = Settlement { key: Key::new("r", []), entry, correction: Correction::Cost(1_000) };
        let receipt = limiter.store().settle(&[forged]).await.unwrap();
        assert_eq!(receipt.settled, [Settled::Gone], "{entry:?}");
    }
    assert_eq!(limiter.peek("x").await.unwrap().limits().next().unwrap().used(), 1);
}
