//! Statistics of the store's calls to Redis: number, duration, batch size, errors.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Inner;
use crate::{Clock, Error, Fault, Micros, RedisStore, SystemClock};

/// Bounds of [`CallStats::durations`], in microseconds: a call counts in the first bucket whose bound it does not
/// exceed.
pub const CALL_BOUNDS: [u64; 14] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000];

/// Bounds of [`CallStats::batches`], in requests.
pub const BATCH_BOUNDS: [u64; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000];

/// Statistics of the calls that decide and settle, since the store was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallStats {
    /// Calls, including those that failed. A call that is redirected in a cluster counts once, and so does a
    /// transaction, which takes several round trips.
    pub calls: u64,
    /// Requests that were decided in these calls.
    pub requests: u64,
    /// Requests in these calls, including those in calls that failed.
    pub tried: u64,
    /// Histogram of durations: one number for each of [`CALL_BOUNDS`], and one for longer calls.
    pub durations: Vec<u64>,
    /// Total duration.
    pub time: Micros,
    /// Histogram of batch sizes: one number for each of [`BATCH_BOUNDS`], and one for larger batches. Calls that
    /// settle are not counted here.
    pub batches: Vec<u64>,
    /// Failed calls by fault, for every fault.
    pub errors: Vec<(Fault, u64)>,
}

/// Counters behind [`CallStats`].
#[derive(Default)]
pub(super) struct Calls {
    clock: SystemClock,
    requests: AtomicU64,
    tried: AtomicU64,
    time: AtomicU64,
    durations: [AtomicU64; CALL_BOUNDS.len() + 1],
    batches: [AtomicU64; BATCH_BOUNDS.len() + 1],
    errors: [AtomicU64; Fault::ALL.len()],
}

impl RedisStore {
    /// Returns the statistics of calls to Redis so far.
    pub fn calls(&self) -> CallStats {
        let calls = &self.inner.calls;
        let all = |counts: &[AtomicU64]| counts.iter().map(read).collect::<Vec<u64>>();
        let durations = all(&calls.durations);
        CallStats {
            calls: durations.iter().sum(),
            requests: read(&calls.requests),
            tried: read(&calls.tried),
            time: Micros::new(read(&calls.time)),
            durations,
            batches: all(&calls.batches),
            errors: Fault::ALL.into_iter().zip(all(&calls.errors)).collect(),
        }
    }
}

impl Inner {
    /// Makes a call that decides `requests` requests, or settles if `requests` is 0, and records its statistics.
    pub(super) async fn record_call<T>(
        &self,
        requests: usize,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let calls = &self.calls;
        let started = calls.clock.now();
        let answer = call.await;
        let duration = calls.clock.now().since(started).get();
        add(&calls.durations[bucket_index(&CALL_BOUNDS, duration)], 1);
        add(&calls.time, duration);
        if requests > 0 {
            add(&calls.tried, requests as u64);
            add(&calls.batches[bucket_index(&BATCH_BOUNDS, requests as u64)], 1);
        }
        match &answer {
            Ok(_) => add(&calls.requests, requests as u64),
            Err(error) => add(&calls.errors[error.fault().unwrap_or(Fault::Other) as usize], 1),
        }
        answer
    }
}

fn read(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

fn add(count: &AtomicU64, n: u64) {
    count.fetch_add(n, Ordering::Relaxed);
}

fn bucket_index(bounds: &[u64], value: u64) -> usize {
    bounds.partition_point(|bound| *bound < value)
}
