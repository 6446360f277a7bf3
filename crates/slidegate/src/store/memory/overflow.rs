//! Shared counters for keys that a full shard cannot hold.
//!
//! A secret hash of a key selects one of [`GROUPS_PER_RULE`] groups of its rule. The keys of a group share one
//! counter for each algorithm and window in their requests. A counter holds all admissions of all keys of its group,
//! so it never counts less than a key has used: it can deny too much, never too little. For that to hold:
//!
//! - Counters whose content depends on the limit or on a refill rate (`count: attempts`, `token-bucket`) are evaluated
//!   with the strictest quota of all requests so far. All other counters are evaluated with the quota of each request.
//! - A shared counter never warms up, so that admissions of one key do not raise the limit of another.
//! - Admissions in a shared bucket cannot be settled, and neither can attempts.
//! - A shared bucket is idle only when the bucket of each of its keys would be full. A key may have a larger burst
//!   than the shared bucket.
//! - While the shard is full, a key stays with its shared counter. When the shard has room again, the key gets a
//!   counter of its own. If the shared counter may still count an admission of the key, the new counter starts with
//!   everything that the shared counter counts ([`State::summary`]). In that case a key cannot leave if it may hold
//!   permits, which can be extended, if the counter is a bucket, or if it counts attempts: buckets and attempts count
//!   only up to the strictest quota of all keys.
//!
//! The number of counters is bounded, per shard and per group. A key for which there is none is denied.

use std::collections::HashMap;

use hashbrown::HashTable;

use super::shard::SAMPLE;
use crate::algorithm::{CheckInput, Evaluation};
use crate::{Correction, Count, Key, Micros, Quota, State};

/// Groups of one rule in one shard.
const GROUPS_PER_RULE: u64 = 16;

/// Maximum number of counters of one group, which has one counter for each algorithm and window. The bound is needed
/// because clients can choose any window in an ad-hoc limit.
const MAX_COUNTERS_PER_GROUP: usize = 8;

/// Number of keys of a full shard for which the shard may have one shared counter. The maximum is at least
/// [`MIN_COUNTERS`].
const KEYS_PER_COUNTER: usize = 64;
const MIN_COUNTERS: usize = 64;

/// Maximum number of keys that a counter tracks. A counter with more keys no longer knows whose admissions it
/// counts, so it treats every key as one of them.
const MAX_MEMBERS: usize = 128;

pub(super) struct Overflow {
    groups: HashTable<Group>,
    pub(super) counters: usize,
    max_counters: usize,
}

struct Group {
    name: u64,
    counters: Vec<SharedCounter>,
}

/// Identifies a shared counter. It is valid during one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedCounterId {
    group: u64,
    nth: usize,
}

pub(super) struct SharedCounter {
    pub(super) state: State,
    /// Strictest quota of all requests since the counter was created.
    strictest: Quota,
    /// Instant at which a request last used the counter. The counter is not removed at that same instant.
    used_at: Micros,
    /// Instant at which each of its keys would have a full bucket of its own. The shared bucket may be full sooner,
    /// because it has the smallest burst of all keys.
    full_at: Micros,
    /// Keys that have admissions in the counter, by their hash.
    members: HashMap<u64, Member, foldhash::fast::RandomState>,
    /// True if the counter may count admissions of keys that are not in `members`.
    crowded: bool,
}

/// Admissions of one key in a shared counter.
struct Member {
    /// Number of admissions that were not refunded. Some may have expired.
    admissions: u32,
    /// Time at which the last of these admissions expires.
    until: Micros,
}

impl SharedCounter {
    fn new(state: State, quota: &Quota, now: Micros) -> Self {
        let mut counter = SharedCounter {
            state,
            strictest: *quota,
            used_at: now,
            full_at: Micros::ZERO,
            members: HashMap::default(),
            crowded: false,
        };
        counter.touch(quota, now);
        counter
    }

    /// Records that a request with this quota uses the counter.
    fn touch(&mut self, quota: &Quota, now: Micros) {
        self.used_at = now;
        if quota.algorithm().refills() {
            self.full_at = self.full_at.max(now.plus(quota.horizon()));
        }
    }

    /// Returns whether the counter may count something of `key`. Denied attempts are not tracked.
    pub(super) fn may_count(&self, key: &Key, now: Micros) -> bool {
        let known = !self.crowded && self.strictest.count() == Count::Admitted;
        !known || self.members.get(&key.hash()).is_some_and(|member| member.until > now)
    }

    /// Records an admission of `key`.
    pub(super) fn admitted(&mut self, key: &Key, quota: &Quota, now: Micros) {
        if self.members.len() >= MAX_MEMBERS && !self.members.contains_key(&key.hash()) {
            self.members.retain(|_, member| member.until > now);
            self.crowded |= self.members.len() >= MAX_MEMBERS;
        }
        if !self.crowded {
            let new = Member { admissions: 0, until: Micros::ZERO };
            let member = self.members.entry(key.hash()).or_insert(new);
            member.admissions = member.admissions.saturating_add(1);
            member.until = member.until.max(now.plus(quota.horizon()));
        }
    }

    /// Records a correction of an admission of `key`.
    pub(super) fn corrected(&mut self, key: &Key, correction: Correction, now: Micros) {
        let Some(member) = self.members.get_mut(&key.hash()) else { return };
        match correction {
            Correction::Extend => member.until = member.until.max(now.plus(self.strictest.horizon())),
            Correction::Cost(0) => {
                member.admissions = member.admissions.saturating_sub(1);
                if member.admissions == 0 {
                    self.members.remove(&key.hash());
                }
            }
            Correction::Cost(_) => {}
        }
    }

    /// Returns the quota with which this counter evaluates a check that has `quota`.
    pub(super) fn quota(&mut self, quota: &Quota) -> Quota {
        if !quota.algorithm().refills() && quota.count() == Count::Admitted {
            return *quota;
        }
        let strict = quota.stricter(&self.strictest);
        // If the bucket refills more slowly from now on, permits are missing for longer than `members` records.
        self.crowded |= strict.horizon() > self.strictest.horizon() || strict.rate() != self.strictest.rate();
        self.strictest = strict;
        strict
    }

    /// Returns whether a key can leave with a copy of this counter. Attempts are counted only up to the lowest limit of
    /// all keys, so the copy may count less than the key has used.
    pub(super) fn can_be_left(&self) -> bool {
        let strictest = &self.strictest;
        strictest.count() == Count::Admitted && !strictest.is_held() && !strictest.algorithm().refills()
    }

    /// Returns whether a request fits now and was not admitted before.
    pub(super) fn fits(&mut self, now: Micros, asked: CheckInput<'_>) -> bool {
        let now = self.state.roll(now, asked.quota);
        self.state.consider(now, asked) == Evaluation::Fits
    }

    /// Returns whether an admission can be corrected without an effect on the other keys. In a bucket it cannot:
    /// permits refilled since the admission belong to the other keys too, and the maximum debt depends on the burst of
    /// each key.
    pub(super) fn corrects(&self) -> bool {
        self.strictest.count() == Count::Admitted && !self.strictest.algorithm().refills()
    }

    fn suits(&self, quota: &Quota) -> bool {
        self.state.suits(quota) && self.strictest.count() == quota.count()
    }

    fn is_idle(&self, now: Micros) -> bool {
        self.state.idle_at() <= now && self.full_at <= now && self.used_at < now
    }
}

impl Overflow {
    pub(super) fn new(max_keys: usize) -> Self {
        Overflow {
            groups: HashTable::new(),
            counters: 0,
            max_counters: (max_keys / KEYS_PER_COUNTER).max(MIN_COUNTERS),
        }
    }

    /// Returns the group of `key`. It depends on bits of the hash that select neither a shard nor a bucket.
    fn group(key: &Key) -> u64 {
        key.hash_of_rule((key.hash() >> 48) % GROUPS_PER_RULE)
    }

    fn counters_of(&mut self, key: &Key) -> Option<&mut Vec<SharedCounter>> {
        let name = Self::group(key);
        Some(&mut self.groups.find_mut(name, |group| group.name == name)?.counters)
    }

    /// Finds the counter of `key` for `quota`, if it counts anything.
    pub(super) fn find(&mut self, key: &Key, quota: &Quota, now: Micros) -> Option<SharedCounterId> {
        let counters = self.counters_of(key)?;
        let nth = counters.iter().position(|counter| counter.suits(quota))?;
        if counters[nth].is_idle(now) {
            return None;
        }
        counters[nth].touch(quota, now);
        Some(SharedCounterId { group: Self::group(key), nth })
    }

    /// Creates the counter of `key` for `quota`; `None` if there are too many counters. `state` is blank.
    pub(super) fn create(
        &mut self,
        key: &Key,
        quota: &Quota,
        state: State,
        now: Micros,
    ) -> Option<SharedCounterId> {
        let new = SharedCounter::new(state, quota, now);
        let group = Self::group(key);
        if let Some(counters) = self.counters_of(key) {
            // A counter that suits `quota` must be idle here, because `find` returns every other suitable counter.
            let idle = counters.iter().position(|counter| counter.suits(quota));
            let idle = idle.or_else(|| counters.iter().position(|counter| counter.is_idle(now)));
            if let Some(nth) = idle {
                counters[nth] = new;
                return Some(SharedCounterId { group, nth });
            }
            if counters.len() >= MAX_COUNTERS_PER_GROUP {
                return None;
            }
        }
        if self.counters >= self.max_counters && !self.drop_idle_group(group, now) {
            return None;
        }
        self.counters += 1;
        let entry = self.groups.entry(group, |existing| existing.name == group, |existing| existing.name);
        let counters =
            &mut entry.or_insert_with(|| Group { name: group, counters: Vec::new() }).into_mut().counters;
        counters.reserve_exact(1);
        counters.push(new);
        Some(SharedCounterId { group, nth: counters.len() - 1 })
    }

    /// Returns whether there is room for one more counter of `key`.
    pub(super) fn has_room(&mut self, key: &Key, now: Micros) -> bool {
        let full = self.counters >= self.max_counters;
        match self.counters_of(key) {
            Some(counters) => {
                let idle = counters.iter().any(|counter| counter.is_idle(now));
                idle || (!full && counters.len() < MAX_COUNTERS_PER_GROUP)
            }
            None => !full,
        }
    }

    /// Drops an idle group, other than `keep`, if a small sample of the groups has one; returns whether it did.
    fn drop_idle_group(&mut self, keep: u64, now: Micros) -> bool {
        let buckets = self.groups.num_buckets();
        let first = keep as usize % buckets.max(1);
        let around = (first..buckets).chain(0..first);
        let mut sample = around.filter(|bucket| self.groups.get_bucket(*bucket).is_some()).take(SAMPLE);
        let idle = sample.find(|bucket| {
            self.groups.get_bucket(*bucket).is_some_and(|group| {
                group.name != keep && group.counters.iter().all(|counter| counter.is_idle(now))
            })
        });
        let Some(Ok(entry)) = idle.map(|bucket| self.groups.get_bucket_entry(bucket)) else { return false };
        let (group, _) = entry.remove();
        self.counters -= group.counters.len();
        true
    }

    /// Returns a counter that was found during this request.
    #[expect(clippy::expect_used, reason = "the shard is locked since the counter was found")]
    pub(super) fn at(&mut self, id: SharedCounterId) -> &mut SharedCounter {
        let group = self.groups.find_mut(id.group, |group| group.name == id.group);
        &mut group.expect("a group found under this lock").counters[id.nth]
    }

    /// Returns the counter that made an admission of `key`.
    pub(super) fn counter_of_admission(&mut self, key: &Key, seq: u64) -> Option<&mut SharedCounter> {
        self.counters_of(key)?.iter_mut().find(|counter| counter.state.numbered(seq))
    }

    /// Returns the counter of `key` with the highest usage, among the counters of all windows.
    pub(super) fn fullest(&mut self, key: &Key, now: Micros) -> Option<&mut State> {
        let used =
            self.counters_of(key)?.iter_mut().map(|counter| (counter.state.inspect(now), &mut counter.state));
        used.max_by_key(|(used, _)| *used).map(|(_, state)| state)
    }

    /// Drops the idle counters; returns whether any is left.
    pub(super) fn sweep(&mut self, now: Micros) -> bool {
        let mut left = 0;
        self.groups.retain(|group| {
            group.counters.retain(|counter| !counter.is_idle(now));
            group.counters.iter_mut().for_each(|counter| counter.state.shrink());
            left += group.counters.len();
            !group.counters.is_empty()
        });
        self.counters = left;
        left > 0
    }

    /// Returns the events and bytes of all counters.
    pub(super) fn usage(&self) -> (usize, usize) {
        let counters = self.groups.iter().flat_map(|group| &group.counters);
        let states = counters.map(|SharedCounter { state, members, .. }| {
            let buckets = match members.capacity() {
                0 => 0,
                capacity => (capacity + 1).next_power_of_two(),
            };
            (state.events(), state.heap_bytes() + buckets * (size_of::<(u64, Member)>() + 1))
        });
        let lists = self.groups.iter().map(|group| group.counters.capacity() * size_of::<SharedCounter>());
        let table = size_of::<Overflow>() + self.groups.allocation_size() + lists.sum::<usize>();
        states.fold((0, table), |sum, state| (sum.0 + state.0, sum.1 + state.1))
    }
}
