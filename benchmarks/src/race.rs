//! Races: contenders decide in turns of a few milliseconds, because the speed of a shared machine drifts.

use std::hint::black_box;
use std::time::{Duration, Instant};

const ROUND: Duration = Duration::from_millis(60);

/// Decisions between two looks at the clock.
const CHUNK: usize = 256;

/// Returns the nanoseconds of a decision in one turn. Each thread calls `decide` with the keys of `order`, and starts at another
/// one.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
pub(crate) fn turn<F: FnMut(usize) -> bool>(
    order: &[u32],
    threads: usize,
    decide: impl Fn() -> F + Sync,
) -> f64 {
    let per_thread = |thread: usize| {
        let mut decide = decide();
        let mut place = thread * order.len() / 2;
        let (start, mut decisions) = (Instant::now(), 0);
        while start.elapsed() < ROUND {
            for _ in 0..CHUNK {
                place = if place + 1 < order.len() { place + 1 } else { 0 };
                black_box(decide(order[place] as usize));
            }
            decisions += CHUNK;
        }
        start.elapsed().as_nanos() as f64 / decisions as f64
    };
    let per_thread = &per_thread;
    let sum: f64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|t| scope.spawn(move || per_thread(t))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    sum / threads as f64
}

/// Returns the median, the smallest and the largest value.
pub(crate) fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// Returns every key once, in an order that no prefetcher guesses.
pub(crate) fn shuffled(keys: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..keys as u32).collect();
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    for i in (1..keys).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        order.swap(i, (random % (i as u64 + 1)) as usize);
    }
    order
}
