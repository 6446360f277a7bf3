//! Estimate of the permits that this node has taken out of a token bucket. A bucket has no entries that could be
//! logged.
//!
//! With `n` nodes, each node assumes that its own permits refill at an n-th of the rate. The sum over all nodes is
//! then never less than the permits missing from the bucket, because no node refills more than its part.

use crate::{Micros, Quota};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BucketEstimate {
    /// Permits missing at `last_taken`.
    missing: f64,
    pub(super) last_taken: Micros,
}

impl BucketEstimate {
    /// Returns the permits missing at `now`.
    pub(super) fn missing_at(&self, now: Micros, quota: &Quota, nodes: u64) -> f64 {
        let refill_per_micro = quota.limit() as f64 / quota.window().get() as f64 / nodes.max(1) as f64;
        (self.missing - now.since(self.last_taken).get() as f64 * refill_per_micro).max(0.0)
    }

    pub(super) fn take(&mut self, at: Micros, cost: u64, quota: &Quota, nodes: u64) {
        let now = at.max(self.last_taken);
        self.missing = self.missing_at(now, quota, nodes) + cost as f64;
        self.last_taken = now;
    }

    /// Replaces a cost of `from` by `to`. The debt of a bucket is at most one capacity, as in the store.
    pub(super) fn correct(&mut self, from: u64, to: u64, quota: &Quota) {
        let max_missing = self.missing.max(2.0 * quota.capacity() as f64);
        self.missing = (self.missing - from as f64 + to as f64).clamp(0.0, max_missing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Algorithm;

    #[test]
    fn sum_over_nodes_is_never_below_the_bucket() {
        let quota = Quota::per_second(60).unwrap();
        let quota = quota.with_algorithm(Algorithm::TokenBucket { burst: 30 }).unwrap();
        let (mut bucket, mut nodes) = (BucketEstimate::default(), [BucketEstimate::default(); 3]);
        // Node 0 takes a burst. Then nodes 1 and 2 take permits as soon as the bucket refills them.
        for i in 0..300u64 {
            let (at, node) = (Micros::from_millis(i * 16), if i < 30 { 0 } else { 1 + i as usize % 2 });
            bucket.take(at, 1, &quota, 1);
            nodes[node].take(at, 1, &quota, 3);
            let sum: f64 = nodes.iter().map(|estimate| estimate.missing_at(at, &quota, 3)).sum();
            assert!(sum >= bucket.missing_at(at, &quota, 1) - 1e-9, "{i}: {sum}");
        }
    }
}
