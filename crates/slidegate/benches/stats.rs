//! Latency percentiles of decisions with and without a concurrent `MemoryStore::stats`, in one run.
//!
//! `cargo bench -p slidegate --bench stats [-- seconds]` prints a table. One thread decides about a million keys in random
//! order, and measures each decision. Meanwhile a second thread does one of three things:
//!
//! - `idle`: it sleeps.
//! - `reader`: it reads as much memory as `stats` does, but not that of the store, and takes no lock. This is the control: it
//!   uses a core, memory bandwidth and cache as `stats` does.
//! - `stats`: it calls `stats` in a loop.
//!
//! The three take turns, round after round, so that the load of the machine affects all of them. A figure is the median
//! of its rounds; a ratio is the median of the ratios within a round.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]
#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use slidegate::{
    Key, MemoryStore, Quota, Store,
    store::{Check, Checks},
};

const KEYS: usize = 1_000_000;
const ROUNDS: usize = 9;

/// Number of words that one call of `stats` reads: two cache lines, 16 words, for each key.
const WORDS: usize = 16 * KEYS;

/// Latencies are counted in steps of 16 ns up to a millisecond; longer ones count as a millisecond.
const STEP_NS: usize = 16;
const STEPS: usize = 1_000_000 / STEP_NS;

#[derive(Clone, Copy, Debug)]
enum Beside {
    Idle,
    Reader,
    Stats,
}

/// p50, p99 and p99.9 in nanoseconds, decisions per second, and calls of the second thread.
struct Round {
    percentiles: [f64; 3],
    rate: f64,
    calls: u64,
}

fn main() {
    let seconds = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(1.0);
    let length = Duration::from_secs_f64(seconds);
    let store = MemoryStore::with_max_keys(4 * KEYS);
    // The window is so long that no key is evicted before its next turn, and so short that admissions leave as others
    // arrive.
    let quota = Quota::new(1_000_000, Duration::from_secs(10)).unwrap();
    let batch: Vec<Checks> = (0..KEYS)
        .map(|n| Checks::one(Check::new(Key::new("u", [("id", n.to_string().as_str())]), quota, 1)).unwrap())
        .collect();
    batch.iter().for_each(|checks| decide(&store, checks));
    let mut order = shuffled(KEYS).into_iter().cycle();
    let memory = vec![1u64; WORDS];
    let start = Instant::now();
    let stats = store.stats();
    println!(
        "{} keys, {} events; one call of stats alone: {:.1?}",
        stats.keys,
        stats.events,
        start.elapsed()
    );
    assert_eq!(stats.keys, KEYS);

    let besides = [Beside::Idle, Beside::Reader, Beside::Stats];
    let mut rounds: Vec<[Round; 3]> = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(besides.map(|beside| round(&store, &batch, &mut order, &memory, beside, length)));
    }
    println!(
        "\n{:<8}{:>10}{:>10}{:>10}{:>14}{:>12}",
        "beside", "p50 ns", "p99 ns", "p99.9 ns", "decisions/s", "calls/s"
    );
    for (i, beside) in besides.iter().enumerate() {
        let of =
            |figure: &dyn Fn(&Round) -> f64| median(rounds.iter().map(|round| figure(&round[i])).collect());
        let [p50, p99, p999] = [0, 1, 2].map(|p| of(&|round: &Round| round.percentiles[p]));
        let rate = of(&|round: &Round| round.rate);
        let calls = of(&|round: &Round| round.calls as f64 / length.as_secs_f64());
        let name = format!("{beside:?}").to_lowercase();
        println!("{name:<8}{p50:>10.0}{p99:>10.0}{p999:>10.0}{rate:>14.0}{calls:>12.1}");
    }
    println!();
    for (control, name) in [(0, "idle"), (1, "reader")] {
        let ratios = [0, 1, 2].map(|p| {
            let mut ratios: Vec<f64> =
                rounds.iter().map(|round| round[2].percentiles[p] / round[control].percentiles[p]).collect();
            ratios.sort_by(f64::total_cmp);
            format!("{:.2}x ({:.2} to {:.2})", median(ratios.clone()), ratios[0], ratios[ROUNDS - 1])
        });
        println!("stats / {name}: p50 {}, p99 {}, p99.9 {}", ratios[0], ratios[1], ratios[2]);
    }
}

fn round(
    store: &MemoryStore,
    batch: &[Checks],
    order: &mut impl Iterator<Item = u32>,
    memory: &[u64],
    beside: Beside,
    length: Duration,
) -> Round {
    let (started, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut calls = 0;
            started.store(true, Ordering::Release);
            while !stop.load(Ordering::Relaxed) {
                match beside {
                    Beside::Idle => std::thread::sleep(Duration::from_millis(10)),
                    Beside::Reader => {
                        black_box(read(memory));
                    }
                    Beside::Stats => {
                        black_box(store.stats());
                    }
                }
                calls += 1;
            }
            calls
        });
        while !started.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let mut counts = vec![0u32; STEPS];
        let start = Instant::now();
        let mut before = start;
        let mut decided = 0;
        for index in order {
            decide(store, &batch[index as usize]);
            let now = Instant::now();
            let took = (now - before).as_nanos() as usize / STEP_NS;
            counts[took.min(STEPS - 1)] += 1;
            decided += 1;
            if now - start > length {
                break;
            }
            before = now;
        }
        stop.store(true, Ordering::Relaxed);
        Round {
            percentiles: [0.5, 0.99, 0.999].map(|share| percentile(&counts, decided, share)),
            rate: decided as f64 / length.as_secs_f64(),
            calls: other.join().unwrap(),
        }
    })
}

fn decide(store: &MemoryStore, checks: &Checks) {
    let mut admit = pin!(store.admit(std::slice::from_ref(checks)));
    match admit.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(replies) => drop(black_box(replies.unwrap())),
        Poll::Pending => unreachable!("the memory store answers at once"),
    }
}

fn read(memory: &[u64]) -> u64 {
    memory.chunks(8).map(|line| line[0]).fold(0, u64::wrapping_add)
}

/// Returns the upper end of the step that this share of the decisions did not exceed, in nanoseconds.
fn percentile(counts: &[u32], decided: u64, share: f64) -> f64 {
    let mut left = (decided as f64 * share) as u64;
    let step = counts.iter().position(|count| {
        let reached = u64::from(*count) >= left;
        left = left.saturating_sub(u64::from(*count));
        reached
    });
    ((step.unwrap_or(STEPS - 1) + 1) * STEP_NS) as f64
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Returns every number below `n` once, in an order that the processor cannot predict.
fn shuffled(n: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    let mut random = 1u64;
    for i in (1..n).rev() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(i, (random >> 33) as usize % (i + 1));
    }
    order
}
