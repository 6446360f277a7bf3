//! Counters of one core. Readers add up the counters of all cores.

use std::sync::atomic::{AtomicU64, Ordering};

use slidegate::{Micros, ShadowChange, Source};

use super::follow_up::{FollowUp, FollowUpCounters};
use crate::common::protocol::Protocol;

const SOURCES: usize = Source::ALL.len();
const PROTOCOLS: usize = Protocol::ALL.len();

/// Upper bounds of the histogram buckets, in microseconds.
pub(crate) const BOUNDS: [u64; 20] = [
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    500_000, 1_000_000, 2_500_000,
];

/// Histogram of durations: a bucket for each of [`BOUNDS`], and one for longer durations.
#[derive(Default)]
pub(super) struct DurationCounters {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum: AtomicU64,
}

/// Sum of the histograms of several cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Durations {
    pub(crate) buckets: [u64; BOUNDS.len() + 1],
    /// Total duration in microseconds.
    pub(crate) sum: u64,
}

impl DurationCounters {
    #[inline]
    pub(super) fn add(&self, times: u64, took: Micros) {
        let took = took.get();
        let bucket = BOUNDS.iter().position(|bound| took <= *bound).unwrap_or(BOUNDS.len());
        self.buckets[bucket].fetch_add(times, Ordering::Relaxed);
        if took > 0 {
            self.sum.fetch_add(times * took, Ordering::Relaxed);
        }
    }

    pub(super) fn add_to(&self, all: &mut Durations) {
        for (all, bucket) in all.buckets.iter_mut().zip(&self.buckets) {
            *all += bucket.load(Ordering::Relaxed);
        }
        all.sum += self.sum.load(Ordering::Relaxed);
    }
}

impl Durations {
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub(crate) fn add(&mut self, other: &Durations) {
        for (all, bucket) in self.buckets.iter_mut().zip(&other.buckets) {
            *all += bucket;
        }
        self.sum += other.sum;
    }

    /// Returns the durations since an earlier snapshot.
    pub(crate) fn since(&self, before: &Durations) -> Durations {
        let mut since = self.clone();
        for (bucket, before) in since.buckets.iter_mut().zip(&before.buckets) {
            *bucket = bucket.saturating_sub(*before);
        }
        since.sum = since.sum.saturating_sub(before.sum);
        since
    }

    /// Returns the smallest bucket bound, in microseconds, that at least `share` of the durations do not exceed. If
    /// there is no such bound, returns the last bound. Returns None if there are no durations.
    pub(crate) fn below(&self, share: f64) -> Option<u64> {
        let count = self.count();
        let wanted = ((count as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().position(|bucket| {
            seen += bucket;
            seen >= wanted
        });
        let bound = BOUNDS.get(found.filter(|_| count > 0)?).or(BOUNDS.last());
        bound.copied()
    }
}

slidegate::words! {
    /// Reason why a request was not decided.
    pub(crate) enum Failure {
        /// The request is invalid.
        Invalid = "invalid",
        /// Neither the store nor a fallback could decide.
        Unavailable = "unavailable",
    }
}

/// Counters of one core for all requests.
#[derive(Default)]
pub(super) struct CoreCounters {
    /// Durations by protocol, verdict (denied, allowed), and source.
    pub(super) decisions: [[[DurationCounters; SOURCES]; 2]; PROTOCOLS],
    pub(super) failures: [[AtomicU64; Failure::ALL.len()]; PROTOCOLS],
    pub(super) follow_ups: [[FollowUpCounters; FollowUp::ALL.len()]; PROTOCOLS],
    /// Requests that no rule matches.
    pub(super) unmatched: [AtomicU64; PROTOCOLS],
    /// Number of decisions, for sampling their keys.
    decision_count: AtomicU64,
    /// Sampling interval minus one. The interval is a power of two.
    mask: AtomicU64,
}

impl CoreCounters {
    #[inline]
    pub(super) fn count_decisions(
        &self,
        protocol: Protocol,
        allowed: bool,
        source: Source,
        times: u64,
        took: Micros,
    ) {
        self.decisions[protocol as usize][usize::from(allowed)][source as usize].add(times, took);
    }

    /// Returns a sampler for the keys of the next `decisions` decisions.
    #[inline]
    pub(super) fn sample(&self, decisions: u64) -> KeySampler {
        let mask = self.mask.load(Ordering::Relaxed);
        KeySampler { position: self.decision_count.fetch_add(decisions, Ordering::Relaxed), mask }
    }

    /// Adapts the sampling interval to the number of decisions since the last call. If the next period has as many
    /// decisions, about `most` of them are sampled.
    pub(super) fn adapt(&self, before: &mut u64, most: u64) {
        let count = self.decision_count.load(Ordering::Relaxed);
        let decisions = count.wrapping_sub(std::mem::replace(before, count));
        self.mask.store((decisions / most).max(1).next_power_of_two() - 1, Ordering::Relaxed);
    }
}

/// Sampler of consecutive decisions on one core.
pub(super) struct KeySampler {
    position: u64,
    mask: u64,
}

impl KeySampler {
    #[inline]
    pub(super) fn next(&mut self) -> Option<u64> {
        // The position is hashed. If every n-th decision were sampled, requests of clients that alternate
        // regularly could all be missed.
        let mixed = self.position.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        self.position = self.position.wrapping_add(1);
        (mixed & self.mask == 0).then_some(self.mask + 1)
    }
}

slidegate::words! {
    /// Verdict of a rule on a request.
    pub(crate) enum RuleVerdict {
        /// The rule had room; another rule may have denied.
        Allowed = "allowed",
        /// The rule denied.
        Denied = "denied",
        /// The rule would have denied, but is a shadow rule.
        WouldDeny = "would-deny",
    }
}

/// Counters of one core for one rule.
#[derive(Default)]
pub(super) struct RuleCounters {
    pub(super) verdicts: [[AtomicU64; SOURCES]; RuleVerdict::ALL.len()],
    pub(super) changes: [AtomicU64; ShadowChange::ALL.len()],
    /// Requests that the rule had room for, but that were not charged, because another rule denied them.
    pub(super) not_charged: AtomicU64,
    /// Total duration of the decisions in which the rule took part, in microseconds.
    pub(super) took: AtomicU64,
    /// Highest share of its limit that a key had in use since the last reset, in thousandths, plus one; 0 if the rule
    /// decided nothing.
    pub(super) peak: AtomicU64,
    /// Highest limit since the last reset; 0 if the rule decided nothing.
    pub(super) limit: AtomicU64,
}

impl RuleCounters {
    /// Counts `times` equal verdicts. `usage` and `limit` are those of the key with the highest usage.
    #[inline]
    pub(super) fn count(
        &self,
        (verdict, source): (RuleVerdict, Source),
        times: u64,
        took: Micros,
        usage: u64,
        limit: u64,
    ) {
        self.verdicts[verdict as usize][source as usize].fetch_add(times, Ordering::Relaxed);
        if took > Micros::ZERO {
            self.took.fetch_add(times * took.get(), Ordering::Relaxed);
        }
        if usage > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(usage, Ordering::Relaxed);
        }
        if limit > self.limit.load(Ordering::Relaxed) {
            self.limit.fetch_max(limit, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_buckets() {
        let histogram = DurationCounters::default();
        for took in [0, 1, 2, 3, 30, 2_000_000] {
            histogram.add(1, Micros::new(took));
        }
        let mut all = Durations::default();
        histogram.add_to(&mut all);
        assert_eq!((all.count(), all.sum), (6, 2_000_036));
        assert_eq!((all.below(0.5), all.below(0.8), all.below(1.0)), (Some(2), Some(50), Some(2_500_000)));
        assert_eq!(Durations::default().below(0.5), None);
        assert_eq!(all.since(&all).count(), 0);
    }

    #[test]
    fn sample_weights_add_up_to_all_decisions() {
        let counters = CoreCounters::default();
        let mut before = 0;
        let mut round = |n: u64| -> u64 {
            let mut sample = counters.sample(n);
            let weights = (0..n).filter_map(|_| sample.next()).sum();
            counters.adapt(&mut before, 1_000);
            weights
        };
        assert_eq!(round(100_000), 100_000, "at first every decision is sampled");
        let estimate = round(100_000);
        assert!((90_000..110_000).contains(&estimate), "{estimate}");
        round(10);
        assert_eq!(round(500), 500, "at a low rate every decision is sampled again");
    }
}
