//! Deny cache: repeats a denial until its wait is over, without a call to the store.
//!
//! A request that was denied with a wait cannot fit before the wait is over, because admissions leave a window only by
//! expiry. Until then the cache denies the same cost, or a larger one, so that a flood of denied requests costs the
//! store nothing. The cache measures the wait from before the request was sent, so the wait ends in the cache no later
//! than in the store.
//!
//! A settlement or a reset frees permits earlier, and invalidates the denial at once. The settlements and resets of
//! this node pass through the cache. The store announces those of other nodes ([`Store::listen`]); while the store
//! cannot announce them, the cache denies nothing. A denial is valid only for its quota, and only until the key is
//! evaluated with another quota, which may change what the key counts.

mod table;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};

use smallvec::SmallVec;

use self::table::{Denial, Table};
use super::MAX_LISTENED_SHARDS;
use crate::common::striped_counter::StripedCounter;
use crate::{
    BatchVerdicts, Check, Checks, Clock, Count, Entry, Error, Key, Listener, Micros, Outcome, Receipt,
    Settlement, Source, Store, SystemClock, Verdicts,
};

/// Default of the maximum number of cached denials.
pub const DEFAULT_MAX_DENIALS: usize = 65_536;

/// A [`Store`] that repeats the denials of the wrapped store for as long as they are valid. Clones share all state.
///
/// A repeated denial lists only the rule that denies; the other rules are not evaluated. These requests always go to
/// the store: those with rules that count attempts, except peeks, and those with an id, which may have been admitted
/// before. If requests have different costs, or held permits were extended since the denial, `used` is the last value
/// from the store, and the wait may be too short, never too long. So the wait is marked as a lower bound, unless the
/// cost is 1 and the permits are not held.
pub struct DenyCache<S> {
    inner: Arc<Inner<S>>,
}

struct Inner<S> {
    store: S,
    denials: Arc<Denials>,
    clock: Arc<dyn Clock>,
    listening: Once,
    hits: StripedCounter,
}

/// Statistics of a deny cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DenyCacheStats {
    /// Requests that were denied without a call to the store.
    pub hits: u64,
}

/// Cached denials, and the counters that invalidate them.
struct Denials {
    table: Table,
    /// Number of times that permits were freed, by the hash of the key.
    free_counts: Box<[AtomicU64]>,
    /// One counter per shard, incremented when its notifications start or stop: even while on, odd while off.
    listen_epochs: Box<[AtomicU64]>,
}

/// Number of free counters. Keys with the same counter invalidate each other's denials.
const STRIPES: usize = 4096;

/// Listen epoch of a shard that is never announced to listeners.
const NOT_LISTENING: u64 = 1;

/// State of the invalidation counters of a key at one time.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    free_count: u64,
    shard: u16,
    listen_epoch: u64,
}

impl<S: Store> DenyCache<S> {
    /// Wraps `store`, with the default size and the system clock.
    pub fn new(store: S) -> Self {
        Self::with_clock(store, DEFAULT_MAX_DENIALS, SystemClock::new())
    }

    /// Wraps `store` with a cache of about `max_denials` denials; 0 turns the cache off. The clock must not step.
    pub fn with_clock(store: S, max_denials: usize, clock: impl Clock + 'static) -> Self {
        let counters = |n| (0..n).map(|_| AtomicU64::new(0)).collect();
        let denials = Denials {
            table: Table::new(max_denials),
            free_counts: counters(STRIPES),
            listen_epochs: counters(usize::from(MAX_LISTENED_SHARDS)),
        };
        DenyCache {
            inner: Arc::new(Inner {
                store,
                denials: Arc::new(denials),
                clock: Arc::new(clock),
                listening: Once::new(),
                hits: StripedCounter::default(),
            }),
        }
    }

    /// Returns the wrapped store.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// Returns the statistics.
    pub fn stats(&self) -> DenyCacheStats {
        DenyCacheStats { hits: self.inner.hits.sum() }
    }
}

share_by_clone!(DenyCache<S>);

impl Denials {
    fn free_count(&self, key: &Key) -> &AtomicU64 {
        &self.free_counts[key.hash() as usize % STRIPES]
    }

    fn stamp(&self, key: &Key, shard: u16) -> Stamp {
        let listen_epoch = self
            .listen_epochs
            .get(usize::from(shard))
            .map_or(NOT_LISTENING, |epoch| epoch.load(Ordering::Acquire));
        Stamp { listen_epoch, shard, free_count: self.free_count(key).load(Ordering::Acquire) }
    }

    /// Returns whether notifications have been on since the stamp was taken, and no permit of the key was freed since.
    fn is_current(&self, key: &Key, stamp: Stamp) -> bool {
        stamp.listen_epoch.is_multiple_of(2) && self.stamp(key, stamp.shard) == stamp
    }

    /// Returns a cached denial that denies `check` at `now`.
    #[inline]
    fn find(&self, check: &Check, now: Micros) -> Option<arc_swap::Guard<Option<Arc<Denial>>>> {
        self.table.find(&check.key, |denial| {
            denial.quota == check.quota
                && check.cost >= denial.cost
                && check.cost <= check.quota.capacity()
                && now < denial.until
                && self.is_current(&check.key, denial.stamp)
        })
    }

    /// Invalidates the denial of a key under another quota, because the key was now evaluated under the quota of
    /// `check`.
    fn invalidate_other_quotas(&self, check: &Check) {
        let other = self.table.find(&check.key, |denial| {
            denial.quota != check.quota && self.is_current(&check.key, denial.stamp)
        });
        if other.is_some() {
            Listener::freed(self, &check.key);
        }
    }
}

impl Listener for Denials {
    fn freed(&self, key: &Key) {
        self.free_count(key).fetch_add(1, Ordering::AcqRel);
    }

    fn set_connected(&self, shard: u16, connected: bool) {
        let next = |epoch: u64| (epoch.is_multiple_of(2) != connected).then_some(epoch + 1);
        if let Some(epoch) = self.listen_epochs.get(usize::from(shard)) {
            let _ = epoch.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        }
    }
}

/// Invalidates the denials of a key when a call that frees permits ends. It does so also if the call failed or its
/// caller has gone away, because the store may have carried out the call.
struct FreeOnDrop<'f>(&'f Denials, &'f Key);

impl Drop for FreeOnDrop<'_> {
    fn drop(&mut self) {
        Listener::freed(self.0, self.1);
    }
}

impl<S: Store> Inner<S> {
    /// Returns the denial of a request that cannot fit yet.
    #[inline]
    fn deny(&self, checks: &Checks) -> Option<Verdicts> {
        if self.denials.table.is_empty() || checks.id().is_some() {
            return None;
        }
        let now = self.clock.now();
        for (i, check) in checks.as_slice().iter().enumerate() {
            // An attempt counts even if it is denied, so it must go to the store; a peek counts nothing. A shadow rule
            // denies nothing.
            if check.quota.count() == Count::Attempts && !checks.is_peek() {
                return None;
            }
            if check.enforced
                && let Some(found) = self.denials.find(check, now)
                && let Some(denial) = &*found
            {
                return Some(denial.repeat(checks, i, now));
            }
        }
        None
    }

    /// Takes a stamp for each check before the batch is sent.
    fn stamps<'a>(&self, batch: impl Iterator<Item = &'a Checks>) -> SmallVec<[Stamp; 2]> {
        if self.denials.table.size() == 0 {
            return SmallVec::new();
        }
        let checks = batch.flat_map(Checks::as_slice);
        let stamp = |check: &Check| {
            self.denials.invalidate_other_quotas(check);
            self.denials.stamp(&check.key, self.store.shard_of(&check.key))
        };
        checks.map(stamp).collect()
    }

    /// Caches the denials of the store.
    fn remember_denials<'a>(
        &self,
        answered: impl Iterator<Item = (&'a Checks, &'a Verdicts)>,
        stamps: &[Stamp],
        sent: Micros,
    ) {
        let mut stamps = stamps.iter();
        for (checks, verdicts) in answered {
            for ((check, verdict), stamp) in checks.as_slice().iter().zip(&verdicts.verdicts).zip(&mut stamps)
            {
                self.denials.invalidate_other_quotas(check);
                let is_cacheable = verdict.outcome == Outcome::Denied
                    && verdicts.source == Source::Store
                    && check.enforced
                    // For rules that count attempts, only peeks are answered from the cache.
                    && (check.quota.count() == Count::Admitted || checks.is_peek())
                    // A limit that grows (warm-up) may have room before any admission expires.
                    && verdict.limit >= check.quota.capacity();
                if is_cacheable && self.denials.is_current(&check.key, *stamp) {
                    self.denials
                        .table
                        .put(Denial::new(check, verdict, verdicts.at, sent, *stamp), self.clock.now());
                }
            }
        }
    }

    async fn admit_in_store(&self, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        let stamps = self.stamps(batch.iter());
        let sent = self.clock.now();
        let batch_verdicts = self.store.admit(batch).await?;
        if !stamps.is_empty() {
            self.remember_denials(batch.iter().zip(&batch_verdicts), &stamps, sent);
        }
        Ok(batch_verdicts)
    }

    /// A batch is evaluated at one instant, so either the cache answers the whole batch or the store does.
    async fn admit_batch(&self, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        match batch.iter().map(|checks| self.deny(checks)).collect() {
            Some(denied) => {
                self.hits.add(batch.len() as u64);
                Ok(denied)
            }
            None => self.admit_in_store(batch).await,
        }
    }
}

impl<S: Store> DenyCache<S> {
    fn listen_once(&self) {
        let Inner { store, denials, listening, .. } = &*self.inner;
        if denials.table.size() > 0 {
            listening.call_once(|| store.listen(Arc::downgrade(denials) as Weak<dyn Listener>));
        }
    }
}

impl<S: Store> Store for DenyCache<S> {
    async fn admit(&self, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        if let [checks] = batch {
            if let Some(denied) = self.inner.deny(checks) {
                self.inner.hits.add(1);
                return Ok(SmallVec::from_buf([denied]));
            }
            self.listen_once();
            return self.inner.admit_in_store(batch).await;
        }
        self.listen_once();
        self.inner.admit_batch(batch).await
    }

    /// Only the last verdict is cached: if any request of a run is denied, the last request is denied too.
    async fn admit_run(&self, checks: &Checks, times: usize) -> Result<BatchVerdicts, Error> {
        let inner = &*self.inner;
        self.listen_once();
        let stamps = inner.stamps(std::iter::once(checks));
        let sent = inner.clock.now();
        let batch_verdicts = inner.store.admit_run(checks, times).await?;
        if !stamps.is_empty() {
            inner.remember_denials(std::iter::once(checks).zip(batch_verdicts.last()), &stamps, sent);
        }
        Ok(batch_verdicts)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        let freeing = settlements.iter().filter(|settlement| settlement.frees());
        let _free_on_drop: Vec<_> =
            freeing.map(|settlement| FreeOnDrop(&self.inner.denials, &settlement.key)).collect();
        self.inner.store.settle(settlements).await
    }

    async fn give_back(&self, key: &Key, entries: &[Entry]) -> Result<(), Error> {
        let _free_on_drop = FreeOnDrop(&self.inner.denials, key);
        self.inner.store.give_back(key, entries).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        let _free_on_drop = FreeOnDrop(&self.inner.denials, key);
        self.inner.store.reset(key).await
    }

    forward!(self => self.inner.store; inspect, shard_of, listen);
}
