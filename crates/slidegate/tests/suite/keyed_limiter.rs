//! Tests of `KeyedLimiter`: its decisions are those of the reference model, and it drops the keys that count nothing any more.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use slidegate::store::{Entry, Outcome};
use slidegate::{Algorithm, Allowed, Count, Denied, KeyedLimiter, ManualClock, Micros, Quota, Settled};

use crate::reference_model::{self, ReferenceCheck, ReferenceModel};

const CASES: u32 = 300;
const OPERATIONS: usize = 300;
const KEYS: u8 = 5;

#[derive(Clone, Debug)]
enum Operation {
    Check { key: u8, permits: u64, peek: bool },
    Settle { which: usize, to: u64 },
    Advance(u64),
    RetainRecent,
}

fn operation() -> impl Strategy<Value = Operation> {
    let permits = prop_oneof![6 => 1..3u64, 2 => 0..12u64];
    prop_oneof![
        8 => (0..KEYS, permits, prop::bool::weighted(0.1))
            .prop_map(|(key, permits, peek)| Operation::Check { key, permits, peek }),
        3 => (0..40usize, prop_oneof![3 => Just(0), 2 => 0..15u64])
            .prop_map(|(which, to)| Operation::Settle { which, to }),
        4 => prop_oneof![0..4u64, 0..120u64, 0..2_500u64].prop_map(Operation::Advance),
        1 => Just(Operation::RetainRecent),
    ]
}

fn assert_agrees_with_model(quota: Quota) {
    let operations = prop::collection::vec(operation(), OPERATIONS);
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    runner
        .run(&operations, |operations| {
            let clock = ManualClock::at(Micros::from_secs(1_000_000));
            let limiter: KeyedLimiter<u8, _> = KeyedLimiter::with_clock(quota, clock.clone());
            let mut models = vec![ReferenceModel::new(quota); usize::from(KEYS)];
            let mut admissions: Vec<(u8, Allowed, Entry)> = Vec::new();
            let mut now = 1_000_000_000_000;
            for operation in operations {
                match operation {
                    Operation::Advance(step) => {
                        now += step;
                        clock.set(Micros::new(now));
                    }
                    Operation::RetainRecent => limiter.retain_recent(),
                    Operation::Check { key, permits, peek } => {
                        let checks =
                            [ReferenceCheck { key: usize::from(key), quota, cost: permits, enforced: true }];
                        let expected =
                            reference_model::evaluate(&mut models, Micros::new(now), &checks, None, peek)
                                .remove(0);
                        let actual =
                            if peek { limiter.peek(&key, permits) } else { limiter.check_n(&key, permits) };
                        match actual {
                            Ok(allowed) => {
                                prop_assert!(matches!(expected.outcome, Outcome::Charged | Outcome::Fits));
                                prop_assert_eq!(allowed.used(), expected.used);
                                let remaining = quota.capacity().saturating_sub(expected.used);
                                prop_assert_eq!(allowed.remaining(), remaining);
                                if let Some(entry) = expected.entry {
                                    admissions.push((key, allowed, entry));
                                } else {
                                    prop_assert_eq!(limiter.settle(&key, &allowed, 0), Settled::Gone);
                                }
                            }
                            Err(denied) => {
                                prop_assert!(expected.outcome.denies());
                                prop_assert_eq!(denied.used(), expected.used);
                                prop_assert_eq!(denied.retry_after().get(), expected.retry_after);
                                let permanent = expected.outcome == Outcome::Impossible;
                                prop_assert_eq!(denied.is_permanent(), permanent);
                            }
                        }
                    }
                    Operation::Settle { which, to } => {
                        if admissions.is_empty() {
                            continue;
                        }
                        let (key, allowed, entry) = admissions[which % admissions.len()];
                        let expected = models[usize::from(key)].settle(now, entry, to);
                        prop_assert_eq!(limiter.settle(&key, &allowed, to), expected);
                    }
                }
            }
            Ok(())
        })
        .unwrap();
}

fn quota(algorithm: Algorithm) -> Quota {
    Quota::new(5, Duration::from_micros(1_000)).unwrap().with_algorithm(algorithm).unwrap()
}

#[test]
fn sliding_window_agrees_with_the_reference_model() {
    assert_agrees_with_model(quota(Algorithm::SlidingWindow));
}

#[test]
fn attempts_agree_with_the_reference_model() {
    assert_agrees_with_model(quota(Algorithm::SlidingWindow).with_count(Count::Attempts));
}

#[test]
fn fixed_window_agrees_with_the_reference_model() {
    assert_agrees_with_model(quota(Algorithm::FixedWindow));
}

#[test]
fn time_slice_agrees_with_the_reference_model() {
    assert_agrees_with_model(quota(Algorithm::TimeSlice { slices: 4 }));
}

#[test]
fn sliding_counter_agrees_with_the_reference_model() {
    assert_agrees_with_model(quota(Algorithm::SlidingCounter));
}

#[test]
fn token_bucket_agrees_with_the_reference_model() {
    assert_agrees_with_model(quota(Algorithm::TokenBucket { burst: 7 }));
}

#[test]
fn threads_admit_exactly_the_limit() {
    let limiter: KeyedLimiter<&str> = KeyedLimiter::new(Quota::per_hour(10_000).unwrap());
    let admitted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| (0..5_000).filter(|_| limiter.check(&"one key").is_ok()).count()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(admitted, 10_000);
}

#[test]
fn takes_borrowed_keys_of_many_types() {
    let quota = Quota::per_hour(1).unwrap();
    let texts: KeyedLimiter<String> = KeyedLimiter::new(quota);
    assert!(texts.check("alice").is_ok() && texts.check(&"alice".to_owned()).is_err());
    let numbers: KeyedLimiter<u64> = KeyedLimiter::new(quota);
    assert!(numbers.check(&7).is_ok() && numbers.check(&7).is_err());
    let shared: KeyedLimiter<Arc<str>> = KeyedLimiter::new(quota);
    let key: Arc<str> = "alice".into();
    assert!(shared.check(&key).is_ok() && shared.check(&Arc::from("alice")).is_err());
    let pairs: KeyedLimiter<(u32, String)> = KeyedLimiter::new(quota);
    assert!(pairs.check(&(1, "a".to_owned())).is_ok() && pairs.check(&(2, "a".to_owned())).is_ok());
    assert_eq!((texts.len(), pairs.len()), (1, 2));
}

#[test]
fn drops_idle_keys_before_it_grows() {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let limiter: KeyedLimiter<u32, _> =
        KeyedLimiter::with_clock(Quota::per_second(1).unwrap(), clock.clone());
    for round in 0..50 {
        for key in 0..1_000 {
            limiter.check(&(round * 1_000 + key)).unwrap();
        }
        clock.advance(Micros::from_secs(1));
    }
    // 50,000 keys came by, at most 1,000 of them in one window.
    assert!(limiter.len() < 8_000, "{} keys", limiter.len());
    limiter.retain_recent();
    assert!(limiter.is_empty());
}

#[test]
fn keeps_keys_that_still_count() {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let limiter: KeyedLimiter<u32, _> = KeyedLimiter::with_clock(Quota::per_hour(1).unwrap(), clock.clone());
    for key in 0..20_000 {
        limiter.check(&key).unwrap();
    }
    limiter.retain_recent();
    assert_eq!(limiter.len(), 20_000);
    assert!((0..20_000).all(|key| limiter.check(&key).is_err()));
}

#[test]
fn clock_that_steps_back_admits_no_more() {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let limiter: KeyedLimiter<u8, _> = KeyedLimiter::with_clock(Quota::per_second(1).unwrap(), clock.clone());
    limiter.check(&1).unwrap();
    clock.advance(Micros::from_secs(1));
    limiter.retain_recent();
    assert!(limiter.is_empty());
    // Back to the instant of the first admission, which was dropped: time stands still where it was dropped.
    clock.set(Micros::from_secs(1_000));
    limiter.check(&1).unwrap();
    clock.set(Micros::new(1_001_999_999));
    assert_eq!(limiter.check(&1).unwrap_err().retry_after(), Micros::new(1));
    clock.set(Micros::from_secs(1_002));
    limiter.check(&1).unwrap();
}

#[test]
fn settlement_of_a_dropped_key_does_not_touch_its_successor() {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let limiter: KeyedLimiter<u8, _> = KeyedLimiter::with_clock(Quota::per_second(1).unwrap(), clock.clone());
    let old = limiter.check(&1).unwrap();
    clock.advance(Micros::from_secs(1));
    limiter.retain_recent();
    let new = limiter.check(&1).unwrap();
    assert_eq!(limiter.settle(&1, &old, 0), Settled::Gone);
    assert!(limiter.check(&1).is_err());
    assert_eq!(limiter.settle(&1, &new, 0), Settled::Done);
    assert_eq!(limiter.settle(&1, &new, 0), Settled::Already);
    assert!(limiter.check(&1).is_ok());
}

#[tokio::test]
async fn waits_until_permits_are_free() {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let quota = Quota::per_second(2).unwrap();
    let limiter: Arc<KeyedLimiter<u8, _>> = Arc::new(KeyedLimiter::with_clock(quota, clock.clone()));
    limiter.check_n(&1, 2).unwrap();
    let waiting = tokio::spawn({
        let limiter = Arc::clone(&limiter);
        async move { limiter.until_ready(&1, 1).await }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    clock.advance(Micros::from_secs(1));
    assert_eq!(waiting.await.unwrap().unwrap().used(), 1);

    let never: Denied = limiter.until_ready(&1, 3).await.unwrap_err();
    assert!(never.is_permanent());
    assert_eq!(never.to_string(), "denied: the request asks for more permits than the limit of 2");
    let denied = limiter.check_n(&1, 2).unwrap_err();
    assert_eq!(denied.to_string(), "denied: 1 of 2 permits in use, retry in 1s");
    assert_eq!((denied.used(), denied.remaining()), (1, 1));
}
