//! Counts over time, in a fixed number of buckets. When time passes the last bucket, all buckets become twice as wide.

use slidegate::Micros;

/// Maximum number of buckets.
pub(crate) const BUCKETS: usize = 256;

/// Counts over time.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    /// Start of the first bucket.
    begin: Option<Micros>,
    /// Binary logarithm of a bucket's width in microseconds.
    log_width: u32,
    buckets: Vec<Bucket>,
}

/// Counts in one interval of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Most permits that any key had been admitted in its window.
    pub(crate) admitted: u64,
    /// Limit of that key.
    pub(crate) limit: u64,
}

impl Default for Timeline {
    /// Creates a timeline that is a quarter of a second wide, with buckets of about a millisecond.
    fn default() -> Self {
        Timeline { begin: None, log_width: 10, buckets: Vec::new() }
    }
}

impl Timeline {
    /// Creates a timeline that starts at `begin`, or at the first request if `begin` is none.
    pub(super) fn starting_at(begin: Option<Micros>) -> Self {
        Timeline { begin, ..Timeline::default() }
    }

    #[inline]
    pub(super) fn add(&mut self, at: Micros, allowed: bool, denied: bool, admitted: u64, limit: u64) {
        let index = self.bucket_index(at);
        if self.buckets.len() <= index {
            self.buckets.resize(index + 1, Bucket::default());
        }
        let bucket = &mut self.buckets[index];
        bucket.allowed += u64::from(allowed);
        bucket.denied += u64::from(denied);
        bucket.raise_peak(admitted, limit);
    }

    fn bucket_index(&mut self, at: Micros) -> usize {
        let begin = *self.begin.get_or_insert(at);
        loop {
            let index = at.since(begin).get() >> self.log_width;
            if index < BUCKETS as u64 {
                return index as usize;
            }
            self.widen();
        }
    }

    #[cold]
    fn widen(&mut self) {
        self.log_width += 1;
        self.buckets = self
            .buckets
            .chunks(2)
            .map(|pair| pair.iter().copied().reduce(Bucket::merge).unwrap_or_default())
            .collect();
    }

    /// Returns the start of the first bucket; none if there was no request and no start was given.
    pub(crate) fn begin(&self) -> Option<Micros> {
        self.begin
    }

    /// Returns the width of a bucket.
    pub(crate) fn width(&self) -> Micros {
        Micros::new(1 << self.log_width)
    }

    pub(crate) fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }
}

impl Bucket {
    fn raise_peak(&mut self, admitted: u64, limit: u64) {
        if admitted >= self.admitted {
            (self.admitted, self.limit) = (admitted, limit);
        }
    }

    fn merge(mut self, later: Bucket) -> Bucket {
        self.allowed += later.allowed;
        self.denied += later.denied;
        if later != Bucket::default() {
            self.raise_peak(later.admitted, later.limit);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_keeps_all_counts() {
        let mut timeline = Timeline::default();
        let begin = 1_794_880_256_000_000;
        for n in 0..100_000u64 {
            timeline.add(Micros::new(begin + n * n), n % 3 != 0, n % 3 == 0, n % 100, 99);
        }
        assert!((BUCKETS / 2..=BUCKETS).contains(&timeline.buckets().len()));
        let sum = |count: fn(&Bucket) -> u64| timeline.buckets().iter().map(count).sum::<u64>();
        assert_eq!((sum(|b| b.allowed), sum(|b| b.denied)), (66_666, 33_334));
        assert!(timeline.buckets().iter().any(|bucket| bucket.admitted == 99));
        // The last bucket has all requests within its width.
        let from = (timeline.buckets().len() as u64 - 1) * timeline.width().get();
        let last = (0..100_000u64).filter(|n| n * n >= from).count() as u64;
        let bucket = timeline.buckets().last().unwrap();
        assert_eq!(bucket.allowed + bucket.denied, last);
    }
}
