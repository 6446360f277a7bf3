//! One part of the keys: a hash table with a bound.

use std::cmp::Reverse;
use std::fmt;

use hashbrown::HashTable;

use super::MemoryStats;
use crate::key::KeyText;
use crate::{Key, Micros, Quota, State};

/// How many keys are looked at to find the one that makes room.
const SAMPLE: usize = 16;

pub(super) struct Shard {
    table: HashTable<Slot>,
    /// The latest instant anything here was judged at.
    latest: Micros,
    max_keys: usize,
    /// How many states were held so far; numbers the next one.
    held: u64,
    evicted: u64,
    swept: u64,
    /// Number of times that the table has moved its slots to other buckets.
    layout: u64,
}

/// Two cache lines that are fetched together: one that an admission only reads, and one that it writes.
#[repr(C, align(128))]
struct Slot {
    key: KeyText,
    state: State,
}

const _: () = assert!(size_of::<Slot>() == 128);

impl Shard {
    pub(super) fn new(max_keys: usize) -> Self {
        Shard {
            table: HashTable::new(),
            latest: Micros::ZERO,
            max_keys,
            held: 0,
            evicted: 0,
            swept: 0,
            layout: 0,
        }
    }

    /// The instant at which to judge by a clock that was read before the lock was won: what was judged
    /// meanwhile comes first, also in time.
    #[inline]
    pub(super) fn instant(&mut self, now: Micros) -> Micros {
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Latest instant at which this shard judged. It changes while decisions are made.
    pub(super) fn latest(&self) -> Micros {
        self.latest
    }

    #[inline]
    pub(super) fn find(&mut self, key: &Key) -> Option<&mut State> {
        let slot = self.table.find_mut(key.hash(), |slot| slot.key == *key.text())?;
        Some(&mut slot.state)
    }

    /// A state that is not held yet.
    pub(super) fn fresh(&self, quota: &Quota) -> State {
        State::of_generation(quota, self.held)
    }

    /// Where `key` is; good until the table next changes.
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

    /// Holds `state` under `key`, in place of what was there; makes room if there is none.
    pub(super) fn insert(&mut self, key: &Key, state: State, now: Micros) {
        self.held += 1;
        if let Some(held) = self.find(key) {
            *held = state;
            return;
        }
        if self.table.len() >= self.max_keys {
            self.make_room(key.hash(), now);
        }
        let slot = Slot { key: key.text().clone(), state };
        let full = self.table.len() == self.table.capacity();
        self.table.insert_unique(key.hash(), slot, |slot| Key::hash_of(&slot.key));
        // A full table has moved its slots, unless the new one took the place of a removed one: then it is still full.
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

    /// Drops what is idle among the `n` buckets from `start` on; where to go on, if there are more.
    ///
    /// In steps, so that no decision waits for a whole shard. A table that grew meanwhile is swept next time.
    pub(super) fn sweep(&mut self, start: usize, n: usize, now: Micros) -> Option<usize> {
        let end = (start + n).min(self.table.num_buckets());
        for bucket in start..end {
            #[cfg(test)]
            super::lock::holds::visit();
            let Some(slot) = self.table.get_bucket_mut(bucket) else { continue };
            slot.state.shrink();
            if slot.state.idle_at() <= now
                && let Ok(entry) = self.table.get_bucket_entry(bucket)
            {
                entry.remove();
                self.swept += 1;
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

    /// Changes whenever slots move to other buckets.
    pub(super) fn layout(&self) -> u64 {
        self.layout
    }

    /// Makes the next step of a count believe that slots have moved.
    #[cfg(test)]
    pub(super) fn mark_moved(&mut self) {
        self.layout += 1;
    }

    pub(super) fn buckets(&self) -> usize {
        self.table.num_buckets()
    }

    /// Events and heap bytes of the key in this bucket, if there is one.
    pub(super) fn weigh(&self, bucket: usize) -> Option<(usize, usize)> {
        #[cfg(test)]
        super::lock::holds::visit();
        let slot = self.table.get_bucket(bucket)?;
        Some((slot.state.events(), slot.state.heap_bytes() + Key::heap_bytes(&slot.key)))
    }

    /// Figures of this shard, with the events and the heap bytes of its keys.
    pub(super) fn stats(&self, events: usize, heap_bytes: usize) -> MemoryStats {
        MemoryStats {
            keys: self.table.len(),
            events,
            evicted: self.evicted,
            swept: self.swept,
            bytes: self.table.allocation_size() + heap_bytes,
        }
    }

    /// Drops an idle key, or else the youngest, of those next to `start`.
    #[cold]
    fn make_room(&mut self, start: u64, now: Micros) {
        let buckets = self.table.num_buckets();
        let first = start as usize % buckets.max(1);
        let around = (first..buckets).chain(0..first);
        let sample = around.filter_map(|bucket| {
            let state = &self.table.get_bucket(bucket)?.state;
            Some((state.idle_at() > now, Reverse(state.generation()), bucket))
        });
        let Some((live, _, bucket)) = sample.take(SAMPLE).min() else { return };
        if let Ok(entry) = self.table.get_bucket_entry(bucket) {
            entry.remove();
        }
        if live {
            self.evicted += 1;
        } else {
            self.swept += 1;
        }
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("keys", &self.table.len()).finish_non_exhaustive()
    }
}
