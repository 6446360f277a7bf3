//! Counts over time, in a fixed number of buckets. When time passes the last bucket, all buckets become wider.
//!
//! Widths are round, and buckets begin at multiples of their width, so that a chart has buckets such as 09:00 to 09:05.

use slidegate::Micros;

/// Maximum number of buckets.
pub(crate) const BUCKETS: usize = 256;

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Widths of buckets, in microseconds. Each is a multiple of the one before, so that buckets can be merged.
const WIDTHS: [u64; 19] = [
    SECOND / 1_000,
    SECOND / 200,
    SECOND / 100,
    SECOND / 20,
    SECOND / 10,
    SECOND / 2,
    SECOND,
    5 * SECOND,
    10 * SECOND,
    30 * SECOND,
    MINUTE,
    5 * MINUTE,
    10 * MINUTE,
    30 * MINUTE,
    HOUR,
    6 * HOUR,
    DAY,
    7 * DAY,
    28 * DAY,
];

/// Counts over time.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    /// Number of the first bucket: its start divided by the width. None before the first request.
    first: Option<u64>,
    /// Width of a bucket, in microseconds.
    width: u64,
    buckets: Vec<Bucket>,
}

/// Counts in one interval of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Highest number of permits that were admitted to one key in its window.
    pub(crate) admitted: u64,
    /// Limit of that key.
    pub(crate) limit: u64,
}

impl Timeline {
    /// Creates a timeline that starts at `begin`, or at the first request if `begin` is none.
    pub(super) fn starting_at(begin: Option<Micros>) -> Self {
        let width = WIDTHS[0];
        Timeline { first: begin.map(|begin| begin.get() / width), width, buckets: Vec::new() }
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
        loop {
            let number = at.get() / self.width;
            let index = number.saturating_sub(*self.first.get_or_insert(number));
            if index < BUCKETS as u64 {
                return index as usize;
            }
            self.widen();
        }
    }

    #[cold]
    fn widen(&mut self) {
        let width = WIDTHS.into_iter().find(|width| *width > self.width).unwrap_or(2 * self.width);
        let merged = width / self.width;
        let first = self.first.unwrap_or_default();
        let mut buckets: Vec<Bucket> = Vec::new();
        for (number, bucket) in (first..).zip(&self.buckets) {
            let index = (number / merged - first / merged) as usize;
            if buckets.len() <= index {
                buckets.resize(index + 1, Bucket::default());
            }
            buckets[index] = buckets[index].merge(*bucket);
        }
        (self.first, self.width, self.buckets) = (Some(first / merged), width, buckets);
    }

    /// Returns the start of the first bucket; none if there was no request and no start was given.
    pub(crate) fn begin(&self) -> Option<Micros> {
        self.first.map(|first| Micros::new(first * self.width))
    }

    /// Returns the width of a bucket.
    pub(crate) fn width(&self) -> Micros {
        Micros::new(self.width)
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
        let mut timeline = Timeline::starting_at(None);
        let begin = 1_794_880_256_000_000;
        for n in 0..100_000u64 {
            timeline.add(Micros::new(begin + n * n), n % 3 != 0, n % 3 == 0, n % 100, 99);
        }
        assert!((BUCKETS / 8..=BUCKETS).contains(&timeline.buckets().len()));
        let sum = |count: fn(&Bucket) -> u64| timeline.buckets().iter().map(count).sum::<u64>();
        assert_eq!((sum(|b| b.allowed), sum(|b| b.denied)), (66_666, 33_334));
        assert!(timeline.buckets().iter().any(|bucket| bucket.admitted == 99));
        // The last bucket has all requests within its width.
        let from =
            timeline.begin().unwrap().get() + (timeline.buckets().len() as u64 - 1) * timeline.width().get();
        let last = (0..100_000u64).filter(|n| begin + n * n >= from).count() as u64;
        let bucket = timeline.buckets().last().unwrap();
        assert_eq!(bucket.allowed + bucket.denied, last);
    }

    #[test]
    fn widths_are_round_and_buckets_begin_at_multiples() {
        assert!(WIDTHS.windows(2).all(|pair| pair[1].is_multiple_of(pair[0])));
        // 2026-11-17T01:50:56.789Z
        let begin = 1_794_880_256_789_000;
        for (span, width, first) in [
            (0, SECOND / 1_000, begin),
            (200 * SECOND, SECOND, begin - 789_000),
            (600 * SECOND, 5 * SECOND, begin - 1_789_000),
            (HOUR, 30 * SECOND, begin - 26_789_000),
            (DAY, 10 * MINUTE, begin - 56_789_000),
            (30 * DAY, 6 * HOUR, begin - 6_656_789_000),
            (40 * 365 * DAY, 112 * DAY, begin / (112 * DAY) * (112 * DAY)),
        ] {
            let mut timeline = Timeline::starting_at(None);
            for at in [begin, begin + span / 2, begin + span] {
                timeline.add(Micros::new(at), true, false, 1, 1);
            }
            assert_eq!(timeline.width(), Micros::new(width), "{span}");
            assert_eq!(timeline.begin(), Some(Micros::new(first)), "{span}");
            assert_eq!(timeline.buckets().iter().map(|bucket| bucket.allowed).sum::<u64>(), 3, "{span}");
        }
    }
}
