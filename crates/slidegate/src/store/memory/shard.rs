//! One shard of the keys: a hash table with a maximum number of keys.

use std::fmt;
use std::sync::Arc;

use hashbrown::HashTable;

use super::overflow::{Overflow, SharedCounter, SharedCounterId};
use super::sweep::PERIOD;
use super::{MemoryStats, OnFull};
use crate::algorithm::note_budget::NoteBudget;
use crate::key::KeyText;
use crate::{Correction, Key, Micros, Quota, Settled, Settlement, State};

/// Number of keys in the sample that is searched for an idle key.
pub(super) const SAMPLE: usize = 16;

/// Maximum number of request ids that the sweep forgets in one visit of a key.
const FORGET_STEP: usize = 4_096;

/// Shortest wait in a denial that is caused by a full shard.
const MIN_WAIT: Micros = Micros::from_millis(1);

#[derive(Default)]
pub(super) struct Shard {
    table: HashTable<Slot>,
    /// Latest instant at which this shard evaluated a request.
    pub(super) latest: Micros,
    max_keys: usize,
    /// Number of counters created so far, which is the number of the next counter. Sequence numbers of admissions
    /// contain the lowest 24 bits of the counter's number.
    generation: u64,
    /// Hash of the key that was inserted last. This key is in the table whenever the shard is full.
    youngest: u64,
    /// Keys of the current request that will be inserted if it is admitted.
    pub(super) pending: u32,
    on_full: OnFull,
    /// Shared counters of keys that are not in the table, if there are any. A decision about a key in the table only
    /// checks if this is `None`.
    overflow: Option<Box<Overflow>>,
    /// In a box, so that a shard and its lock fit into one pair of cache lines.
    pub(super) counts: Box<Counts>,
    /// Number of times that the table has moved its slots to other buckets.
    pub(super) layout: u64,
}

#[derive(Default)]
pub(super) struct Counts {
    evicted: u64,
    swept: u64,
    pub(super) shared: u64,
    pub(super) denied_full: u64,
}

/// Key and counter, in a pair of cache lines that the CPU fetches together. An admission writes only one of the two
/// lines.
#[repr(C, align(128))]
struct Slot {
    key: KeyText,
    state: State,
}

const _: () = assert!(size_of::<Slot>() == 128);
const _: () = assert!(size_of::<crate::common::spin_lock::Lock<Shard>>() <= 128);

impl Shard {
    pub(super) fn new(max_keys: usize, on_full: OnFull) -> Self {
        Shard { max_keys, on_full, ..Shard::default() }
    }

    /// Returns the instant to evaluate at. The caller read the clock before it took the lock, so `now` may be before
    /// the latest instant of the shard. The result never is.
    #[inline]
    pub(super) fn instant(&mut self, now: Micros) -> Micros {
        self.latest = self.latest.max(now);
        self.latest
    }

    #[inline]
    pub(super) fn find(&mut self, key: &Key) -> Option<&mut State> {
        let slot = self.table.find_mut(key.hash(), |slot| slot.key == *key.text())?;
        Some(&mut slot.state)
    }

    /// Creates a counter that is not in the table yet.
    pub(super) fn fresh(&self, quota: &Quota) -> State {
        State::of_generation(quota, self.generation)
    }

    /// Returns the bucket of `key`. It is valid until the table changes.
    pub(super) fn bucket(&self, key: &Key) -> Option<usize> {
        self.table.find_bucket_index(key.hash(), |slot| slot.key == *key.text())
    }

    pub(super) fn peek(&self, bucket: usize) -> Option<&State> {
        self.table.get_bucket(bucket).map(|slot| &slot.state)
    }

    #[expect(clippy::expect_used, reason = "the shard is locked since the bucket was found")]
    pub(super) fn at(&mut self, bucket: usize) -> &mut State {
        let slot = self.table.get_bucket_mut(bucket).expect("a bucket found under this lock");
        &mut slot.state
    }

    /// Returns whether a new key can be inserted directly: there is room and no shared counter, or another key is
    /// evicted.
    pub(super) fn is_open(&self) -> bool {
        self.on_full == OnFull::Evict || (self.overflow.is_none() && self.has_room())
    }

    /// Returns whether there is room for one more key, besides the pending ones.
    pub(super) fn has_room(&self) -> bool {
        self.table.len() + (self.pending as usize) < self.max_keys
    }

    pub(super) fn shares(&self) -> bool {
        self.on_full == OnFull::Share
    }

    /// Returns the bucket of an idle key that is not `in_use`, from a small sample.
    pub(super) fn idle_near(&self, hash: u64, now: Micros, in_use: impl Fn(usize) -> bool) -> Option<usize> {
        let idle = |state: &State| state.idle_at() <= now;
        self.sample(hash).find(|(bucket, state)| idle(state) && !in_use(*bucket)).map(|(bucket, _)| bucket)
    }

    /// Drops an idle key.
    pub(super) fn drop_idle(&mut self, bucket: usize) {
        if let Ok(entry) = self.table.get_bucket_entry(bucket) {
            entry.remove();
            self.counts.swept += 1;
        }
    }

    /// Estimates the time until there is room: until the first key of the sample is idle, but no longer than until the
    /// next sweep, which may drop other keys.
    pub(super) fn wait_near(&self, hash: u64, now: Micros) -> Micros {
        let idle_at = self.sample(hash).map(|(_, state)| state.idle_at()).min();
        idle_at.unwrap_or(now).since(now).clamp(MIN_WAIT, PERIOD.into())
    }

    /// Returns a sample of the keys, from the buckets that follow a position given by this hash.
    fn sample(&self, hash: u64) -> impl Iterator<Item = (usize, &State)> {
        let buckets = self.table.num_buckets();
        let first = hash as usize % buckets.max(1);
        let around = (first..buckets).chain(0..first);
        let states = around.filter_map(|bucket| Some((bucket, &self.table.get_bucket(bucket)?.state)));
        states.take(SAMPLE)
    }

    /// Finds the shared counter of a key that is not in the table, if it counts anything.
    pub(super) fn find_shared(&mut self, key: &Key, quota: &Quota, now: Micros) -> Option<SharedCounterId> {
        self.overflow.as_mut()?.find(key, quota, now)
    }

    /// Creates a shared counter; `None` if there are too many.
    pub(super) fn create_shared(&mut self, key: &Key, quota: &Quota, now: Micros) -> Option<SharedCounterId> {
        // Another key of this request may have a new counter with the current number, which is inserted later. The
        // shared counter gets a different number, so that a settlement of that key does not find the shared counter.
        self.generation += 1;
        let state = self.fresh(quota);
        let overflow = self.overflow.get_or_insert_with(|| Box::new(Overflow::new(self.max_keys)));
        let id = overflow.create(key, quota, state, now)?;
        self.generation += 1;
        Some(id)
    }

    pub(super) fn has_room_to_share(&mut self, key: &Key, now: Micros) -> bool {
        self.overflow.as_mut().is_none_or(|overflow| overflow.has_room(key, now))
    }

    #[expect(clippy::expect_used, reason = "the shard is locked since the counter was found")]
    pub(super) fn shared_at(&mut self, id: SharedCounterId) -> &mut SharedCounter {
        self.overflow.as_mut().expect("a shared counter found under this lock").at(id)
    }

    /// Creates a counter for a key that leaves its shared counter.
    pub(super) fn summary_of(&mut self, id: SharedCounterId) -> State {
        let generation = self.generation;
        self.shared_at(id).state.summary(generation)
    }

    /// Returns the counter of `key`: its own, or a shared one.
    pub(super) fn find_any(&mut self, key: &Key, now: Micros) -> Option<&mut State> {
        match self.bucket(key) {
            Some(bucket) => Some(self.at(bucket)),
            None => self.overflow.as_mut()?.fullest(key, now),
        }
    }

    pub(super) fn settle(
        &mut self,
        settlement: &Settlement,
        now: Micros,
        notes: &Arc<NoteBudget>,
    ) -> Settled {
        let Settlement { key, entry, correction } = settlement;
        let settled = match self.find(key) {
            Some(state) => state.correct_within(now, *entry, *correction, Some(notes)),
            None => Settled::Gone,
        };
        let Some(overflow) = self.overflow.as_mut().filter(|_| settled == Settled::Gone) else {
            return settled;
        };
        match overflow.counter_of_admission(key, entry.seq) {
            Some(counter) if counter.corrects() => {
                let settled = counter.state.correct_within(now, *entry, *correction, Some(notes));
                if settled == Settled::Done {
                    counter.corrected(key, *correction, now);
                    self.charge_more(key, entry.cost, *correction, now);
                }
                settled
            }
            _ => Settled::Gone,
        }
    }

    /// Adds the increase to the key's own counter. A key that has left its shared counter took a copy of it, and the
    /// copy must not count less than the corrected cost.
    fn charge_more(&mut self, key: &Key, from: u64, correction: Correction, now: Micros) {
        if let Correction::Cost(to) = correction
            && to > from
            && let Some(state) = self.find(key)
        {
            state.charge(now, to - from);
        }
    }

    /// Inserts a counter for `key`, or replaces the existing one. If the shard is full and the policy is to evict, it
    /// drops a key first.
    pub(super) fn insert(&mut self, key: &Key, state: State, now: Micros) {
        self.generation += 1;
        if let Some(existing) = self.find(key) {
            *existing = state;
            return;
        }
        if self.table.len() >= self.max_keys && self.on_full == OnFull::Evict {
            self.make_room(key.hash(), now);
        }
        self.youngest = key.hash();
        let slot = Slot { key: key.text().clone(), state };
        let full = self.table.len() == self.table.capacity();
        self.table.insert_unique(key.hash(), slot, |slot| Key::hash_of(&slot.key));
        // If the table was full, the insertion has moved its slots, unless the new key reused the slot of a removed
        // key. In that case the table is still full.
        if full && self.table.len() < self.table.capacity() {
            self.layout += 1;
        }
    }

    pub(super) fn remove(&mut self, key: &Key) -> bool {
        match self.table.find_entry(key.hash(), |slot| slot.key == *key.text()) {
            Ok(entry) => {
                entry.remove();
                true
            }
            Err(_) => false,
        }
    }

    /// Drops the idle keys among the `n` buckets from `start` on; returns the bucket to continue with, if more buckets
    /// follow.
    ///
    /// It works in steps, so that no decision waits for a whole shard. If the table grows between two steps, the next
    /// sweep finds the idle keys that this sweep has missed.
    pub(super) fn sweep(&mut self, start: usize, n: usize, now: Micros) -> Option<usize> {
        if start == 0 && self.overflow.as_mut().is_some_and(|overflow| !overflow.sweep(now)) {
            self.overflow = None;
        }
        let end = (start + n).min(self.table.num_buckets());
        for bucket in start..end {
            #[cfg(test)]
            crate::common::spin_lock::holds::visit();
            let Some(slot) = self.table.get_bucket_mut(bucket) else { continue };
            slot.state.forget_notes(self.latest, FORGET_STEP);
            slot.state.shrink();
            if slot.state.idle_at() <= now
                && let Ok(entry) = self.table.get_bucket_entry(bucket)
            {
                entry.remove();
                self.counts.swept += 1;
            }
        }
        if end < self.table.num_buckets() {
            return Some(end);
        }
        if self.table.len() * 4 < self.table.capacity() {
            let keep = self.table.len() * 2;
            self.table.shrink_to(keep, |slot| Key::hash_of(&slot.key));
            self.layout += 1;
        }
        None
    }

    /// Makes the next step of a count assume that slots have moved.
    #[cfg(test)]
    pub(super) fn mark_moved(&mut self) {
        self.layout += 1;
    }

    pub(super) fn buckets(&self) -> usize {
        self.table.num_buckets()
    }

    /// Returns the key in this bucket, if there is one.
    pub(super) fn key_at(&self, bucket: usize) -> Option<&KeyText> {
        #[cfg(test)]
        crate::common::spin_lock::holds::visit();
        self.table.get_bucket(bucket).map(|slot| &slot.key)
    }

    /// Returns the events and heap bytes of the key in this bucket, if there is one.
    pub(super) fn usage(&self, bucket: usize) -> Option<(usize, usize)> {
        #[cfg(test)]
        crate::common::spin_lock::holds::visit();
        let slot = self.table.get_bucket(bucket)?;
        Some((slot.state.events(), slot.state.heap_bytes() + Key::heap_bytes(&slot.key)))
    }

    /// Returns the figures of this shard, with the given events and heap bytes of its keys.
    pub(super) fn stats(&self, events: usize, heap_bytes: usize) -> MemoryStats {
        let shared = self.overflow.as_ref();
        let (shared_events, shared_bytes) = shared.map_or((0, 0), |overflow| overflow.usage());
        MemoryStats {
            keys: self.table.len(),
            events: events + shared_events,
            evicted: self.counts.evicted,
            swept: self.counts.swept,
            bytes: self.table.allocation_size() + heap_bytes + shared_bytes,
            shared_counters: shared.map_or(0, |overflow| overflow.counters),
            shared: self.counts.shared,
            denied_full: self.counts.denied_full,
            ..MemoryStats::default()
        }
    }

    /// Drops an idle key from the sample near `hash`, or the key that was inserted last if no key of the sample is
    /// idle.
    #[cold]
    fn make_room(&mut self, hash: u64, now: Micros) {
        if let Some(bucket) = self.idle_near(hash, now, |_| false) {
            return self.drop_idle(bucket);
        }
        let youngest = self.youngest;
        if let Ok(entry) = self.table.find_entry(youngest, |slot| Key::hash_of(&slot.key) == youngest) {
            entry.remove();
            self.counts.evicted += 1;
        }
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("keys", &self.table.len()).finish_non_exhaustive()
    }
}
