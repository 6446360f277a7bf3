//! The embedded store: exact, in this process, with no other program.
//!
//! Keys are spread over shards by their hash; a shard is a hash table behind a lock. An ask locks the shards
//! of its keys in ascending order, reads the time once, and lets the pure algorithms judge. So an ask over
//! several keys is as atomic as one over one, and two asks that share a key are ordered by its lock. A shard
//! remembers the latest instant it judged at: of two asks for one key, the later one never has the earlier
//! instant, and a clock that steps back stands still until it has caught up.
//!
//! # Memory
//!
//! A key costs 128 bytes, its share of the table's slack, and its text if that is longer than 24 bytes; an
//! admission in an exact window costs eight. Keys that have nothing left to remember are swept in the
//! background. When a shard is full, an idle key of a small sample makes room. If all of them count something,
//! [`OnFull`] decides: by default new keys share counters (`overflow.rs`), and no key that is held is forgotten.
//! Request ids and settlements have a byte budget of their own (`algorithm/budget.rs`).

mod lock;
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

use self::lock::{Lock, LockGuard};
pub use self::options::{DEFAULT_MAX_KEYS, DEFAULT_MAX_NOTE_BYTES, MemoryOptions, OnFull};
use self::overflow::SharedPlace;
use self::shard::Shard;
use self::stats::Count;
pub use self::stats::MemoryStats;
use crate::algorithm::CheckInput;
use crate::algorithm::evaluate::{self, Counters};
use crate::algorithm::note_budget::NoteBudget;
use crate::{
    Audit, BatchVerdicts, Check, Checks, Clock, Error, Inspection, Key, MAX_INSPECTED, Micros, Outcome,
    Quota, Receipt, Settlement, State, Store, SystemClock, Verdicts, WindowEntry,
};

const MAX_SHARDS: usize = 64;

/// Buckets that the sweep visits under one hold of a shard's lock.
const SWEEP_STEP: usize = 512;

/// Rounds of steps after which a thread that visits all shards pauses: about half a millisecond of work, well below a
/// time slice.
const PAUSE_EVERY: u32 = 8;

/// Length of that pause while decisions are made. The thread then works for a tenth of the time, so that decisions lose
/// little of the memory bandwidth and the cache that they share with it. `benches/stats.rs` measures the effect.
const PAUSE: Duration = Duration::from_millis(5);

/// Counts in this process. Clones share one store.
///
/// ```
/// use slidegate::{Checks, Check, Key, MemoryStore, Outcome, Quota, Store};
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let store = MemoryStore::new();
/// let check = Check::new(Key::new("per-user", [("user", "alice")]), Quota::per_minute(100)?, 1);
/// let readings = store.admit(&[Checks::new([check])?]).await?;
/// assert_eq!(readings[0].verdicts[0].outcome, Outcome::Charged);
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
    /// A store with real time, a million keys, and a background sweep.
    pub fn new() -> Self {
        Self::with_max_keys(DEFAULT_MAX_KEYS)
    }

    /// The same with another bound on its keys.
    pub fn with_max_keys(max_keys: usize) -> Self {
        Self::with_options(MemoryOptions { max_keys, ..MemoryOptions::default() })
    }

    /// The same with other bounds.
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

impl<C: Clock> Clone for MemoryStore<C> {
    fn clone(&self) -> Self {
        MemoryStore { inner: Arc::clone(&self.inner) }
    }
}

impl<C: Clock> MemoryStore<C> {
    /// A store on the given clock, which sweeps only when told to: see [`MemoryStore::sweep`].
    ///
    /// The bound holds per shard, each with its share of `max_keys`, rounded up.
    pub fn with_clock(clock: C, max_keys: usize) -> Self {
        Self::with_clock_and_options(clock, MemoryOptions { max_keys, ..MemoryOptions::default() })
    }

    /// The same with other bounds.
    pub fn with_clock_and_options(clock: C, options: MemoryOptions) -> Self {
        let MemoryOptions { max_keys, on_full, max_note_bytes } = options;
        let shards = (max_keys / 64).clamp(1, MAX_SHARDS).next_power_of_two();
        let each = max_keys.div_ceil(shards).max(1);
        MemoryStore {
            inner: Arc::new(Inner {
                shards: (0..shards).map(|_| CachePadded::new(Lock::new(Shard::new(each, on_full)))).collect(),
                clock,
                notes: Arc::new(NoteBudget::new(max_note_bytes)),
            }),
        }
    }

    /// Drops the keys that have nothing left to remember, shard by shard.
    pub fn sweep(&self) {
        self.inner.sweep();
    }

    /// Counts `key` again from its entries, and says what does not agree with its running total; none if it is not
    /// held, also if a shared counter counts it. Fixed windows and buckets have only a total. Nothing expires here.
    pub fn audit(&self, key: &Key) -> Option<Audit> {
        let mut shard = self.inner.shard(key).lock();
        let at = shard.instant(self.inner.clock.now());
        let (kept, counted, discrepancies) = shard.find(key)?.audit(at);
        Some(Audit { at, counted, kept, expires_after: None, discrepancies, repaired: false })
    }

    /// Returns how much the store holds, and how many keys it has dropped.
    ///
    /// The call visits every key, so it belongs on a blocking thread, not on an async worker. A million keys take tens of
    /// milliseconds of work. Decisions continue meanwhile: each lock is held for a few dozen keys at a time, and while
    /// decisions are made the call pauses nine tenths of the time.
    ///
    /// While no decision runs, the figures are exact. Otherwise they are not those of one instant:
    ///
    /// - `keys`, `evicted` and `swept` of one shard are those of one instant, which differs from shard to shard.
    /// - `events` and the logs in `bytes` count each key as it was when it was visited. A key that is held from beginning
    ///   to end counts once; one that comes or goes meanwhile may or may not count.
    /// - If the table of one shard is reorganised more than eight times during one call, some of its keys may count
    ///   twice or not at all.
    pub fn stats(&self) -> MemoryStats {
        let mut stats = MemoryStats::default();
        self.inner.in_turns(|shard, count: &mut Count| match count.step(shard) {
            Some(counted) => {
                stats.add(counted);
                false
            }
            None => true,
        });
        let notes = &self.inner.notes;
        stats.note_bytes = notes.used();
        stats.ids_dropped = notes.ids_dropped();
        stats.settlements_dropped = notes.settlements_dropped();
        stats
    }
}

impl<C: Clock> Store for MemoryStore<C> {
    #[inline]
    async fn admit(&self, asks: &[Checks]) -> Result<BatchVerdicts, Error> {
        Ok(self.inner.admit(asks))
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        Ok(self.inner.settle(settlements))
    }

    /// A key that is counted by a shared counter shows everything in it, also what other keys have used.
    async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        Ok(self.inner.inspect(key))
    }

    /// A shared counter is not reset: other keys are counted there too.
    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        Ok(self.inner.shard(key).lock().remove(key))
    }
}

impl<C: Clock> Inner<C> {
    #[inline]
    fn admit(&self, asks: &[Checks]) -> BatchVerdicts {
        if let [ask] = asks
            && let [check] = ask.checks()
            && !ask.is_peek()
        {
            let now = self.clock.now();
            let mut shard = self.shard(&check.key).lock();
            let now = shard.instant(now);
            if let Some(state) = shard.find(&check.key)
                && state.suits(&check.quota)
            {
                return SmallVec::from_buf([evaluate::evaluate_one(ask, now, state, Some(&self.notes))]);
            }
        }
        self.admit_all(asks)
    }

    #[cold]
    fn admit_all(&self, asks: &[Checks]) -> BatchVerdicts {
        let mut locked = self.lock(asks.iter().flat_map(Checks::checks).map(|check| &check.key));
        let now = locked.instant(self.clock.now());
        asks.iter().map(|ask| locked.evaluate(ask, now)).collect()
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
        })
    }

    fn sweep(&self) {
        self.in_turns(|shard, start: &mut usize| {
            let next = shard.sweep(*start, SWEEP_STEP, self.clock.now());
            *start = next.unwrap_or_default();
            next.is_some()
        });
    }

    /// Takes a step in one shard after another, each under its lock, round after round, until `step` returns false for
    /// the shard. `T` is the progress in one shard.
    ///
    /// Two steps in a row under one lock would leave a waiting decision no time to take it in between. The thread pauses
    /// now and then, with no lock held: for [`PAUSE`] if decisions were made since the last pause, otherwise it only
    /// yields its core. Without that the kernel of a busy machine would take the core away in the middle of a step, and
    /// the decisions of that shard would wait until the thread runs again.
    fn in_turns<T: Default>(&self, mut step: impl FnMut(&mut Shard, &mut T) -> bool) {
        let mut open: Vec<(&Lock<Shard>, T)> =
            self.shards.iter().map(|shard| (&**shard, T::default())).collect();
        let (mut latest, mut latest_at_pause) = (Micros::ZERO, None);
        for round in 1.. {
            open.retain_mut(|(shard, progress)| {
                let mut shard = shard.lock();
                latest = latest.max(shard.latest());
                step(&mut shard, progress)
            });
            if open.is_empty() {
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

    /// The table uses the low bits of a hash and the top seven, so the shard uses others.
    #[inline]
    fn shard_index(&self, key: &Key) -> usize {
        (key.hash() >> 40) as usize & (self.shards.len() - 1)
    }

    #[inline]
    fn shard(&self, key: &Key) -> &Lock<Shard> {
        &self.shards[self.shard_index(key)]
    }

    /// Locks the shards of `keys`, in ascending order so that two callers never wait for each other.
    fn lock<'k>(&self, keys: impl Iterator<Item = &'k Key>) -> Locked<'_, C> {
        let mut indices: SmallVec<[usize; 8]> = keys.map(|key| self.shard_index(key)).collect();
        indices.sort_unstable();
        indices.dedup();
        Locked {
            inner: self,
            shards: indices.into_iter().map(|index| (index, self.shards[index].lock())).collect(),
        }
    }
}

/// The shards that a batch touches, locked until it is judged.
struct Locked<'a, C> {
    inner: &'a Inner<C>,
    shards: SmallVec<[(usize, LockGuard<'a, Shard>); 4]>,
}

/// Place of the counter of a check for the length of one ask.
enum Place {
    /// In the table of the n-th locked shard.
    Held { shard: usize, bucket: usize },
    /// Not held yet, or not for this quota.
    Fresh(State),
    /// In a counter that keys of the n-th locked shard share. It is judged by this quota.
    Shared { shard: usize, place: SharedPlace, quota: Quota },
    /// The n-th locked shard cannot hold it, and may have room after this time.
    Full { shard: usize, wait: Micros },
    /// Not found in the n-th locked shard, which is full or has shared counters. `held` if its key is, for another quota.
    Missing { shard: usize, held: bool },
}

type PlaceList = SmallVec<[Place; 2]>;

struct Places<'l, 'a, C> {
    locked: &'l mut Locked<'a, C>,
    places: &'l mut PlaceList,
}

impl<C> Counters for Places<'_, '_, C> {
    fn counter(&mut self, i: usize) -> Result<&mut State, Micros> {
        match &mut self.places[i] {
            Place::Fresh(state) => Ok(state),
            Place::Held { shard, bucket } => Ok(self.locked.shards[*shard].1.at(*bucket)),
            Place::Shared { shard, place, .. } => {
                Ok(&mut self.locked.shards[*shard].1.shared_at(*place).state)
            }
            Place::Full { wait, .. } => Err(*wait),
            Place::Missing { .. } => Err(Micros::ZERO),
        }
    }
}

impl<C: Clock> Locked<'_, C> {
    /// One instant for all of them, not before anything that was judged in any.
    fn instant(&mut self, now: Micros) -> Micros {
        let latest = self.shards.iter_mut().map(|(_, shard)| shard.instant(now)).max().unwrap_or(now);
        for (_, shard) in &mut self.shards {
            shard.instant(latest);
        }
        latest
    }

    fn evaluate(&mut self, ask: &Checks, now: Micros) -> Verdicts {
        let mut places: PlaceList = ask.checks().iter().map(|check| self.find(check)).collect();
        for i in 0..places.len() {
            if let Place::Missing { shard, held } = places[i] {
                places[i] = self.resolve(ask, i, (shard, held), now, &places);
            }
        }
        let presented = |(check, place): (&Check, &Place)| match place {
            Place::Shared { quota, .. } => (*quota, check.key.hash()),
            _ => (check.quota, 0),
        };
        let presented: SmallVec<[(Quota, u64); 2]> =
            ask.checks().iter().zip(&places).map(presented).collect();
        let budget = Some(&self.inner.notes);
        let asked = |i: usize| {
            let (quota, scope) = &presented[i];
            CheckInput { quota, cost: ask.checks()[i].cost, id: ask.id(), scope: *scope, budget }
        };
        let mut counters = Places { locked: self, places: &mut places };
        let reading = evaluate::evaluate_with(ask, now, &mut counters, asked);
        for ((check, place), verdict) in ask.checks().iter().zip(places).zip(&reading.verdicts) {
            self.keep(check, place, now, ask.is_peek(), verdict.outcome);
        }
        for (_, shard) in &mut self.shards {
            shard.end_ask();
        }
        reading
    }

    fn find(&mut self, check: &Check) -> Place {
        let shard = self.nth(&check.key);
        let table = &mut self.shards[shard].1;
        let bucket = table.bucket(&check.key);
        match bucket {
            Some(bucket) if table.peek(bucket).is_some_and(|state| state.suits(&check.quota)) => {
                Place::Held { shard, bucket }
            }
            _ if table.is_open() => {
                if bucket.is_none() {
                    table.add_pending();
                }
                Place::Fresh(table.fresh(&check.quota))
            }
            _ => Place::Missing { shard, held: bucket.is_some() },
        }
    }

    /// Finds a place for a check whose shard is full or has shared counters.
    #[cold]
    fn resolve(
        &mut self,
        ask: &Checks,
        i: usize,
        (shard, held): (usize, bool),
        now: Micros,
        places: &[Place],
    ) -> Place {
        let Check { key, quota, cost, .. } = &ask.checks()[i];
        let notes = &self.inner.notes;
        let table = &mut *self.shards[shard].1;
        if *cost > quota.capacity() {
            // It is denied for its cost alone.
            return Place::Fresh(table.fresh(quota));
        }
        let taken = |bucket: usize| {
            let found = |place: &Place| matches!(place, Place::Held { shard: s, bucket: b } if (*s, *b) == (shard, bucket));
            places.iter().any(found)
        };
        let idle = match held || table.has_room() {
            true => None,
            false => table.idle_near(key.hash(), now, taken),
        };
        let room = held || table.has_room() || idle.is_some();
        let shared = table.find_shared(key, quota, now);
        let state = match shared {
            Some(place) if room && !table.shared_at(place).may_count(key, now) => table.fresh(quota),
            Some(place) => {
                let counter = table.shared_at(place);
                let quota = counter.quota(quota);
                let (scope, budget) = (key.hash(), Some(notes));
                let asked = CheckInput { quota: &quota, cost: *cost, id: ask.id(), scope, budget };
                let stays = !room || *cost == 0 || !counter.can_be_left();
                if stays || !counter.fits(now, asked) {
                    return Place::Shared { shard, place, quota };
                }
                table.summary_of(place)
            }
            None => table.fresh(quota),
        };
        if room || *cost == 0 {
            if !ask.is_peek() && *cost > 0 && !held {
                idle.into_iter().for_each(|bucket| table.drop_idle(bucket));
                table.add_pending();
            }
            return Place::Fresh(state);
        }
        let wait = table.wait_near(key.hash(), now);
        if !table.shares() {
            return Place::Full { shard, wait };
        }
        if ask.is_peek() {
            return match table.has_room_to_share(key, now) {
                true => Place::Fresh(state),
                false => Place::Full { shard, wait },
            };
        }
        match table.create_shared(key, quota, now) {
            Some(place) => Place::Shared { shard, place, quota: *quota },
            None => Place::Full { shard, wait },
        }
    }

    /// Puts a state that now remembers something into its table.
    fn keep(&mut self, check: &Check, place: Place, now: Micros, peek: bool, outcome: Outcome) {
        match place {
            Place::Fresh(state) if !state.is_blank() => {
                self.shard(&check.key).insert(&check.key, state, now);
            }
            Place::Shared { shard, place, .. } => {
                let shard = &mut self.shards[shard].1;
                let counter = shard.shared_at(place);
                counter.state.cool();
                if outcome == Outcome::Charged {
                    counter.admitted(&check.key, &check.quota, now);
                }
                if !peek {
                    shard.count_shared();
                }
            }
            Place::Full { shard, .. } if !peek => self.shards[shard].1.count_denied(),
            _ => {}
        }
    }

    fn shard(&mut self, key: &Key) -> &mut Shard {
        let nth = self.nth(key);
        &mut self.shards[nth].1
    }

    fn nth(&self, key: &Key) -> usize {
        let index = self.inner.shard_index(key);
        self.shards.partition_point(|(locked, _)| *locked < index)
    }
}
