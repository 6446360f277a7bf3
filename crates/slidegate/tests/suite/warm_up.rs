//! Tests limits that climb after a cold start: the curve is exact to the permit, on every store and node.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use slidegate::{
    Algorithm, Count, Encoding, Key, Limiter, ManualClock, MemoryStore, Micros, Quota, Request, Rules,
    Source, Store, WarmUp,
    algorithm::State,
    redis::{RedisMode, RedisOptions, RedisStore},
    store::{Check, Checks, DenyCache, Outcome},
};
use slidegate_testkit::{FakeTime, Flavour, RedisServer, until, within_limit};

use crate::conformance::Rng;
use crate::oracle::Oracle;

/// Document 002: 20, 50, 80, then 100 in a second. Requests arrive every millisecond, and admissions are counted by
/// second.
#[tokio::test]
async fn climbs_as_in_the_documents() {
    for algorithm in ["sliding-window", "fixed-window"] {
        let clock = ManualClock::at(Micros::from_secs(1_000));
        let rules = format!(
            "rules: [{{ name: orders, limit: 100, window: 1s, algorithm: {algorithm}, \
             warm-up: {{ from: 20%, over: 4s, idle: 60s, shape: steps }} }}]"
        );
        let limiter =
            Limiter::new(MemoryStore::with_clock(clock.clone(), 10), Rules::from_yaml(&rules).unwrap());
        let second = async || {
            let mut admitted = 0;
            for _ in 0..1_000 {
                let decision = limiter.acquire(Request::new([])).await.unwrap();
                admitted += u64::from(decision.allowed());
                clock.advance(Micros::from_millis(1));
            }
            admitted
        };
        let mut seconds = Vec::new();
        for _ in 0..6 {
            seconds.push(second().await);
        }
        assert_eq!(seconds, [20, 50, 80, 100, 100, 100], "{algorithm}");
        // The key was not idle for long enough: its last admission was in the second before.
        clock.advance(Micros::from_millis(58_000));
        assert_eq!(second().await, 100, "{algorithm}");
        clock.advance(Micros::from_secs(61));
        let mut seconds = Vec::new();
        for _ in 0..4 {
            seconds.push(second().await);
        }
        assert_eq!(seconds, [20, 50, 80, 100], "{algorithm}, cold again");
    }
}

/// At any instant of a linear climb, the number of permits that fit is exactly the value of the line.
#[test]
fn linear_climb_is_exact_to_the_permit() {
    let warm_up = WarmUp::new(20, Duration::from_secs(30)).unwrap();
    let quota = Quota::per_second(1_000).unwrap().with_warm_up(warm_up).unwrap();
    for millis in (0..40_000u64).step_by(37) {
        let mut state = State::new(&quota);
        let start = Micros::from_secs(100);
        state.admit(start, &quota, 1);
        // The first admission starts the climb, and may still be in the window.
        let now = Micros::new(start.get() + millis * 1_000);
        let counted = u64::from(millis < 1_000);
        let fits = (0..2_000).filter(|_| state.admit(now, &quota, 1).outcome == Outcome::Charged).count();
        let share = (2_000 + 8_000 * millis.min(30_000) / 30_000).min(10_000);
        assert_eq!(fits as u64 + counted, 1_000 * share / 10_000, "after {millis} ms");
    }
}

/// A request that costs more than the current limit passes alone, up to the full limit.
#[test]
fn single_large_request_passes_while_cold() {
    let warm_up = WarmUp::new(10, Duration::from_secs(10)).unwrap();
    let quota = Quota::per_second(100).unwrap().with_warm_up(warm_up).unwrap();
    let mut state = State::new(&quota);
    let at = Micros::from_millis;
    assert_eq!(state.admit(at(5_000), &quota, 101).outcome, Outcome::Impossible);
    assert_eq!(state.admit(at(5_000), &quota, 80).outcome, Outcome::Charged);
    let denied = state.admit(at(5_100), &quota, 80);
    assert_eq!((denied.outcome, denied.limit, denied.used), (Outcome::Denied, 10, 80));
    assert_eq!(denied.retry_after, at(900));
    assert_eq!(state.admit(at(6_000), &quota, 80).outcome, Outcome::Charged);
}

/// Compares with a list of all admissions: the limit, the permits that fit, and `retry_after`.
#[test]
fn random_traffic_follows_the_curve() {
    let mut runner = TestRunner::new(Config { cases: 400, failure_persistence: None, ..Config::default() });
    let step = (
        prop_oneof![4 => 0..40u64, 2 => 0..400u64, 1 => 0..9_000u64],
        prop_oneof![5 => 1..4u64, 1 => 1..60u64],
    );
    let traffic = (prop::collection::vec(step, 1..400), 1..99u32, any::<bool>(), 1..5_000u64, 3u64..60);
    let mut decided = 0u64;
    let counter = std::cell::Cell::new(0u64);
    let result = runner.run(&traffic, |(steps, from, in_steps, over, limit)| {
        let warm_up = WarmUp::new(from, Duration::from_millis(over))
            .unwrap()
            .idle(Duration::from_millis(2_000))
            .unwrap();
        let warm_up = if in_steps { warm_up.in_steps() } else { warm_up };
        let quota = Quota::per_second(limit).unwrap().with_warm_up(warm_up).unwrap();
        let mut state = State::new(&quota);
        let (mut now, mut admitted) = (10_000_000u64, Vec::<(u64, u64)>::new());
        let (mut since, mut last) = (0u64, None::<u64>);
        for (wait, cost) in steps {
            counter.set(counter.get() + 1);
            now += wait * 1_000;
            let warm = last.is_some_and(|last| now < last + 2_000_000);
            let elapsed = if warm { now - since } else { 0 };
            let share = share(from, in_steps, elapsed, over * 1_000);
            let expected = (u128::from(limit) * share / 10_000).max(1) as u64;
            let used: u64 =
                admitted.iter().filter(|(at, _)| at + 1_000_000 > now).map(|(_, cost)| cost).sum();
            let fits = cost <= limit && (used == 0 || used + cost <= expected);
            let verdict = state.admit(Micros::new(now), &quota, cost);
            prop_assert_eq!(verdict.limit, expected);
            prop_assert_eq!(verdict.outcome == Outcome::Charged, fits);
            if fits {
                if !warm {
                    since = now;
                }
                last = Some(now);
                admitted.push((now, cost));
            } else if verdict.outcome == Outcome::Denied {
                let then = Micros::new(now + verdict.retry_after.get());
                prop_assert!(verdict.retry_after <= quota.horizon());
                prop_assert_eq!(
                    state.clone().admit(then, &quota, cost).outcome,
                    Outcome::Charged,
                    "at retry_after"
                );
            }
            let in_window: u64 =
                admitted.iter().filter(|(at, _)| at + 1_000_000 > now).map(|(_, cost)| cost).sum();
            prop_assert!(in_window <= limit, "never above the full limit");
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    decided += counter.get();
    eprintln!("{decided} decisions compared with the curve, 0 differences");
    assert!(decided > 20_000);
}

fn share(from: u32, in_steps: bool, elapsed: u64, over: u64) -> u128 {
    let start = u128::from(from) * 100;
    let rest = 10_000 - start;
    if elapsed >= over {
        return 10_000;
    }
    if !in_steps {
        return start + rest * u128::from(elapsed) / u128::from(over);
    }
    let quarter = elapsed * 4 / over;
    start + rest * [0, 3, 6, 8][quarter as usize] / 8
}

/// With counted attempts, entries may still count when the limit is cold again: `retry_after` includes that.
#[test]
fn attempts_fit_after_retry_after() {
    let warm_up = WarmUp::new(10, Duration::from_secs(2)).unwrap().idle(Duration::from_secs(1)).unwrap();
    let quota = Quota::per_second(20).unwrap().with_count(Count::Attempts).with_warm_up(warm_up).unwrap();
    let (mut rng, mut state, mut now) = (Rng::new(3), State::new(&quota), 10_000_000);
    let (mut denied, mut cold) = (0, 0);
    for _ in 0..20_000 {
        // Sometimes there is a long pause between requests.
        let longest = if rng.below(200) == 0 { 1_500_000 } else { 90_000 };
        now += rng.below(longest);
        let cost = 1 + rng.below(3);
        let verdict = state.admit(Micros::new(now), &quota, cost);
        if verdict.outcome == Outcome::Denied {
            let then = Micros::new(now + verdict.retry_after.get());
            let fits = state.clone().admit(then, &quota, cost);
            assert_eq!(fits.outcome, Outcome::Charged, "{verdict:?} and then {fits:?}");
            denied += 1;
            cold += u64::from(fits.limit < verdict.limit);
        }
    }
    eprintln!("{denied} denials, {cold} of them until it is cold: each fits after retry_after");
    assert!(denied > 1_000 && cold > 20);
}

const SECOND: u64 = 1_000_000;

/// A server whose clock stands still, and three nodes, one of them without scripts.
fn stopped(time: &FakeTime) -> (RedisServer, [RedisStore; 3]) {
    let server = time.stopped();
    let nodes = three(&server);
    (server, nodes)
}

fn three(server: &RedisServer) -> [RedisStore; 3] {
    let patience = Duration::from_secs(20);
    let options = RedisOptions { response_timeout: patience, ..RedisOptions::new(server.url()) };
    let without_scripts = RedisOptions { mode: RedisMode::Transaction, ..options.clone() };
    [&options, &options, &without_scripts].map(|options| RedisStore::with_options(options).unwrap())
}

/// Document 002 in Redis, with a clock that the test moves: in each second three nodes admit the value of the curve,
/// every reported limit is the limit of its instant, and after the idle time the limit is cold again.
#[tokio::test]
async fn curve_follows_the_clock_of_redis() {
    for (shape, over) in [("steps", 4), ("linear", 4), ("linear", 30)] {
        let time = FakeTime::start();
        let (_server, nodes) = stopped(&time);
        let warm_up =
            WarmUp::new(20, Duration::from_secs(over)).unwrap().idle(Duration::from_secs(60)).unwrap();
        let warm_up = if shape == "steps" { warm_up.in_steps() } else { warm_up };
        let quota = Quota::per_second(100).unwrap().with_warm_up(warm_up).unwrap();
        let checks = Checks::one(Check::new(Key::new("orders", []), quota, 1)).unwrap();
        let mut limits = 0;
        // Each node sends a request every ten milliseconds, and admissions are counted by second.
        let mut seconds = async |start: u64, from: Option<u64>, seconds: u64| {
            let mut admitted = vec![0; seconds as usize];
            for step in 0..seconds * 100 {
                let now = start + step * 10_000;
                time.stop_at(now);
                for node in &nodes {
                    let verdicts = node.admit(std::slice::from_ref(&checks)).await.unwrap().remove(0);
                    assert_eq!(
                        verdicts.at.get() % SECOND,
                        now % SECOND,
                        "the clock shows the time that was set"
                    );
                    let verdict = verdicts.verdicts[0];
                    let share = share(20, shape == "steps", now - from.unwrap_or(start), over * SECOND);
                    assert_eq!(u128::from(verdict.limit), share / 100, "{shape} over {over} s");
                    limits += 1;
                    admitted[(step / 100) as usize] += u128::from(verdict.outcome == Outcome::Charged);
                }
            }
            admitted
        };
        // At the end of a second, its admissions equal the limit at that instant.
        let curve = |from: u64, seconds: u64| -> Vec<u128> {
            let end = |second: u64| (from + second) * SECOND + 990_000;
            (0..seconds).map(|second| share(20, shape == "steps", end(second), over * SECOND) / 100).collect()
        };
        let first = seconds(10 * SECOND, None, over + 2).await;
        assert_eq!(first, curve(0, over + 2), "{shape} over {over} s");
        // The key was not idle for long enough: its last admission was in the second before.
        let last = 10 + over + 2;
        let still = seconds((last + 58) * SECOND, Some(10 * SECOND), 1).await;
        assert_eq!(still, [100], "{shape} over {over} s");
        let again = seconds((last + 59 + 61) * SECOND, None, 4).await;
        assert_eq!(again, curve(0, 4), "{shape} over {over} s, cold again");
        if shape == "steps" {
            assert_eq!((&first[..4], &again[..]), (&[20, 50, 80, 100][..], &[20, 50, 80, 100][..]));
        }
        eprintln!(
            "{shape} over {over} s: {first:?}, and cold again {again:?}; {limits} limits, all of the curve"
        );
    }
}

/// A transaction reads only some of many entries, but `retry_after` of a climbing limit may depend on any.
#[tokio::test]
async fn retry_after_is_a_lower_bound_with_unread_entries() {
    let time = FakeTime::start();
    let (_server, [script, _, transaction]) = stopped(&time);
    let warm_up = WarmUp::new(10, Duration::from_secs(6)).unwrap();
    let quota = Quota::per_second(1_000).unwrap().with_warm_up(warm_up).unwrap();
    let checks = |cost| Checks::one(Check::new(Key::new("many", []), quota, cost)).unwrap();
    let (mut oracle, mut denied) = (Oracle::default(), 0);
    for step in 0..3_000 {
        time.stop_at(10 * SECOND + step * 3_000);
        let checks = if step % 5 == 4 { checks(1 + step % 90) } else { checks(1) };
        let checks = if step % 5 == 4 { checks.peek() } else { checks };
        let node = if step % 5 == 4 { &transaction } else { &script };
        let verdicts = node.admit(std::slice::from_ref(&checks)).await.unwrap().remove(0);
        denied += u64::from(verdicts.verdicts[0].outcome == Outcome::Denied && step % 5 == 4);
        oracle.admitted(&checks, &verdicts);
    }
    eprintln!("{:?}, {denied} denied by a transaction, 0 differences", oracle.seen);
    assert!(denied > 50 && oracle.seen.warming_up > 1_000);
}

/// Three nodes in turns, one of them without scripts, follow one curve by the server's clock.
#[tokio::test]
async fn three_nodes_follow_one_curve() {
    let server = RedisServer::start(Flavour::Redis7);
    let nodes = three(&server);
    for (n, shape) in ["linear", "steps"].into_iter().enumerate() {
        let warm_up =
            WarmUp::new(20, Duration::from_millis(400)).unwrap().idle(Duration::from_millis(150)).unwrap();
        let warm_up = if shape == "steps" { warm_up.in_steps() } else { warm_up };
        let quota = Quota::new(100, Duration::from_millis(100)).unwrap().with_warm_up(warm_up).unwrap();
        let key = Key::new("warm", [("n", n.to_string().as_str())]);
        let checks = Checks::one(Check::new(key, quota, 1)).unwrap();
        let mut oracle = Oracle::default();
        // A busy machine sends fewer requests while the limit climbs, and needs more rounds.
        for round in 0..100 {
            if round >= 2 && oracle.seen.warming_up > 50 && oracle.seen.denied > 0 {
                break;
            }
            // If the machine stalls for the idle time, the limit becomes cold and climbs again.
            let warming_up = async {
                let mut limit = 0;
                while limit < 100 {
                    for node in &nodes {
                        let verdicts = node.admit(std::slice::from_ref(&checks)).await.unwrap().remove(0);
                        oracle.admitted(&checks, &verdicts);
                        limit = verdicts.verdicts[0].limit;
                    }
                    let verdicts = nodes[0].admit(&[checks.clone().peek()]).await.unwrap().remove(0);
                    oracle.admitted(&checks.clone().peek(), &verdicts);
                }
            };
            within_limit(&format!("{shape}, round {round}: the limit is at its full height"), warming_up)
                .await;
            let mut limits = Vec::new();
            until(&format!("{shape}, round {round}: cold again"), async || {
                let verdicts = nodes[2].admit(&[checks.clone().peek()]).await.unwrap().remove(0);
                oracle.admitted(&checks.clone().peek(), &verdicts);
                limits.push(verdicts.verdicts[0].limit);
                limits.ends_with(&[20])
            })
            .await;
            limits.pop();
            assert!(limits.iter().all(|limit| *limit == 100), "{shape}, round {round}: {limits:?}");
        }
        eprintln!("{shape}: {:?} by three nodes in turns, 0 differences", oracle.seen);
        assert!(oracle.seen.warming_up > 50 && oracle.seen.denied > 0);
    }
}

/// For each encoding in Redis: a reset removes the warm-up state, and it expires ten seconds after the limit is cold.
#[tokio::test]
async fn warm_up_state_in_redis_expires() {
    let time = FakeTime::start();
    let (server, [store, ..]) = stopped(&time);
    let mut client = server.client();
    let ways = [
        (Algorithm::SlidingWindow, Encoding::Zset),
        (Algorithm::SlidingWindow, Encoding::Packed),
        (Algorithm::TimeSlice { slices: 4 }, Encoding::Zset),
        (Algorithm::FixedWindow, Encoding::Zset),
        (Algorithm::SlidingCounter, Encoding::Zset),
        (Algorithm::Concurrency, Encoding::Zset),
    ];
    for (n, (algorithm, encoding)) in ways.into_iter().enumerate() {
        let warm_up = WarmUp::new(20, Duration::from_secs(3_600)).unwrap();
        let quota =
            Quota::per_minute(100).unwrap().with_algorithm(algorithm).unwrap().with_warm_up(warm_up).unwrap();
        let key = Key::new("warm", [("way", n.to_string().as_str())]);
        let checks = Checks::one(Check { encoding, ..Check::new(key.clone(), quota, 1) }).unwrap();
        let charged = async || {
            let mut charged = 0;
            while store.admit(std::slice::from_ref(&checks)).await.unwrap()[0].verdicts[0].outcome
                == Outcome::Charged
            {
                charged += 1;
            }
            charged
        };
        assert_eq!(charged().await, 20, "{algorithm:?} {encoding:?}");
        let name = format!("sg:{{{key}}}:warm");
        let ttl: i64 = redis::cmd("PTTL").arg(&name).query(&mut client).unwrap();
        let idle = quota.warm_up().unwrap().idle_for().get() as i64 / 1_000;
        assert_eq!(ttl, idle + 10_000);
        assert!(store.reset(&key).await.unwrap());
        let left: u64 = redis::cmd("EXISTS").arg(&name).query(&mut client).unwrap();
        assert_eq!(left, 0);
        assert_eq!(charged().await, 20, "{algorithm:?} {encoding:?}, cold after a reset");
    }
}

/// While a limit climbs there may be room before any entry leaves, so the deny cache does not repeat a denial.
#[tokio::test]
async fn denials_are_not_cached_while_the_limit_climbs() {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let store = DenyCache::with_clock(MemoryStore::with_clock(clock.clone(), 10), 64, clock.clone());
    let warm_up = WarmUp::new(50, Duration::from_secs(10)).unwrap();
    let quota = Quota::per_minute(10).unwrap().with_warm_up(warm_up).unwrap();
    let checks = Checks::one(Check::new(Key::new("k", []), quota, 1)).unwrap();
    let admit = async || store.admit(std::slice::from_ref(&checks)).await.unwrap().remove(0);
    for _ in 0..5 {
        assert_eq!(admit().await.verdicts[0].outcome, Outcome::Charged);
    }
    let denied = admit().await;
    assert_eq!(denied.verdicts[0].outcome, Outcome::Denied);
    assert_eq!(
        denied.verdicts[0].retry_after,
        Micros::from_secs(2),
        "the request fits when the limit is six"
    );
    clock.advance(Micros::from_secs(2));
    assert_eq!(admit().await.verdicts[0].outcome, Outcome::Charged);
    // At the full limit, denials are cached again.
    clock.advance(Micros::from_secs(20));
    while admit().await.verdicts[0].outcome == Outcome::Charged {}
    assert_eq!(admit().await.source, Source::DenyCache);
}
