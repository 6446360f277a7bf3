//! The call that a user of the library writes, beside governor's: `check("user-1")`, and `acquire("user-1").await`.
//!
//! The contenders get the text of a key and take turns; the ratio of each turn is printed as a median with its spread. Slidegate
//! evaluates an exact window and returns the permits in use and the exact wait. Governor returns yes or no from one timestamp
//! for each key.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::{Quota as GovernorQuota, RateLimiter};
use slidegate::{KeyedLimiter, Limiter, Quota};

use crate::race::{shuffled, spread, turn};
use crate::ready;

const ROUNDS: usize = 9;
const KEYS: [usize; 3] = [1, 1_000, 100_000];

/// Prints one row for each number of keys, mix and number of threads.
pub(crate) fn run() {
    println!(
        "ns of a call with the text of a key (medians of {ROUNDS} turns); x = how many times as fast as governor\n"
    );
    println!(
        "{:>7} {:>6} {:>7} | {:>8} {:>8} {:>8} | {:>6} {:>15} | {:>6} {:>15}",
        "keys", "mix", "threads", "governor", "keyed", "limiter", "keyed", "spread", "limiter", "spread"
    );
    for keys in KEYS {
        for admit in [true, false] {
            for threads in [1, 2] {
                row(keys, admit, threads);
            }
        }
    }
}

fn row(keys: usize, admit: bool, threads: usize) {
    let names: Vec<String> = (0..keys).map(|i| format!("user-{i}")).collect();
    let order = shuffled(keys);
    // Admit: the limit is out of reach. Deny: one permit an hour.
    let limit = if admit { 1_000_000_000 } else { 1 };
    let burst = NonZeroU32::new(limit).unwrap();
    let theirs = if admit { GovernorQuota::per_second(burst) } else { GovernorQuota::per_hour(burst) };
    let window = if admit { Duration::from_millis(10) } else { Duration::from_secs(3_600) };
    let ours = Quota::new(limit.into(), window).unwrap();

    let governor = RateLimiter::keyed(theirs);
    let keyed: KeyedLimiter<String> = KeyedLimiter::new(ours);
    let limiter = Limiter::per_key(ours).unwrap();
    let check_governor = |key: usize| governor.check_key(&names[key]).is_ok();
    let check_keyed = |key: usize| keyed.check(names[key].as_str()).is_ok();
    let acquire = |key: usize| ready(limiter.acquire(names[key].as_str())).unwrap().allowed();
    for key in 0..keys {
        check_governor(key);
        check_keyed(key);
        acquire(key);
    }
    let mut times: [Vec<f64>; 3] = Default::default();
    for _ in 0..ROUNDS {
        times[0].push(turn(&order, threads, || check_governor));
        times[1].push(turn(&order, threads, || check_keyed));
        times[2].push(turn(&order, threads, || acquire));
    }
    let ratio =
        |i: usize| spread(times[0].iter().zip(&times[i]).map(|(governor, ours)| governor / ours).collect());
    let ((x, low, high), (y, y_low, y_high)) = (ratio(1), ratio(2));
    let [governor, keyed, limiter] = times.map(|times| spread(times).0);
    println!(
        "{keys:>7} {:>6} {threads:>7} | {governor:>8.1} {keyed:>8.1} {limiter:>8.1} | {x:>5.2}x {low:>6.2} to {high:>5.2} | {y:>6.2}x {y_low:>6.2} to {y_high:>5.2}",
        if admit { "admit" } else { "deny" },
    );
}
