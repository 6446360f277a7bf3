//! Tests reservations as text: a limiter settles only text that is signed with its key. It also tests the bounds of
//! settlements in memory.

use std::time::Duration;

use slidegate::{
    Algorithm, Count, Key, Limiter, ManualClock, MemoryStore, Micros, Quota, Request, RequestId,
    ReservationKey, ReservationKeys, Rule, Rules, Settled, Store,
    algorithm::State,
    store::{Check, Checks, Correction, Entry, Settlement},
};

const MESSAGE: &str = "invalid reservation: send it exactly as it was received";

fn limiter() -> Limiter {
    let per_key = Quota::per_minute(10).unwrap();
    let rules = [
        Rule::new("all", Quota::per_minute(1_000).unwrap()).unwrap(),
        Rule::new("per-user", per_key).unwrap().per(["user"]).unwrap(),
    ];
    Limiter::new(MemoryStore::new(), Rules::new(rules).unwrap())
}

fn key(secret: &str) -> ReservationKey {
    ReservationKey::new(secret.as_bytes()).unwrap()
}

fn alice() -> Request<'static> {
    Request::new([("user", "alice")])
}

async fn used<S: Store>(limiter: &Limiter<S>) -> Vec<u64> {
    limiter.peek(alice()).await.unwrap().limits().map(|limit| limit.used()).collect()
}

#[tokio::test]
async fn unsigned_text_is_rejected() {
    let limiter = limiter();
    let decision = limiter.acquire(alice().permits(3)).await.unwrap();
    let text = limiter.sign_decision(&decision).unwrap();
    assert_eq!(text, limiter.sign(&decision.reservation().unwrap()), "both functions write the same text");
    let unsigned = &text[..text.len() - 33];
    assert!(unsigned.ends_with(".3.19.per-user:user=alice"), "{unsigned}");
    let altered = [
        unsigned.to_owned(),
        // Changes: another cost, another key, another number, one charge removed, one charge doubled.
        text.replacen(".3.3.all", ".9.3.all", 1),
        text.replace("user=alice", "user=bobby"),
        text.replacen(".0.", ".1.", 1),
        text[text.find("all").unwrap() + 3..].to_owned(),
        format!("{unsigned}{text}"),
        text.to_uppercase(),
        format!("{text} "),
        format!("h{text}"),
        String::new(),
    ];
    for altered in altered {
        assert_ne!(altered, text);
        assert_eq!(limiter.verify(&altered).unwrap_err().to_string(), MESSAGE, "{altered}");
    }
    assert_eq!(used(&limiter).await, [3, 3]);
    assert_eq!(limiter.settle(&limiter.verify(&text).unwrap(), 0).await.unwrap(), Settled::Done);
    assert_eq!(used(&limiter).await, [0, 0]);
}

#[tokio::test]
async fn limiter_accepts_only_its_own_keys() {
    let (limiter, other) = (limiter(), limiter());
    let decision = limiter.acquire(alice()).await.unwrap();
    // Without configured keys, all limiters of a process share one key.
    assert!(other.verify(&limiter.sign_decision(&decision).unwrap()).is_ok());
    limiter.set_reservation_keys(key("the old key of one deployment"));
    other.set_reservation_keys(key("the key of another deployment"));
    let old = limiter.sign_decision(&decision).unwrap();
    assert_eq!(other.verify(&old).unwrap_err().to_string(), MESSAGE);
    // A key is replaced in two steps: all nodes accept both keys, then the old key is removed.
    let both = [key("the new key of one deployment"), key("the old key of one deployment")];
    limiter.set_reservation_keys(ReservationKeys::new(both).unwrap());
    let new = limiter.sign_decision(&decision).unwrap();
    assert_ne!(old, new);
    assert!(limiter.verify(&old).is_ok() && limiter.verify(&new).is_ok());
    limiter.set_reservation_keys(key("the new key of one deployment"));
    assert!(limiter.verify(&old).is_err() && limiter.verify(&new).is_ok());
}

#[tokio::test]
async fn settling_an_attempt_returns_gone() {
    let store = MemoryStore::new();
    let key = Key::new("guard", [("ip", "1.2.3.4")]);
    let quotas = [Algorithm::SlidingWindow, Algorithm::FixedWindow, Algorithm::TokenBucket { burst: 3 }];
    for algorithm in quotas {
        store.reset(&key).await.unwrap();
        let quota =
            Quota::per_hour(3).unwrap().with_algorithm(algorithm).unwrap().with_count(Count::Attempts);
        for id in [None, Some("a"), Some("a")] {
            let checks = Checks::one(Check::new(key.clone(), quota, 1)).unwrap();
            let checks = match id {
                Some(id) => checks.with_id(RequestId::new(id).unwrap()),
                None => checks,
            };
            let verdict = store.admit(&[checks]).await.unwrap()[0].verdicts[0];
            for correction in [Correction::Cost(0), Correction::Cost(9), Correction::Extend] {
                let settlement = Settlement { key: key.clone(), entry: verdict.entry, correction };
                let settled = store.settle(&[settlement]).await.unwrap().settled;
                assert_eq!(settled, [Settled::Gone], "{algorithm:?}");
            }
        }
        assert_eq!(store.inspect(&key).await.unwrap().unwrap().used, 2, "{algorithm:?}");
    }
}

fn bucket(burst: u64) -> Quota {
    let quota = Quota::new(10, Duration::from_secs(10)).unwrap();
    quota.with_algorithm(Algorithm::TokenBucket { burst }).unwrap()
}

#[tokio::test]
async fn bucket_debt_is_at_most_one_capacity() {
    let clock = ManualClock::at(Micros::from_secs(1_000_000));
    let store = MemoryStore::with_clock(clock.clone(), 100);
    let rule = Rule::new("bucket", bucket(20)).unwrap();
    let limiter = Limiter::new(store, Rules::new([rule]).unwrap());
    let reservation = limiter.acquire("x").await.unwrap().reservation().unwrap();
    let other = limiter.acquire("x").await.unwrap().reservation().unwrap();
    assert_eq!(limiter.settle(&reservation, 1_000_000_000_000).await.unwrap(), Settled::Done);
    let denied = limiter.acquire("x").await.unwrap();
    // 20 permits are owed: the next is there after 21 s, all of them after 40 s.
    assert_eq!(denied.retry_after(), Micros::from_secs(21));
    assert_eq!(denied.limits().next().unwrap().reset_after(), Micros::from_secs(40));
    // Another settlement cannot increase the debt, and neither can a repeated settlement.
    assert_eq!(limiter.settle(&other, 1_000).await.unwrap(), Settled::Done);
    assert_eq!(limiter.settle(&reservation, 1_000).await.unwrap(), Settled::Already);
    assert_eq!(limiter.acquire("x").await.unwrap().retry_after(), Micros::from_secs(21));
    clock.advance(Micros::from_secs(21));
    assert!(limiter.acquire("x").await.unwrap().allowed());
    assert!(!limiter.acquire("x").await.unwrap().allowed());
}

#[test]
fn smaller_bucket_has_smaller_debt() {
    let (large, small) = (bucket(1_000), bucket(5));
    let mut state = State::new(&large);
    let at = Micros::from_secs;
    let entry = state.admit(at(1_000_000), &large, 1).entry;
    assert_eq!(state.settle(at(1_000_000), entry, 5_000), Settled::Done);
    assert_eq!(state.used(), 2_000);
    let denied = state.admit(at(1_000_000), &small, 1);
    assert_eq!((denied.used, denied.retry_after, denied.reset_after), (10, at(6), at(10)));
}

/// Windows need no cap on debt: every settlement leaves with its window.
#[test]
fn window_ends_on_time_after_any_settlement() {
    let window = Quota::new(10, Duration::from_secs(10)).unwrap();
    let algorithms = [
        Algorithm::SlidingWindow,
        Algorithm::FixedWindow,
        Algorithm::SlidingCounter,
        Algorithm::TimeSlice { slices: 10 },
        Algorithm::Concurrency,
    ];
    for algorithm in algorithms {
        let quota = window.with_algorithm(algorithm).unwrap();
        let mut state = State::new(&quota);
        let now = Micros::from_secs(1_000_000);
        let entry: Entry = state.admit(now, &quota, 1).entry;
        assert_eq!(state.settle(now, entry, 1_000_000_000_000), Settled::Done);
        let denied = state.admit(now, &quota, 1);
        assert!(denied.retry_after <= quota.horizon(), "{algorithm:?}: {:?}", denied.retry_after);
        assert!(denied.reset_after <= quota.horizon(), "{algorithm:?}");
    }
}
