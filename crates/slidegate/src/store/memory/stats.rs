//! Statistics of a memory store, counted in small steps.
//!
//! A decision waits while the lock of its shard is held. So the count holds a lock for [`STEP`] buckets at a time, and
//! [`Inner::in_turns`](super::Inner::in_turns) visits every other shard before it returns to the same one: a decision
//! that finds its shard locked gets the lock at the next release, and does not compete with the following step.
//!
//! Slots move when a table grows, shrinks or is cleared of tombstones. A count that continued after such a move would
//! miss some keys and count others twice. So the count of that shard starts again, at most [`MAX_RESTARTS`] times.

use super::shard::Shard;

/// Buckets visited under one hold of a shard's lock: about a microsecond. `benches/stats.rs` measures the effect on
/// decisions.
pub(super) const STEP: usize = 32;

/// Restarts of one shard's count, so that a count ends even if slots move often.
pub(super) const MAX_RESTARTS: u32 = 8;

/// Size of a memory store, and the number of keys it has dropped. See [`MemoryStore::stats`](super::MemoryStore::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Keys held.
    pub keys: usize,
    /// Admissions that are stored one by one. Admissions of one microsecond count as one event; an admission with a
    /// large cost may count as several.
    pub events: usize,
    /// Keys that still counted something and were dropped to make room.
    pub evicted: u64,
    /// Idle keys that were dropped.
    pub swept: u64,
    /// Bytes used: tables, logs, request ids and settlements, without the overhead of the allocator.
    pub bytes: usize,
    /// Counters that keys share because the store is full. See [`OnFull::Share`](crate::OnFull::Share).
    pub shared_counters: usize,
    /// Decisions about a key that were made with a shared counter.
    pub shared: u64,
    /// Decisions about a key that were denied because the store was full.
    pub denied_full: u64,
    /// Bytes of request ids and settlements, which are part of `bytes`. Their bound is
    /// [`MemoryOptions::max_note_bytes`](crate::MemoryOptions::max_note_bytes).
    pub note_bytes: usize,
    /// Request ids that were not remembered because `note_bytes` had reached its bound.
    pub ids_dropped: u64,
    /// Settlements and extensions that were not carried out because `note_bytes` had reached its bound.
    pub settlements_dropped: u64,
}

impl MemoryStats {
    pub(super) fn add(&mut self, other: MemoryStats) {
        self.keys += other.keys;
        self.events += other.events;
        self.evicted += other.evicted;
        self.swept += other.swept;
        self.bytes += other.bytes;
        self.shared_counters += other.shared_counters;
        self.shared += other.shared;
        self.denied_full += other.denied_full;
    }
}

/// Unfinished count of one shard.
#[derive(Default)]
pub(super) struct ShardCount {
    /// Bucket to continue with.
    next: usize,
    /// Layout of the table at the previous step. Another layout means that slots have moved.
    layout: u64,
    restarts: u32,
    events: usize,
    heap_bytes: usize,
}

impl ShardCount {
    /// Visits the next [`STEP`] buckets; returns the figures of the shard after the last one.
    pub(super) fn step(&mut self, shard: &Shard) -> Option<MemoryStats> {
        if self.layout != shard.layout {
            if self.next > 0 && self.restarts < MAX_RESTARTS {
                *self = ShardCount { restarts: self.restarts + 1, ..ShardCount::default() };
            }
            self.layout = shard.layout;
        }
        let end = self.next.saturating_add(STEP).min(shard.buckets());
        for bucket in self.next..end {
            if let Some((events, heap_bytes)) = shard.usage(bucket) {
                self.events += events;
                self.heap_bytes += heap_bytes;
            }
        }
        self.next = end;
        (end == shard.buckets()).then(|| shard.stats(self.events, self.heap_bytes))
    }
}
