//! In-memory store: exact counting within one process.
//!
//! Keys are spread over shards by their hash. A shard is a hash table behind a lock. A request locks the shards of its
//! keys in ascending order, reads the time once, and evaluates the pure algorithms. So a request with several keys is
//! as atomic as a request with one key, and the lock of a shard orders the requests that share a key. A shard remembers
//! the latest instant at which it evaluated. So the later of two requests for one key never has the earlier instant. If
//! the clock steps back, the time of the shard stands still until the clock has caught up.
//!
//! # Memory
//!
//! A key takes 128 bytes, its share of the unused slots of the table, and its text if that is longer than 24 bytes. An
//! admission in an exact window costs eight bytes. Idle keys, which count nothing any more, are swept in the
//! background. When a shard is full, the store drops an idle key from a small sample of the shard. If no key of the
//! sample is idle, [`OnFull`] decides: by default new keys share counters (`overflow.rs`), and no key in the table is
//! forgotten.
//! Request ids and settlements have a byte budget of their own (`algorithm/note_budget.rs`).

mod keys;
mod locked_shards;
mod options;
mod overflow;
mod shard;
mod stats;
mod sweep;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_utils::CachePadded;

use smallvec::SmallVec;

pub use self::keys::{KeyUsage, MemoryKeyCursor, MemoryKeyPage};
use self::locked_shards::LockedShards;
pub use self::options::{DEFAULT_MAX_KEYS, DEFAULT_MAX_NOTE_BYTES, MemoryOptions, OnFull};
use self::shard::Shard;
pub use self::stats::MemoryStats;
use self::stats::ShardCount;
use crate::algorithm::evaluate;
use crate::algorithm::note_budget::NoteBudget;
use crate::common::spin_lock::Lock;
use crate::{
    Audit, BatchVerdicts, Checks, Clock, Error, Inspection, Key, MAX_INSPECTED, Micros, Receipt, Settlement,
    Store, SystemClock, WindowEntry,
};

const MAX_SHARDS: usize = 64;

/// Number of buckets that the sweep visits under one hold of a shard's lock.
const SWEEP_STEP: usize = 512;

/// Number of rounds of steps after which a thread that visits all shards pauses: about half a millisecond of work, well
/// below a time slice of the operating system's scheduler.
const PAUSE_EVERY: u32 = 8;

/// Length of this pause while decisions are made. The thread then works a tenth of the time, and so takes little of the
/// memory bandwidth and of the CPU cache from the decisions. `benches/stats.rs` measures the effect.
const PAUSE: Duration = Duration::from_millis(5);

/// A [`Store`] that counts in this process. Clones share one store.
///
/// ```
/// use slidegate::{store::{Checks, Check, Outcome}, Key, MemoryStore, Quota, Store};
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let store = MemoryStore::new();
/// let check = Check::new(Key::new("per-user", [("user", "alice")]), Quota::per_minute(100)?, 1);
/// let batch_verdicts = store.admit(&[Checks::new([check])?]).await?;
/// assert_eq!(batch_verdicts[0].verdicts[0].outcome, Outcome::Charged);
/// # Ok::<(), slidegate::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct MemoryStore<C: Clock = SystemClock> {
    inner: Arc<Inner<C>>,
}

#[derive(Debug)]
struct Inner<C> {
    shards: Box<[CachePadded<Lock<Shard>>]>,
    clock: C,
    notes: Arc<NoteBudget>,
}

impl MemoryStore {
    /// Creates a store with the system clock, room for a million keys, and a background sweep.
    pub fn new() -> Self {
        Self::with_max_keys(DEFAULT_MAX_KEYS)
    }

    /// Creates a store with room for `max_keys` keys, the system clock, and a background sweep.
    pub fn with_max_keys(max_keys: usize) -> Self {
        Self::with_options(MemoryOptions { max_keys, ..MemoryOptions::default() })
    }

    /// Creates a store with the given bounds, the system clock, and a background sweep.
    pub fn with_options(options: MemoryOptions) -> Self {
        let store = Self::with_clock_and_options(SystemClock::new(), options);
        sweep::in_background(Arc::downgrade(&store.inner));
        store
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

share_by_clone!(MemoryStore<C: Clock>);

impl<C: Clock> MemoryStore<C> {
    /// Creates a store with the given clock and without a background sweep: see [`MemoryStore::sweep`].
    ///
    /// Each shard has its own bound: an equal part of `max_keys`, rounded up.
    pub fn with_clock(clock: C, max_keys: usize) -> Self {
        Self::with_clock_and_options(clock, MemoryOptions { max_keys, ..MemoryOptions::default() })
    }

    /// Creates a store with the given clock and bounds, and without a background sweep.
    pub fn with_clock_and_options(clock: C, options: MemoryOptions) -> Self {
        let MemoryOptions { max_keys, on_full, max_note_bytes } = options;
        let shards = (max_keys / 64).clamp(1, MAX_SHARDS).next_power_of_two();
        let keys_per_shard = max_keys.div_ceil(shards).max(1);
        MemoryStore {
            inner: Arc::new(Inner {
                shards: (0..shards)
                    .map(|_| CachePadded::new(Lock::new(Shard::new(keys_per_shard, on_full))))
                    .collect(),
                clock,
                notes: Arc::new(NoteBudget::new(max_note_bytes)),
            }),
        }
    }

    /// Drops the idle keys, shard by shard.
    pub fn sweep(&self) {
        self.inner.sweep();
    }

    /// Counts `key` again from its entries, and reports differences from its running total. Returns `None` if the key
    /// has no counter of its own, even if a shared counter counts it. Fixed windows and buckets have only a total.
    /// Expired entries are not removed.
    pub fn audit(&self, key: &Key) -> Option<Audit> {
        let mut shard = self.inner.shard(key).lock();
        let at = shard.instant(self.inner.clock.now());
        let (stored, counted, discrepancies) = shard.find(key)?.audit(at);
        Some(Audit { at, counted, stored, expires_after: None, discrepancies, repaired: false })
    }

    /// Returns how much the store holds, and how many keys it has dropped.
    ///
    /// The call visits every key, so it belongs on a blocking thread, not on an async worker. A million keys take tens of
    /// milliseconds of work. Decisions continue meanwhile: each lock is held for a few dozen keys at a time, and while
    /// decisions are made the call pauses nine tenths of the time.
    ///
    /// While no decision runs, the figures are exact. Otherwise they belong to different instants:
    ///
    /// - `keys`, `evicted` and `swept` of one shard belong to one instant, which differs from shard to shard.
    /// - `events` and the logs in `bytes` count each key as it was when it was visited. A key that exists during the
    ///   whole call counts once; a key that is added or removed meanwhile may or may not count.
    /// - If the table of one shard is reorganised more than eight times during one call, some of its keys may count
    ///   twice or not at all.
    pub fn stats(&self) -> MemoryStats {
        let mut stats = MemoryStats::default();
        self.inner.in_turns(|shard, count: &mut ShardCount| {
            let counted = count.step(shard);
            counted.into_iter().for_each(|counted| stats.add(counted));
            counted.is_none()
        });
        (stats.note_bytes, stats.ids_dropped, stats.settlements_dropped) = self.inner.notes.counts();
        stats
    }
}

impl<C: Clock> Store for MemoryStore<C> {
    #[inline]
    async fn admit(&self, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        Ok(self.inner.admit(batch))
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        Ok(self.inner.settle(settlements))
    }

    /// For a key in a shared counter, the result includes the permits of the other keys in that counter.
    async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        Ok(self.inner.inspect(key))
    }

    /// A shared counter is not reset, because it counts other keys too.
    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        Ok(self.inner.shard(key).lock().remove(key))
    }
}

impl<C: Clock> Inner<C> {
    #[inline]
    fn admit(&self, batch: &[Checks]) -> BatchVerdicts {
        if let [checks] = batch
            && let [check] = checks.as_slice()
            && !checks.is_peek()
        {
            let now = self.clock.now();
            let mut shard = self.shard(&check.key).lock();
            let now = shard.instant(now);
            if let Some(state) = shard.find(&check.key)
                && state.suits(&check.quota)
            {
                return SmallVec::from_buf([evaluate::evaluate_one(checks, now, state, Some(&self.notes))]);
            }
        }
        self.admit_all(batch)
    }

    #[cold]
    fn admit_all(&self, batch: &[Checks]) -> BatchVerdicts {
        let mut locked = self.lock(batch.iter().flat_map(Checks::as_slice).map(|check| &check.key));
        let now = locked.instant(self.clock.now());
        batch.iter().map(|checks| locked.evaluate(checks, now)).collect()
    }

    fn settle(&self, settlements: &[Settlement]) -> Receipt {
        let mut locked = self.lock(settlements.iter().map(|settlement| &settlement.key));
        let now = locked.instant(self.clock.now());
        let settled = settlements.iter().map(|s| locked.shard(&s.key).settle(s, now, &self.notes));
        Receipt { at: now, settled: settled.collect() }
    }

    fn inspect(&self, key: &Key) -> Option<Inspection> {
        let mut shard = self.shard(key).lock();
        let now = shard.instant(self.clock.now());
        let state = shard.find_any(key, now)?;
        let used = state.inspect(now);
        if used == 0 {
            return None;
        }
        let entries = state.entries().into_iter().map(|(at, cost, leaves)| WindowEntry {
            at,
            cost,
            leaves_after: leaves.since(now),
        });
        Some(Inspection {
            at: now,
            used,
            reset_after: state.empty_at().since(now),
            entries: entries.take(MAX_INSPECTED).collect(),
            capacity: state.capacity(),
        })
    }

    fn sweep(&self) {
        self.in_turns(|shard, start: &mut usize| {
            let next = shard.sweep(*start, SWEEP_STEP, self.clock.now());
            *start = next.unwrap_or_default();
            next.is_some()
        });
    }

    /// Calls `step` once per round for each unfinished shard, under the shard's lock. A shard is finished when `step`
    /// returns false. `T` is the progress in one shard.
    ///
    /// Two steps in a row in one shard would leave a waiting decision no time to take the lock between them. The thread
    /// pauses at intervals, with no lock held: for [`PAUSE`] if decisions were made since the last pause, otherwise it
    /// only yields its core. Without these pauses, the kernel of a busy machine would suspend the thread in the middle
    /// of a step, and the decisions of that shard would wait until the thread runs again.
    fn in_turns<T: Default>(&self, mut step: impl FnMut(&mut Shard, &mut T) -> bool) {
        let mut unfinished: Vec<(&Lock<Shard>, T)> =
            self.shards.iter().map(|shard| (&**shard, T::default())).collect();
        let (mut latest, mut latest_at_pause) = (Micros::ZERO, None);
        for round in 1.. {
            unfinished.retain_mut(|(shard, progress)| {
                let mut shard = shard.lock();
                latest = latest.max(shard.latest);
                step(&mut shard, progress)
            });
            if unfinished.is_empty() {
                return;
            }
            if round % PAUSE_EVERY == 0 {
                match latest_at_pause.replace(latest) {
                    Some(before) if before < latest => thread::sleep(PAUSE),
                    _ => thread::yield_now(),
                }
            }
        }
    }

    /// The hash table uses the low bits of a hash and the top seven, so the shard uses other bits.
    #[inline]
    fn shard_index(&self, key: &Key) -> usize {
        (key.hash() >> 40) as usize & (self.shards.len() - 1)
    }

    #[inline]
    fn shard(&self, key: &Key) -> &Lock<Shard> {
        &self.shards[self.shard_index(key)]
    }

    /// Locks the shards of `keys`, in ascending order so that two callers never wait for each other.
    fn lock<'k>(&self, keys: impl Iterator<Item = &'k Key>) -> LockedShards<'_, C> {
        let mut indices: SmallVec<[usize; 8]> = keys.map(|key| self.shard_index(key)).collect();
        indices.sort_unstable();
        indices.dedup();
        LockedShards {
            inner: self,
            shards: indices.into_iter().map(|index| (index, self.shards[index].lock())).collect(),
        }
    }
}
