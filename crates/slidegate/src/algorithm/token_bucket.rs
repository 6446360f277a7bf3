//! `token-bucket`: a level that refills steadily, in integers.
//!
//! The refill is `rate.0` permits per `rate.1` microseconds in lowest terms. A microsecond adds `rate.0` units, and a permit
//! is `rate.1` units, so nothing is ever rounded, and refilling in two steps equals refilling in one. A settlement may take
//! the level below zero: the bucket then owes permits, up to one capacity. So an empty bucket is full again after at
//! most twice the time to fill, after any settlements.

use super::counter::Counter;
use super::{CounterNumbers, SnapshotCounts};
use crate::quota::MAX_TOTAL;
use crate::{Entry, Micros, Quota};

#[derive(Clone, Debug)]
pub(super) struct TokenBucket {
    rate: (u64, u64),
    burst: u64,
    /// Units in the bucket at `since`.
    level: i64,
    since: Micros,
    /// Time to fill: the longest time for which an admission affects decisions.
    horizon: Micros,
    /// Admissions at or before this instant no longer affect decisions: they are older than the time to fill, even after a
    /// change of the rate, or the bucket has been full since.
    gone: Micros,
}

impl TokenBucket {
    pub(super) fn new(quota: &Quota) -> Self {
        let mut bucket = TokenBucket {
            rate: quota.rate(),
            burst: quota.capacity(),
            level: 0,
            since: Micros::ZERO,
            horizon: quota.horizon(),
            gone: Micros::ZERO,
        };
        bucket.level = bucket.full();
        bucket
    }

    /// Returns the size of the bucket.
    pub(super) fn burst(&self) -> u64 {
        self.burst
    }

    fn full(&self) -> i64 {
        self.units(self.burst)
    }

    /// Converts permits to units. The result is at most 2^51 for every cost that a bucket admits; see `Quota`.
    fn units(&self, permits: u64) -> i64 {
        i64::try_from(permits.saturating_mul(self.rate.1)).unwrap_or(i64::MAX)
    }

    fn set(&mut self, level: i128) {
        let full = i128::from(self.full());
        let level = level.clamp(full - i128::from(MAX_TOTAL), full);
        self.level = i64::try_from(level).unwrap_or(self.level);
    }

    /// Sets the level. The bucket may owe at most one capacity, or its debt at the level `before` if that debt was
    /// larger.
    fn set_capped(&mut self, level: i128, before: i128) {
        let floor = -i128::from(self.full());
        self.set(level.max(floor.min(before)));
    }

    fn note_gone(&mut self) {
        self.gone = self.gone.max(self.since.since(self.horizon));
        if self.level == self.full() {
            // The permits of earlier admissions are back in the bucket, so a refund has nothing to give back.
            self.gone = self.gone.max(self.since.since(Micros::new(1)));
        }
    }

    fn time_to(&self, level: i64) -> Micros {
        let missing = level.saturating_sub(self.level).max(0);
        Micros::new(missing.unsigned_abs().div_ceil(self.rate.0))
    }
}

impl Counter for TokenBucket {
    /// Refills up to `now`; returns true if time has passed.
    #[inline]
    fn roll(&mut self, now: Micros) -> bool {
        let elapsed = now.since(self.since).get();
        self.since = self.since.max(now);
        let gained = elapsed.saturating_mul(self.rate.0);
        let level = i64::try_from(gained).map_or(i64::MAX, |units| self.level.saturating_add(units));
        self.level = level.min(self.full());
        self.note_gone();
        elapsed > 0
    }

    /// Applies the rate and burst of the quota; the level in permits stays the same.
    #[inline]
    fn adopt(&mut self, quota: &Quota) {
        if self.rate == quota.rate() && self.burst == quota.capacity() {
            return;
        }
        let (old, new) = (i128::from(self.rate.1), i128::from(quota.rate().1));
        let owes_more = self.level < -self.full();
        self.rate = quota.rate();
        self.burst = quota.capacity();
        self.horizon = quota.horizon();
        let level = (i128::from(self.level) * new).div_euclid(old);
        // The debt is at most the new capacity, unless it exceeded the old capacity already.
        if owes_more {
            self.set(level)
        } else {
            self.set_capped(level, 0)
        }
        self.note_gone();
    }

    /// Permits missing from a full bucket, rounded up.
    #[inline]
    fn used(&self) -> u64 {
        let missing = self.full() - self.level;
        missing.unsigned_abs().div_ceil(self.rate.1)
    }

    #[inline]
    fn record(&mut self, now: Micros, _quota: &Quota, cost: u64) -> Micros {
        self.level -= self.units(cost);
        now
    }

    /// Fills up until at most `keep` permits are missing.
    fn keep_newest(&mut self, keep: u64) {
        self.level = self.level.max(self.full() - self.units(keep));
    }

    #[inline]
    fn wait(&self, _now: Micros, _quota: &Quota, _limit: u64, cost: u64) -> Micros {
        self.time_to(self.units(cost))
    }

    fn empty_at(&self) -> Micros {
        self.since.plus(self.time_to(self.full()))
    }

    fn amend(&mut self, entry: Entry, to: u64) -> bool {
        let (permit, before) = (i128::from(self.rate.1), i128::from(self.level));
        self.set_capped(before + i128::from(entry.cost) * permit - i128::from(to) * permit, before);
        true
    }

    /// Takes `cost` permits, without the cap on debt. The caller guarantees that this many permits are missing.
    fn add(&mut self, _now: Micros, cost: u64) {
        self.set(i128::from(self.level) - i128::from(self.units(cost)));
    }

    fn leaves(&self, at: Micros) -> Micros {
        at.plus(self.horizon)
    }

    fn left(&self, at: Micros, _now: Micros) -> bool {
        at <= self.gone
    }

    /// Returns no entries: a bucket stores only its level.
    fn entries(&self) -> Vec<(Micros, u64)> {
        Vec::new()
    }

    #[inline]
    fn suits(&self, quota: &Quota) -> bool {
        quota.algorithm().refills()
    }

    fn snapshot(&self) -> SnapshotCounts {
        let missing = (self.full() - self.level).unsigned_abs();
        SnapshotCounts::Numbers(CounterNumbers { used: missing, second: self.gone.get() })
    }

    fn restore(&mut self, last: Micros, counts: &SnapshotCounts) {
        let SnapshotCounts::Numbers(numbers) = counts else { return };
        (self.since, self.gone) = (last, Micros::new(numbers.second));
        self.set(i128::from(self.full()) - i128::from(numbers.used));
    }

    fn gone_until(&self) -> Micros {
        self.gone
    }
}
