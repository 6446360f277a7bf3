//! Leases: blocks of permits that a node takes in advance and hands out without a call to the store.
//!
//! For a rule with a lease, a node requests many admissions at once, as if that many callers had requested one permit
//! each, and hands them out one by one. The rule counts in time slices, and an admission in a slice counts from the
//! slice's end. So a permit that is handed out before the end of its slice counts for at least a whole window from then
//! on, and no window ever holds more than the limit. At the end of the slice unused permits are given back.
//!
//! The size of a block follows the demand: it doubles when the permits ran out, and halves when most were unused. A
//! block is at most a part of the remaining permits, so that the last permits go to direct requests. If the node holds
//! no permit for a request, the request goes to the store as if there were no lease; no request waits for a block.

mod pool;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};

use crossbeam_utils::CachePadded;
use futures_util::stream::{self, StreamExt};
use hashbrown::HashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use self::pool::{Block, HandedPermit, Pool};
use crate::common::striped_counter::StripedCounter;
use crate::{
    BatchVerdicts, Check, Checks, Clock, Count, Entry, Error, Key, Listener, Micros, Outcome, Source, Store,
    SystemClock, Verdicts,
};

/// Maximum number of keys with leases. No permits are taken in advance for further keys.
const MAX_KEYS: usize = 65_536;

const SHARDS: usize = 64;

/// A [`Store`] that takes permits from the wrapped store in advance, for rules with a lease ([`Check::lease`]).
/// Clones share all state. It must be used within a tokio runtime. Call [`give_back`](Lease::give_back) before the
/// process ends: permits that are not given back count as used.
pub struct Lease<S> {
    inner: Arc<Inner<S>>,
}

struct Inner<S> {
    store: S,
    clock: Arc<dyn Clock>,
    pools: Arc<Pools>,
    listening: Once,
    /// Number of the last block.
    blocks_created: AtomicU64,
    answered: StripedCounter,
}

/// Permits in advance of all keys.
struct Pools {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// Number of resets, by shard. A reset deletes admissions from the store, so permits taken before it must not be
    /// handed out.
    resets: Box<[AtomicU64]>,
}

type Shard = HashMap<Key, Pool, foldhash::quality::RandomState>;

impl Pools {
    fn new() -> Self {
        Pools {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            resets: (0..SHARDS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn shard(&self, key: &Key) -> &Mutex<Shard> {
        &self.shards[key.hash() as usize % SHARDS]
    }

    fn resets(&self, key: &Key) -> &AtomicU64 {
        &self.resets[key.hash() as usize % SHARDS]
    }
}

impl Listener for Pools {
    fn freed(&self, _: &Key) {}

    fn reset(&self, key: &Key) {
        let mut shard = self.shard(key).lock();
        self.resets(key).fetch_add(1, Ordering::AcqRel);
        shard.remove(key);
    }

    fn set_connected(&self, _: u16, _: bool) {}
}

/// Statistics of a [`Lease`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseStats {
    /// Keys that have permits in advance, or had them recently.
    pub keys: usize,
    /// Permits that are held and not handed out.
    pub idle: u64,
    /// Requests that were answered from permits in advance.
    pub answered: u64,
}

impl<S: Store + 'static> Lease<S> {
    /// Wraps `store`, with the system clock.
    pub fn new(store: S) -> Self {
        Self::with_clock(store, SystemClock::new())
    }

    /// Wraps `store`, with the given clock, which must not step and should run at the same rate as the store's clock.
    pub fn with_clock(store: S, clock: impl Clock + 'static) -> Self {
        let inner = Inner {
            store,
            clock: Arc::new(clock),
            pools: Arc::new(Pools::new()),
            listening: Once::new(),
            blocks_created: AtomicU64::new(0),
            answered: StripedCounter::default(),
        };
        Lease { inner: Arc::new(inner) }
    }

    /// Returns the wrapped store.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// Returns the statistics.
    pub fn stats(&self) -> LeaseStats {
        let mut stats = LeaseStats { answered: self.inner.answered.sum(), ..LeaseStats::default() };
        for shard in &self.inner.pools.shards {
            let shard = shard.lock();
            stats.keys += shard.len();
            stats.idle += shard.values().map(Pool::idle).sum::<u64>();
        }
        stats
    }

    /// Gives back all permits that are held. Call it before the process ends. Requests that arrive meanwhile may take
    /// new permits.
    pub async fn give_back(&self) {
        let mut unused: Vec<(Key, Vec<Entry>)> = Vec::new();
        for shard in &self.inner.pools.shards {
            unused.extend(shard.lock().iter_mut().map(|(key, pool)| (key.clone(), pool.drain().collect())));
        }
        let give_backs =
            unused.into_iter().map(async |(key, entries)| self.inner.give_back(&key, entries).await);
        stream::iter(give_backs).buffer_unordered(64).collect::<Vec<()>>().await;
    }
}

share_by_clone!(Lease<S>);

impl<S: Store + 'static> Inner<S> {
    /// Registers the listener for resets by other nodes, before the first block is taken.
    fn listen_once(&self) {
        self.listening.call_once(|| self.store.listen(Arc::downgrade(&self.pools) as Weak<dyn Listener>));
    }

    /// Hands out permits to a request, if the node holds a permit for every check.
    fn hand_out(self: &Arc<Self>, checks: &Checks) -> Option<Verdicts> {
        if !checks.as_slice().iter().all(is_leased) || checks.id().is_some() || checks.is_peek() {
            return None;
        }
        let now = self.clock.now();
        let mut handed: SmallVec<[HandedPermit; 1]> = SmallVec::new();
        for check in checks.as_slice() {
            let (permit, refill_size) = {
                let mut shard = self.pools.shard(&check.key).lock();
                let Some(pool) = shard.get_mut(&check.key) else { break };
                (pool.hand_out(check, now), pool.begin_refill(check, now))
            };
            if let Some(permits) = refill_size {
                self.spawn_refill(check, permits);
            }
            let Some(permit) = permit else { break };
            handed.push(permit);
        }
        if handed.len() == checks.as_slice().len() {
            self.answered.add(1);
            let at = handed.iter().map(|permit| permit.at).max().unwrap_or_default();
            let verdicts = handed.iter().map(HandedPermit::verdict).collect();
            return Some(Verdicts { at, source: Source::Lease, verdicts });
        }
        // One check has no permit in advance, so the request goes to the store and the other permits are put back.
        for (check, permit) in checks.as_slice().iter().zip(handed) {
            self.put_back(check, permit);
        }
        None
    }

    #[cold]
    fn put_back(self: &Arc<Self>, check: &Check, permit: HandedPermit) {
        let entry = permit.original.entry;
        let was_put_back =
            self.pools.shard(&check.key).lock().get_mut(&check.key).is_some_and(|pool| pool.put_back(permit));
        if !was_put_back && let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (inner, key) = (Arc::clone(self), check.key.clone());
            runtime.spawn(async move { inner.give_back(&key, vec![entry]).await });
        }
    }

    /// Records the verdicts of the store for a request that found no permit in advance, and takes a block if that is
    /// useful.
    fn record_store_verdicts(self: &Arc<Self>, checks: &Checks, verdicts: &Verdicts) {
        let can_be_leased = verdicts.source == Source::Store && checks.id().is_none() && !checks.is_peek();
        if !can_be_leased || !checks.as_slice().iter().all(is_leased) {
            return;
        }
        let now = self.clock.now();
        for (check, verdict) in checks.as_slice().iter().zip(&verdicts.verdicts) {
            if verdict.outcome != Outcome::Charged {
                continue;
            }
            let refill_size = {
                let mut shard = self.pools.shard(&check.key).lock();
                let room = shard.len() < MAX_KEYS / SHARDS;
                let mut new = Pool::default();
                let known = shard.get_mut(&check.key);
                let is_new = known.is_none();
                let pool = known.unwrap_or(&mut new);
                pool.remaining = verdict.remaining();
                let refill_size = pool.begin_refill(check, now).filter(|_| room || !is_new);
                if is_new && refill_size.is_some() {
                    shard.insert(check.key.clone(), new);
                }
                refill_size
            };
            if let Some(permits) = refill_size {
                self.spawn_refill(check, permits);
            }
        }
    }

    /// Takes a block, holds it until the slice ends, and gives back the unused permits. It runs as its own task,
    /// because the caller may go away.
    fn spawn_refill(self: &Arc<Self>, check: &Check, permits: u32) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (inner, check) = (Arc::clone(self), check.clone());
        runtime.spawn(async move {
            let refilled = inner.refill(&check, permits).await;
            let Some((block, until)) = refilled else { return };
            inner.clock.sleep(until.since(inner.clock.now())).await;
            inner.end_block(&check.key, block).await;
            // The pool, which holds the size of the next block, is kept for one more slice.
            inner.clock.sleep(check.quota.grain()).await;
            let mut shard = inner.pools.shard(&check.key).lock();
            if shard.get(&check.key).is_some_and(|pool| pool.is_unused_since(block)) {
                shard.remove(&check.key);
            }
        });
    }

    /// Takes a block from the store; returns its number and its end.
    async fn refill(&self, check: &Check, permits: u32) -> Option<(u64, Micros)> {
        self.listen_once();
        let mut guard = RefillGuard { inner: self, key: &check.key, succeeded: false };
        let resets = self.pools.resets(&check.key).load(Ordering::Acquire);
        let checks = Checks::one(Check { lease: None, ..check.clone() }).ok()?;
        let sent = self.clock.now();
        let batch_verdicts = self.store.admit_run(&checks, permits as usize).await.ok()?;
        let number = self.blocks_created.fetch_add(1, Ordering::Relaxed) + 1;
        let (block, not_leasable) = Block::new(number, check, &batch_verdicts, sent);
        let until = block.until;
        let discarded = {
            let mut shard = self.pools.shard(&check.key).lock();
            // After a reset the permits must not be handed out. They are given back; the store ignores those that the
            // reset deleted.
            if self.pools.resets(&check.key).load(Ordering::Acquire) == resets {
                shard.entry(check.key.clone()).or_default().add_block(block, permits);
                guard.succeeded = true;
                None
            } else {
                Some(block.into_entries())
            }
        };
        // Permits that cannot be held in the block are given back.
        self.give_back(&check.key, not_leasable).await;
        if let Some(entries) = discarded {
            self.give_back(&check.key, entries).await;
            return None;
        }
        Some((number, until))
    }

    /// Ends a block, and gives back its unused permits.
    async fn end_block(&self, key: &Key, block: u64) {
        let unused = {
            let mut shard = self.pools.shard(key).lock();
            let Some(pool) = shard.get_mut(key) else { return };
            pool.end_block(block)
        };
        self.give_back(key, unused).await;
    }

    async fn give_back(&self, key: &Key, unused: Vec<Entry>) {
        if !unused.is_empty() {
            // If the call fails, the permits count until they expire. The limit is then stricter, never looser.
            let _ = self.store.give_back(key, &unused).await;
        }
    }
}

/// Guard of a refill. If the refill fails or is cancelled, the pool may start another refill.
struct RefillGuard<'t, S> {
    inner: &'t Inner<S>,
    key: &'t Key,
    succeeded: bool,
}

impl<S> Drop for RefillGuard<'_, S> {
    fn drop(&mut self) {
        if self.succeeded {
            return;
        }
        let mut shard = self.inner.pools.shard(self.key).lock();
        if shard.get_mut(self.key).is_some_and(Pool::refill_failed) {
            shard.remove(self.key);
        }
    }
}

/// Returns whether permits of this check may be taken in advance.
fn is_leased(check: &Check) -> bool {
    check.lease.is_some()
        && check.cost > 0
        && check.quota.count() == Count::Admitted
        && check.quota.algorithm().is_sliced()
}

impl<S: Store + 'static> Store for Lease<S> {
    async fn admit(&self, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        let leased = |checks: &Checks| checks.as_slice().iter().any(|check| check.lease.is_some());
        let [checks] = batch else { return self.inner.store.admit(batch).await };
        if !leased(checks) {
            return self.inner.store.admit(batch).await;
        }
        if let Some(verdicts) = self.inner.hand_out(checks) {
            return Ok(SmallVec::from_buf([verdicts]));
        }
        let batch_verdicts = self.inner.store.admit(batch).await?;
        batch_verdicts.iter().for_each(|verdicts| self.inner.record_store_verdicts(checks, verdicts));
        Ok(batch_verdicts)
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        // The store deletes the admissions made before the reset and while it runs, so the pools drop their permits
        // before and after the call.
        self.inner.pools.reset(key);
        let reset = self.inner.store.reset(key).await;
        self.inner.pools.reset(key);
        reset
    }

    forward!(self => self.inner.store; admit_run, settle, give_back, inspect, shard_of, listen);
}
