//! Denials that need not be asked for again.
//!
//! What a store denies with a wait cannot fit before the wait is over: admissions leave a window only by ageing. So
//! until then the same cost, or a larger one, is denied here, and a flood that is denied costs the store nothing. The
//! wait is counted from before the ask was sent, so it ends here no later than there.
//!
//! What is freed otherwise ends it at once: a settlement, a reset. Those of this node are seen as they pass; of those
//! of others the store tells ([`Store::listen`]), and where it cannot, nothing is denied here. Another limit is
//! another question: a denial holds only for the quota it was given under, and until the key is asked for under
//! another, which may change what it counts.

mod table;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};

use smallvec::SmallVec;

use self::table::{Denial, Table};
use super::HEARD_LANES;
use crate::common::striped_counter::StripedCounter;
use crate::{
    BatchVerdicts, Check, Checks, Clock, Count, Entry, Error, Inspection, Key, Listener, Micros, Outcome,
    Receipt, Settlement, Source, Store, SystemClock, Verdicts,
};

/// How many denials are remembered unless told otherwise.
pub const DEFAULT_MAX_DENIALS: usize = 65_536;

/// A [`Store`] that repeats the denials of the one within for as long as they hold. Clones share everything.
///
/// Such an answer lists only the rule that denies: nobody looked at the others. Rules that count attempts, except in peeks,
/// and asks with an id, which may have been admitted before, always go to the store. Where costs differ, `used` is what
/// the store last said; there, and where what is held was extended since, the wait may be too short, never too long. So
/// unless the cost is 1 it is said to be a lower bound.
pub struct DenyCache<S> {
    inner: Arc<Inner<S>>,
}

struct Inner<S> {
    store: S,
    memory: Arc<Memory>,
    clock: Arc<dyn Clock>,
    listens: Once,
    hits: StripedCounter,
}

/// What a deny cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DenyCacheStats {
    /// Asks that it denied without asking the store.
    pub hits: u64,
}

/// What was denied, and what has been freed since.
struct Memory {
    table: Table,
    /// How often something was freed, by the hash of its key.
    freed: Box<[AtomicU64]>,
    /// By lane: odd while nothing is heard of what others free.
    heard: Box<[AtomicU64]>,
}

/// Keys are told apart by this many counters of what was freed.
const STRIPES: usize = 4096;

/// Of a lane that is never heard.
const DEAF: u64 = 1;

/// When a check was asked, and what had been freed until then.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    freed: u64,
    lane: u16,
    heard: u64,
}

impl<S: Store> DenyCache<S> {
    /// Around `store`, with defaults.
    pub fn new(store: S) -> Self {
        Self::with_clock(store, DEFAULT_MAX_DENIALS, SystemClock::new())
    }

    /// Remembers about so many denials, none if it is 0, and measures waits by this clock, which must not step.
    pub fn with_clock(store: S, max_denials: usize, clock: impl Clock + 'static) -> Self {
        let counters = |n| (0..n).map(|_| AtomicU64::new(0)).collect();
        let memory = Memory {
            table: Table::new(max_denials),
            freed: counters(STRIPES),
            heard: counters(usize::from(HEARD_LANES)),
        };
        DenyCache {
            inner: Arc::new(Inner {
                store,
                memory: Arc::new(memory),
                clock: Arc::new(clock),
                listens: Once::new(),
                hits: StripedCounter::default(),
            }),
        }
    }

    /// The store within.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// What it has done so far.
    pub fn stats(&self) -> DenyCacheStats {
        DenyCacheStats { hits: self.inner.hits.sum() }
    }
}

impl<S> Clone for DenyCache<S> {
    fn clone(&self) -> Self {
        DenyCache { inner: Arc::clone(&self.inner) }
    }
}

impl Memory {
    fn stripe(&self, key: &Key) -> &AtomicU64 {
        &self.freed[key.hash() as usize % STRIPES]
    }

    fn stamp(&self, key: &Key, lane: u16) -> Stamp {
        let heard = self.heard.get(usize::from(lane)).map_or(DEAF, |heard| heard.load(Ordering::Acquire));
        Stamp { heard, lane, freed: self.stripe(key).load(Ordering::Acquire) }
    }

    /// Whether nothing was freed since, as far as could be heard.
    fn holds(&self, key: &Key, stamp: Stamp) -> bool {
        stamp.heard.is_multiple_of(2) && self.stamp(key, stamp.lane) == stamp
    }

    /// What denies `check` at `now`.
    #[inline]
    fn find(&self, check: &Check, now: Micros) -> Option<arc_swap::Guard<Option<Arc<Denial>>>> {
        self.table.find(&check.key, |denial| {
            denial.quota == check.quota
                && check.cost >= denial.cost
                && check.cost <= check.quota.capacity()
                && now < denial.until
                && self.holds(&check.key, denial.stamp)
        })
    }

    /// What was denied under another quota holds no more when its key is judged under this one.
    fn judged(&self, check: &Check) {
        let other = self
            .table
            .find(&check.key, |denial| denial.quota != check.quota && self.holds(&check.key, denial.stamp));
        if other.is_some() {
            Listener::freed(self, &check.key);
        }
    }
}

impl Listener for Memory {
    fn freed(&self, key: &Key) {
        self.stripe(key).fetch_add(1, Ordering::AcqRel);
    }

    fn hears(&self, lane: u16, hears: bool) {
        let next = |heard: u64| (heard.is_multiple_of(2) != hears).then_some(heard + 1);
        if let Some(heard) = self.heard.get(usize::from(lane)) {
            let _ = heard.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        }
    }
}

/// Something of a key is being freed. When that is over it is known; also if it failed or who asked has left, because
/// it may have been carried out.
struct Freeing<'f>(&'f Memory, &'f Key);

impl Drop for Freeing<'_> {
    fn drop(&mut self) {
        Listener::freed(self.0, self.1);
    }
}

impl<S: Store> Inner<S> {
    /// The answer to an ask that cannot fit yet.
    #[inline]
    fn deny(&self, ask: &Checks) -> Option<Verdicts> {
        if self.memory.table.is_empty() || ask.id().is_some() {
            return None;
        }
        let now = self.clock.now();
        for (i, check) in ask.checks().iter().enumerate() {
            // An attempt counts though it is denied, and a shadow denies nothing. A peek counts nothing.
            if check.quota.count() == Count::Attempts && !ask.is_peek() {
                return None;
            }
            if check.enforced
                && let Some(found) = self.memory.find(check, now)
                && let Some(denial) = &*found
            {
                return Some(denial.again(ask, i, now));
            }
        }
        None
    }

    /// What had been freed before they are asked, check by check.
    fn stamps<'a>(&self, asks: impl Iterator<Item = &'a Checks>) -> SmallVec<[Stamp; 2]> {
        if self.memory.table.size() == 0 {
            return SmallVec::new();
        }
        let checks = asks.flat_map(Checks::checks);
        let stamp = |check: &Check| {
            self.memory.judged(check);
            self.memory.stamp(&check.key, self.store.lane(&check.key))
        };
        checks.map(stamp).collect()
    }

    /// Remembers what the store denied.
    fn learn<'a>(
        &self,
        answered: impl Iterator<Item = (&'a Checks, &'a Verdicts)>,
        stamps: &[Stamp],
        sent: Micros,
    ) {
        let mut stamps = stamps.iter();
        for (ask, reading) in answered {
            for ((check, verdict), stamp) in ask.checks().iter().zip(&reading.verdicts).zip(&mut stamps) {
                self.memory.judged(check);
                let lasts = verdict.outcome == Outcome::Denied
                    && reading.source == Source::Store
                    && check.enforced
                    // Of attempts only peeks are answered here.
                    && (check.quota.count() == Count::Admitted || ask.is_peek())
                    // A limit that climbs may have room before anything leaves.
                    && verdict.limit >= check.quota.capacity();
                if lasts && self.memory.holds(&check.key, *stamp) {
                    self.memory
                        .table
                        .put(Denial::new(check, verdict, reading.at, sent, *stamp), self.clock.now());
                }
            }
        }
    }

    async fn ask(&self, asks: &[Checks]) -> Result<BatchVerdicts, Error> {
        let stamps = self.stamps(asks.iter());
        let sent = self.clock.now();
        let readings = self.store.admit(asks).await?;
        if !stamps.is_empty() {
            self.learn(asks.iter().zip(&readings), &stamps, sent);
        }
        Ok(readings)
    }

    /// A batch is judged at one instant: all of it here, or all of it there.
    async fn ask_many(&self, asks: &[Checks]) -> Result<BatchVerdicts, Error> {
        match asks.iter().map(|ask| self.deny(ask)).collect() {
            Some(denied) => {
                self.hits.add(asks.len() as u64);
                Ok(denied)
            }
            None => self.ask(asks).await,
        }
    }
}

impl<S: Store> DenyCache<S> {
    fn listen_once(&self) {
        let Inner { store, memory, listens, .. } = &*self.inner;
        if memory.table.size() > 0 {
            listens.call_once(|| store.listen(Arc::downgrade(memory) as Weak<dyn Listener>));
        }
    }
}

impl<S: Store> Store for DenyCache<S> {
    async fn admit(&self, asks: &[Checks]) -> Result<BatchVerdicts, Error> {
        if let [ask] = asks {
            if let Some(denied) = self.inner.deny(ask) {
                self.inner.hits.add(1);
                return Ok(SmallVec::from_buf([denied]));
            }
            self.listen_once();
            return self.inner.ask(asks).await;
        }
        self.listen_once();
        self.inner.ask_many(asks).await
    }

    /// Of a run the last is denied if any is.
    async fn admit_run(&self, ask: &Checks, times: usize) -> Result<BatchVerdicts, Error> {
        let inner = &*self.inner;
        self.listen_once();
        let stamps = inner.stamps(std::iter::once(ask));
        let sent = inner.clock.now();
        let readings = inner.store.admit_run(ask, times).await?;
        if !stamps.is_empty() {
            inner.learn(std::iter::once(ask).zip(readings.last()), &stamps, sent);
        }
        Ok(readings)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        let freeing = settlements.iter().filter(|settlement| settlement.frees());
        let _freeing: Vec<_> =
            freeing.map(|settlement| Freeing(&self.inner.memory, &settlement.key)).collect();
        self.inner.store.settle(settlements).await
    }

    async fn give_back(&self, key: &Key, entries: &[Entry]) -> Result<(), Error> {
        let _freeing = Freeing(&self.inner.memory, key);
        self.inner.store.give_back(key, entries).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        self.inner.store.inspect(key).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        let _freeing = Freeing(&self.inner.memory, key);
        self.inner.store.reset(key).await
    }

    fn lane(&self, key: &Key) -> u16 {
        self.inner.store.lane(key)
    }

    fn listen(&self, listener: Weak<dyn Listener>) {
        self.inner.store.listen(listener);
    }
}
