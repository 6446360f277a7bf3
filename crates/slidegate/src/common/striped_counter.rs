//! Counter for hot paths that many threads update.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

/// Number of threads that can count at once without sharing a cache line.
const STRIPES: usize = 32;

/// Counter with one cache line per stripe, so that threads do not contend.
#[derive(Debug)]
pub(crate) struct StripedCounter(Box<[CachePadded<AtomicU64>]>);

thread_local! {
    static STRIPE: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed) % STRIPES
    };
}

impl Default for StripedCounter {
    fn default() -> Self {
        StripedCounter((0..STRIPES).map(|_| CachePadded::default()).collect())
    }
}

impl StripedCounter {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        // A terminating thread no longer has its thread-local stripe, and uses stripe 0.
        let stripe = STRIPE.try_with(|stripe| *stripe).unwrap_or(0);
        self.0[stripe].fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.load(Ordering::Relaxed)).sum()
    }
}
