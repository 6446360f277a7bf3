//! Tests that random operations on each algorithm agree with the reference model.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use slidegate::{
    Algorithm, Count, Key, Micros, Quota, RequestId, Settled,
    algorithm::{State, States, evaluate},
    store::{Check, Checks, Correction, Entry, Outcome},
};

use crate::reference_model::{self, ReferenceCheck, ReferenceModel};

const CASES: u32 = 600;
const OPERATIONS: usize = 400;

#[derive(Clone, Debug)]
enum Operation {
    Advance(u64),
    StepBack(u64),
    Checks { checks: Vec<(usize, u64, bool)>, id: Option<u8>, peek: bool },
    Settle { which: usize, to: u64 },
    Extend { which: usize },
    Limit { key: usize, limit: u64, burst: u64 },
}

fn operation() -> impl Strategy<Value = Operation> {
    let check = (
        0..3usize,
        prop_oneof![6 => 1..3u64, 2 => 0..12u64, 1 => 60_000..140_000u64],
        prop::bool::weighted(0.9),
    );
    let request =
        (prop::collection::vec(check, 1..4), prop::option::weighted(0.3, 0..12u8), prop::bool::weighted(0.1));
    prop_oneof![
        8 => request.prop_map(|(checks, id, peek)| Operation::Checks { checks, id, peek }),
        4 => prop_oneof![0..4u64, 0..120u64, 0..2_500u64].prop_map(Operation::Advance),
        1 => (0..400u64).prop_map(Operation::StepBack),
        3 => (0..40usize, prop_oneof![3 => Just(0), 2 => 0..15u64, 1 => 0..200_000u64])
            .prop_map(|(which, to)| Operation::Settle { which, to }),
        1 => (0..40usize).prop_map(|which| Operation::Extend { which }),
        1 => (0..3usize, 1..14u64, 1..14u64).prop_map(|(key, limit, burst)| Operation::Limit { key, limit, burst }),
    ]
}

/// Three keys: one small, one that counts attempts, one with a limit of many digits.
fn quotas(algorithm: impl Fn(u64) -> Algorithm) -> [Quota; 3] {
    let quota = |limit, micros| {
        let quota = Quota::new(limit, Duration::from_micros(micros)).unwrap();
        quota.with_algorithm(algorithm(limit)).unwrap()
    };
    [quota(5, 1_000), quota(4, 1_500).with_count(Count::Attempts), quota(150_000, 2_003)]
}

fn changed(quota: Quota, limit: u64, burst: u64) -> Quota {
    let algorithm = match quota.algorithm() {
        Algorithm::TokenBucket { .. } => Algorithm::TokenBucket { burst },
        other => other,
    };
    let new = Quota::new(limit, quota.window().into()).unwrap().with_algorithm(algorithm).unwrap();
    new.with_count(quota.count())
}

struct StateSlice<'a> {
    states: &'a mut [State],
    keys: Vec<usize>,
}

impl States for StateSlice<'_> {
    fn state(&mut self, i: usize) -> &mut State {
        &mut self.states[self.keys[i]]
    }
}

/// A charge that may be settled.
struct Charge {
    key: usize,
    entry: Entry,
}

fn run(mut quotas: [Quota; 3], operations: &[Operation], counted: &AtomicU64) -> Result<(), TestCaseError> {
    let mut states: Vec<State> = quotas.iter().map(State::new).collect();
    let mut models: Vec<ReferenceModel> = quotas.iter().map(|quota| ReferenceModel::new(*quota)).collect();
    let mut charges: Vec<Charge> = Vec::new();
    let mut now = 1_000_000;
    let mut stepped = false;
    for operation in operations {
        counted.fetch_add(1, Ordering::Relaxed);
        match operation {
            Operation::Advance(step) => now += step,
            Operation::StepBack(step) => {
                now -= step;
                stepped = true;
            }
            Operation::Limit { key, limit, burst } => quotas[*key] = changed(quotas[*key], *limit, *burst),
            Operation::Settle { which, to } => {
                if charges.is_empty() {
                    continue;
                }
                let Charge { key, entry } = charges[charges.len() - 1 - which % charges.len()];
                let actual = states[key].settle(Micros::new(now), entry, *to);
                let expected = models[key].settle(now, entry, *to);
                // After the clock was set back, an expired entry may be reported as settled or as gone.
                let comparable =
                    |settled| if stepped && settled == Settled::Already { Settled::Gone } else { settled };
                prop_assert_eq!(comparable(actual), comparable(expected));
                prop_assert_eq!(states[key].used(), models[key].used());
            }
            Operation::Extend { which } => {
                if charges.is_empty() {
                    continue;
                }
                let Charge { key, entry } = charges[charges.len() - 1 - which % charges.len()];
                let actual = states[key].correct(Micros::new(now), entry, Correction::Extend);
                let expected = models[key].extend(now, entry);
                let comparable =
                    |settled| if stepped && settled == Settled::Already { Settled::Gone } else { settled };
                prop_assert_eq!(comparable(actual), comparable(expected));
                prop_assert_eq!(states[key].used(), models[key].used());
            }
            Operation::Checks { checks, id, peek } => {
                let mut checks = checks.clone();
                checks.sort_by_key(|(key, _, _)| *key);
                checks.dedup_by_key(|(key, _, _)| *key);
                let reference_checks: Vec<ReferenceCheck> = checks
                    .iter()
                    .map(|&(key, cost, enforced)| ReferenceCheck { key, quota: quotas[key], cost, enforced })
                    .collect();
                let library_checks = Checks::new(reference_checks.iter().map(|check| {
                    let name = check.key.to_string();
                    let key = Key::new("k", [("n", name.as_str())]);
                    Check { enforced: check.enforced, ..Check::new(key, check.quota, check.cost) }
                }));
                let mut library_checks = library_checks.unwrap();
                if let Some(id) = id {
                    library_checks = library_checks.with_id(RequestId::new(&id.to_string()).unwrap());
                }
                if *peek {
                    library_checks = library_checks.peek();
                }
                let keys = checks.iter().map(|(key, _, _)| *key).collect();
                let verdicts = evaluate(
                    &library_checks,
                    Micros::new(now),
                    &mut StateSlice { states: &mut states, keys },
                );
                let expected =
                    reference_model::evaluate(&mut models, Micros::new(now), &reference_checks, *id, *peek);
                for ((check, verdict), expected) in
                    reference_checks.iter().zip(&verdicts.verdicts).zip(expected)
                {
                    let actual = reference_model::ReferenceVerdict {
                        now: expected.now,
                        outcome: verdict.outcome,
                        used: verdict.used,
                        retry_after: verdict.retry_after.get(),
                        reset_after: verdict.reset_after.get(),
                        entry: (verdict.outcome == Outcome::Charged).then_some(verdict.entry),
                    };
                    prop_assert_eq!(&actual, &expected, "check of key {}", check.key);
                    if verdict.outcome != Outcome::Impossible {
                        retry_is_exact(&states[check.key], &check.quota, check.cost, &actual)?;
                    }
                    if verdict.outcome == Outcome::Charged
                        && check.quota.count() == Count::Admitted
                        && check.cost > 0
                    {
                        charges.push(Charge { key: check.key, entry: verdict.entry });
                    }
                }
            }
        }
    }
    Ok(())
}

/// One microsecond before `retry_after` the same cost is denied; at `retry_after` it fits.
fn retry_is_exact(
    state: &State,
    quota: &Quota,
    cost: u64,
    verdict: &reference_model::ReferenceVerdict,
) -> Result<(), TestCaseError> {
    if verdict.outcome != Outcome::Denied {
        return Ok(());
    }
    prop_assert!(verdict.retry_after <= quota.horizon().get() || verdict.used > quota.capacity());
    let fits = |at: u64| {
        let quota = quota.with_count(Count::Admitted);
        !state.clone().admit(Micros::new(at), &quota, cost).outcome.denies()
    };
    if verdict.retry_after > 0 {
        prop_assert!(!fits(verdict.now + verdict.retry_after - 1), "fits before retry_after");
        prop_assert!(fits(verdict.now + verdict.retry_after), "does not fit after retry_after");
    }
    Ok(())
}

fn agrees(name: &str, algorithm: impl Fn(u64) -> Algorithm) {
    let counted = AtomicU64::new(0);
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let operations = prop::collection::vec(operation(), 1..=2 * OPERATIONS);
    let result = runner.run(&operations, |operations| run(quotas(&algorithm), &operations, &counted));
    if let Err(error) = result {
        panic!("{name}: {error}");
    }
    let counted = counted.into_inner();
    eprintln!("{name}: {counted} operations agree with the definition");
    assert!(counted >= 200_000);
}

/// Uses the answers alone, without a model: no interval of a window's length holds more admitted and not refunded permits
/// than the limit.
#[test]
fn answers_never_exceed_the_limit_in_any_window() {
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let step = (
        prop_oneof![0..3u64, 0..200u64, 0..90_000u64],
        1..5u64,
        prop::bool::weighted(0.2),
        prop::option::of(0..4u8),
    );
    let steps = prop::collection::vec(step, 1..500);
    let (total, full) = (AtomicU64::new(0), AtomicU64::new(0));
    let result = runner.run(&steps, |steps| {
        for (algorithm, count) in [
            (Algorithm::SlidingWindow, Count::Admitted),
            (Algorithm::SlidingWindow, Count::Attempts),
            (Algorithm::TimeSlice { slices: 5 }, Count::Admitted),
            (Algorithm::TimeSlice { slices: 5 }, Count::Attempts),
        ] {
            let quota = Quota::new(12, Duration::from_micros(200_000)).unwrap();
            let quota = quota.with_algorithm(algorithm).unwrap().with_count(count);
            let mut state = [State::new(&quota)];
            // (when, cost, sequence number) of every admission that still stands.
            let mut admitted: Vec<(u64, u64, u64)> = Vec::new();
            let mut unnamed = u64::MAX;
            let mut now = 1_000_000;
            for &(wait, cost, refund, id) in &steps {
                total.fetch_add(1, Ordering::Relaxed);
                now += wait;
                let mut checks = Checks::one(Check::new(Key::new("k", []), quota, cost)).unwrap();
                if let Some(id) = id {
                    checks = checks.with_id(RequestId::new(&id.to_string()).unwrap());
                }
                let verdicts = evaluate(
                    &checks,
                    Micros::new(now),
                    &mut StateSlice { states: &mut state, keys: vec![0] },
                );
                let verdict = verdicts.verdicts[0];
                if verdict.outcome != Outcome::Charged {
                    continue;
                }
                // Attempts have no number. An attempt with an id is identified by its id.
                let number = match (count, id) {
                    (Count::Admitted, _) => verdict.entry.seq,
                    (Count::Attempts, Some(id)) => {
                        (verdict.entry.at.get() * 1_000 + cost) * 10 + u64::from(id)
                    }
                    (Count::Attempts, None) => {
                        unnamed -= 1;
                        unnamed
                    }
                };
                // A repeated request with the same id is the same admission.
                if !admitted.iter().any(|(_, _, other)| *other == number) {
                    admitted.push((now, cost, number));
                }
                if refund
                    && count == Count::Admitted
                    && state[0].settle(Micros::new(now), verdict.entry, 0) == Settled::Done
                {
                    admitted.retain(|(_, _, seq)| *seq != verdict.entry.seq);
                }
                let standing = admitted.iter().filter(|(at, _, _)| at + 200_000 > now);
                let in_window: u64 = standing.map(|(_, cost, _)| cost).sum();
                full.fetch_add(u64::from(in_window == 12), Ordering::Relaxed);
                prop_assert!(
                    in_window <= 12,
                    "{} permits in the window at {} by {:?}",
                    in_window,
                    now,
                    algorithm
                );
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let (total, full) = (total.into_inner(), full.into_inner());
    eprintln!("never over in {total} requests, counted from the answers alone; {full} filled a window");
    assert!(total > 100_000 && full > 1_000, "{total} requests, {full} filled a window");
}

#[test]
fn sliding_window_agrees_with_reference_model() {
    agrees("sliding-window", |_| Algorithm::SlidingWindow);
}

#[test]
fn fixed_window_agrees_with_reference_model() {
    agrees("fixed-window", |_| Algorithm::FixedWindow);
}

#[test]
fn sliding_counter_agrees_with_reference_model() {
    agrees("sliding-counter", |_| Algorithm::SlidingCounter);
}

const COUNTER_WINDOW: u64 = 2_000;

fn sliding_counter(limit: u64) -> Quota {
    let quota = Quota::new(limit, Duration::from_micros(COUNTER_WINDOW)).unwrap();
    quota.with_algorithm(Algorithm::SlidingCounter).unwrap()
}

/// Most permits of a sliding counter in an interval of `length` microseconds, up to one window. The worst interval begins one
/// microsecond before the end of a window that admitted all of its limit at that instant.
fn most_in(length: u64, limit: u64) -> u64 {
    match length {
        0 | 1 => limit,
        _ => limit + limit * (length - 2) / COUNTER_WINDOW,
    }
}

/// Permits of `admitted`, as instant and cost, in the interval of `length` microseconds that ends with `now`.
fn in_interval(admitted: &[(u64, u64)], now: u64, length: u64) -> u64 {
    admitted.iter().filter(|(at, _)| at + length > now).map(|(_, cost)| cost).sum()
}

/// Uses the answers alone: no aligned window holds more than the limit, and no interval more than `most_in`.
#[test]
fn sliding_counter_stays_within_its_bounds() {
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let step = (prop_oneof![0..3u64, 0..200u64, 0..5_000u64], 1..5u64);
    let steps = (1..20u64, prop::collection::vec(step, 1..400));
    let (over, full) = (AtomicU64::new(0), AtomicU64::new(0));
    let result = runner.run(&steps, |(limit, steps)| {
        let quota = sliding_counter(limit);
        let mut state = State::new(&quota);
        let (mut admitted, mut now) = (Vec::new(), 1_000_000);
        for (wait, cost) in steps {
            now += wait;
            if state.admit(Micros::new(now), &quota, cost).outcome != Outcome::Charged {
                continue;
            }
            admitted.push((now, cost));
            let aligned = in_interval(&admitted, now, now % COUNTER_WINDOW + 1);
            prop_assert!(aligned <= limit, "{aligned} in the window at {now}");
            full.fetch_add(u64::from(aligned == limit), Ordering::Relaxed);
            for length in [1, 2, 3, 20, 500, 1_000, 1_999, COUNTER_WINDOW] {
                let passed = in_interval(&admitted, now, length);
                prop_assert!(passed <= most_in(length, limit), "{passed} in {length} us at {now}");
                over.fetch_add(u64::from(passed > limit), Ordering::Relaxed);
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let (over, full) = (over.into_inner(), full.into_inner());
    assert!(over > 100 && full > 100, "{over} intervals over the limit, {full} full windows");
}

/// The bounds are reached: a full limit at the last instant of a window, and then every request that fits.
#[test]
fn sliding_counter_reaches_its_bounds() {
    for limit in [1, 7, 100, 3_000] {
        let quota = sliding_counter(limit);
        for length in [1, 2, 20, 1_000, 1_999, COUNTER_WINDOW] {
            let mut state = State::new(&quota);
            let begin = 1_000 * COUNTER_WINDOW - 1;
            let fits = |state: &mut State, at: u64| {
                let room = limit - state.admit(Micros::new(at), &quota, 0).used.min(limit);
                let admitted =
                    room > 0 && state.admit(Micros::new(at), &quota, room).outcome == Outcome::Charged;
                if admitted { room } else { 0 }
            };
            let passed: u64 = (begin..begin + length).map(|at| fits(&mut state, at)).sum();
            assert_eq!(passed, most_in(length, limit), "limit {limit}, {length} us");
        }
        assert!(most_in(COUNTER_WINDOW, limit) < 2 * limit);
    }
}

/// Traffic that is spread evenly is counted almost as the exact window counts it: the rounding makes two permits at most.
#[test]
fn sliding_counter_is_close_for_even_traffic() {
    let counter = sliding_counter(200);
    let exact = counter.with_algorithm(Algorithm::SlidingWindow).unwrap();
    let mut states = [(State::new(&counter), counter), (State::new(&exact), exact)];
    // 180 in each window.
    for n in 0..2_000u64 {
        let now = Micros::new(1_000_000 + n * COUNTER_WINDOW / 180);
        let used = states.each_mut().map(|(state, quota)| state.admit(now, quota, 1).used);
        assert!(n < 400 || (used[1]..=used[1] + 2).contains(&used[0]), "{used:?}");
    }
}

/// Products beyond 64 bits: the largest limit over the longest window.
#[test]
fn sliding_counter_does_not_overflow() {
    let quota = Quota::new(slidegate::bounds::MAX_LIMIT, slidegate::bounds::MAX_WINDOW.into()).unwrap();
    let quota = quota.with_algorithm(Algorithm::SlidingCounter).unwrap();
    let (mut state, window) = (State::new(&quota), slidegate::bounds::MAX_WINDOW.get());
    assert_eq!(
        state.admit(Micros::new(2 * window - 1), &quota, slidegate::bounds::MAX_LIMIT).outcome,
        Outcome::Charged
    );
    let denied = state.admit(Micros::new(2 * window + window / 4), &quota, slidegate::bounds::MAX_LIMIT / 2);
    assert_eq!(denied.used, slidegate::bounds::MAX_LIMIT / 4 * 3);
    assert_eq!(denied.retry_after.get(), window / 4);
}

#[test]
fn time_slice_agrees_with_reference_model() {
    agrees("time-slice", |_| Algorithm::TimeSlice { slices: 7 });
}

#[test]
fn concurrency_agrees_with_reference_model() {
    agrees("concurrency", |_| Algorithm::Concurrency);
}

#[test]
fn token_bucket_agrees_with_reference_model() {
    agrees("token-bucket", |limit| Algorithm::TokenBucket { burst: limit });
}
