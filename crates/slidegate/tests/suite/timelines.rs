//! Tests the timelines of the source documents, exact to the permit.

use std::time::Duration;

use slidegate::{
    Algorithm, Count, Limiter, ManualClock, MemoryStore, Micros, Quota, Request, Rules, algorithm::State,
};

const GUARD: &str = "
rules:
  - { name: login-per-ip, match: { api: /login }, key: [ip], limit: 3, window: 5s, count: attempts, code: 10007 }
  - { name: login-per-user, match: { api: /login }, key: [user], limit: 5, window: 60s, count: attempts, code: 10008 }
";

/// Acquires a permit at each of these milliseconds. Returns true for each that was allowed.
fn at(quota: Quota, instants: &[u64]) -> Vec<bool> {
    let mut state = State::new(&quota);
    let admit = |ms: &u64| !state.admit(Micros::from_millis(*ms), &quota, 1).outcome.denies();
    instants.iter().map(admit).collect()
}

/// Document 004, by address: three in five seconds. Denied attempts count, so F and G are denied.
#[test]
fn ip_timeline() {
    let quota = Quota::new(3, Duration::from_secs(5)).unwrap().with_count(Count::Attempts);
    //                      A    B      C      D      E      F      G
    let events = at(quota, &[0, 2_000, 3_000, 4_000, 5_100, 6_000, 6_500]);
    assert_eq!(events, [true, true, true, false, false, false, false]);
    // If only admissions count, A has left the window at 5.1 s.
    let events = at(quota.with_count(Count::Admitted), &[0, 2_000, 3_000, 4_000, 5_100, 6_000, 6_500]);
    assert_eq!(events, [true, true, true, false, true, false, false]);
}

/// Document 004, by user: five in sixty seconds.
#[test]
fn user_timeline() {
    let quota = Quota::new(5, Duration::from_secs(60)).unwrap();
    let events = at(quota, &[0, 2_000, 4_000, 6_000, 8_000, 9_000, 60_000]);
    assert_eq!(events, [true, true, true, true, true, false, true]);
}

/// Document 004: an address over its limit does not change the user's count.
#[tokio::test]
async fn guard_of_ip_and_user() {
    let clock = ManualClock::at(Micros::from_secs(1_000_000));
    let limiter = Limiter::new(MemoryStore::with_clock(clock.clone(), 100), Rules::from_yaml(GUARD).unwrap());
    let login = async |ip: &str, user: &str| {
        let request = Request::new([("api", "/login"), ("ip", ip), ("user", user)]);
        let decision = limiter.acquire(request).await.unwrap();
        let used: Vec<u64> = decision.limits().map(|limit| limit.used()).collect();
        (decision.code(), used)
    };
    assert_eq!(login("1.2.3.4", "alice").await, (0, vec![1, 1]));
    assert_eq!(login("1.2.3.4", "alice").await, (0, vec![2, 2]));
    assert_eq!(login("1.2.3.4", "alice").await, (0, vec![3, 3]));
    assert_eq!(login("1.2.3.4", "alice").await, (10007, vec![3, 3]), "the user's count stays");
    assert_eq!(login("1.2.3.5", "alice").await, (0, vec![1, 4]));
    assert_eq!(login("1.2.3.5", "alice").await, (0, vec![2, 5]));
    assert_eq!(
        login("1.2.3.5", "alice").await,
        (10008, vec![3, 5]),
        "the rule by address denies and counts the attempt"
    );
    // Without an address there is no check by address.
    let decision = limiter.acquire(Request::new([("api", "/login"), ("user", "bob")])).await.unwrap();
    assert_eq!(decision.limits().count(), 1);
}

/// Document 002, problem 1: "100 a second" lets 200 through in 0.02 s at the boundary of a fixed window; the exact
/// window and the time slices admit 100.
#[test]
fn boundary_burst() {
    let passed = |algorithm| {
        let quota = Quota::per_second(100).unwrap().with_algorithm(algorithm).unwrap();
        let mut state = State::new(&quota);
        let burst = |ms: u64, state: &mut State| {
            (0..100).filter(|_| !state.admit(Micros::from_millis(ms), &quota, 1).outcome.denies()).count()
        };
        burst(990, &mut state) + burst(1_010, &mut state)
    };
    assert_eq!(passed(Algorithm::FixedWindow), 200);
    assert_eq!(passed(Algorithm::SlidingWindow), 100);
    assert_eq!(passed(Algorithm::SlidingCounter), 101, "the first hundred weigh 99 by then");
    assert_eq!(passed(Algorithm::TimeSlice { slices: 10 }), 100);
    assert_eq!(passed(Algorithm::TokenBucket { burst: 100 }), 102, "the bucket has refilled two by then");
}

/// The window is half-open: what was admitted at `t` stops counting at exactly `t + window`.
#[test]
fn entry_leaves_after_exactly_one_window() {
    let quota = Quota::per_second(1).unwrap();
    let mut state = State::new(&quota);
    let mut admit = |micros| !state.admit(Micros::new(micros), &quota, 1).outcome.denies();
    assert!(admit(1_000_000));
    assert!(!admit(1_999_999));
    assert!(admit(2_000_000));
}

/// A log that exists for years stores its times relative to a base. When the base moves, no entry is lost.
#[test]
fn log_rebases_time_without_loss() {
    let day = 86_400_000_000u64;
    let quota = Quota::new(1_000, Duration::from_secs(366 * 86_400)).unwrap();
    let mut state = State::new(&quota);
    let mut instants = vec![0, 300 * day, 600 * day, (1 << 46) - 11, (1 << 46) + 99];
    instants.extend((1..40).map(|n| (1 << 46) + n * 50 * day));
    for (i, &now) in instants.iter().enumerate() {
        let verdict = state.admit(Micros::new(now), &quota, 1);
        let in_window = instants[..=i].iter().filter(|&&at| at + 366 * day > now).count();
        assert_eq!(verdict.used, in_window as u64, "at {now}");
    }
}
