//! What a node itself has taken out of a bucket, for a bucket has no entries that could be remembered.
//!
//! With `n` nodes each is taken to refill what it took at an n-th of the rate. What all of them lack together is then
//! never less than what the bucket lacks: none of them refills more than its part.

use crate::{Micros, Quota};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Level {
    /// Permits missing at `last`.
    missing: f64,
    last: Micros,
}

impl Level {
    /// Permits missing at `now`.
    pub(super) fn at(&self, now: Micros, quota: &Quota, nodes: u64) -> f64 {
        let per_micro = quota.limit() as f64 / quota.window().get() as f64 / nodes.max(1) as f64;
        (self.missing - now.since(self.last).get() as f64 * per_micro).max(0.0)
    }

    pub(super) fn take(&mut self, at: Micros, cost: u64, quota: &Quota, nodes: u64) {
        let now = at.max(self.last);
        self.missing = self.at(now, quota, nodes) + cost as f64;
        self.last = now;
    }

    /// `from` was really `to`. A bucket owes one capacity at most, as in the store.
    pub(super) fn correct(&mut self, from: u64, to: u64, quota: &Quota) {
        let most = self.missing.max(2.0 * quota.capacity() as f64);
        self.missing = (self.missing - from as f64 + to as f64).clamp(0.0, most);
    }

    /// When it was last taken from.
    pub(super) fn last(&self) -> Micros {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Algorithm;

    #[test]
    fn nodes_together_never_lack_less_than_the_bucket() {
        let quota = Quota::per_second(60).unwrap();
        let quota = quota.with_algorithm(Algorithm::TokenBucket { burst: 30 }).unwrap();
        let (mut bucket, mut nodes) = (Level::default(), [Level::default(); 3]);
        // One takes a burst, then two take what is refilled, each as it comes.
        for i in 0..300u64 {
            let (at, node) = (Micros::from_millis(i * 16), if i < 30 { 0 } else { 1 + i as usize % 2 });
            bucket.take(at, 1, &quota, 1);
            nodes[node].take(at, 1, &quota, 3);
            let together: f64 = nodes.iter().map(|level| level.at(at, &quota, 3)).sum();
            assert!(together >= bucket.at(at, &quota, 1) - 1e-9, "{i}: {together}");
        }
    }
}
