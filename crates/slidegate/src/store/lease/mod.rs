//! Permits taken in advance.
//!
//! For a rule with a lease, a node asks the store for many admissions at once, as if as many callers had asked, and
//! hands them out one by one without asking again. The rule is counted in slices, and an admission in a slice counts
//! as if it were made at the slice's end: so whenever until then a permit is handed out, it counts for a whole window
//! from there, and no window ever holds more than the limit. At the end of the slice what is left is given back.
//!
//! How many are taken follows what is asked for: twice as many when they ran out, half as many when most were left,
//! and never more than a part of what remains, so that the last permits go to whoever asks. Who finds none asks
//! the store as if there were no lease; nobody waits for one.

mod pool;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};

use crossbeam_utils::CachePadded;
use futures_util::stream::{self, StreamExt};
use hashbrown::HashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use self::pool::{Block, Handed, Pool};
use crate::common::striped_counter::StripedCounter;
use crate::{
    Algorithm, BatchVerdicts, Check, Checks, Clock, Count, Entry, Error, Inspection, Key, Listener, Micros,
    Outcome, Receipt, Settlement, Source, Store, SystemClock, Verdicts,
};

/// The most keys that a node has leases of; of others nothing is taken.
const MAX_KEYS: usize = 65_536;

const SHARDS: usize = 64;

/// A [`Store`] that takes permits of the one within in advance, for rules that want it ([`Check::lease`]). Clones share
/// everything. Use it in a tokio runtime, and [give back](Lease::give_back) before the process ends: what is not given
/// back counts as if it were used.
pub struct Lease<S> {
    inner: Arc<Inner<S>>,
}

struct Inner<S> {
    store: S,
    clock: Arc<dyn Clock>,
    pools: Arc<Pools>,
    listens: Once,
    /// Numbers the blocks.
    made: AtomicU64,
    answered: StripedCounter,
}

/// What is held of all keys.
struct Pools {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// How often a key of a shard was reset: what was taken before is forgotten by the store, and not for handing out.
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

    fn hears(&self, _: u16, _: bool) {}
}

/// What is held in advance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseStats {
    /// Keys with permits in advance, or lately.
    pub keys: usize,
    /// Permits that are held and not handed out.
    pub idle: u64,
    /// Asks that were answered out of what was held, so far.
    pub answered: u64,
}

impl<S: Store + 'static> Lease<S> {
    /// Around `store`.
    pub fn new(store: S) -> Self {
        Self::with_clock(store, SystemClock::new())
    }

    /// The same on another clock, which must not step and should run as the store's does.
    pub fn with_clock(store: S, clock: impl Clock + 'static) -> Self {
        let inner = Inner {
            store,
            clock: Arc::new(clock),
            pools: Arc::new(Pools::new()),
            listens: Once::new(),
            made: AtomicU64::new(0),
            answered: StripedCounter::default(),
        };
        Lease { inner: Arc::new(inner) }
    }

    /// The store within.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// What is held in advance.
    pub fn stats(&self) -> LeaseStats {
        let mut stats = LeaseStats { answered: self.inner.answered.sum(), ..LeaseStats::default() };
        for shard in &self.inner.pools.shards {
            let shard = shard.lock();
            stats.keys += shard.len();
            stats.idle += shard.values().map(Pool::idle).sum::<u64>();
        }
        stats
    }

    /// Gives back everything that is held, for a process that ends. Who asks meanwhile may take anew.
    pub async fn give_back(&self) {
        let mut left: Vec<(Key, Vec<Entry>)> = Vec::new();
        for shard in &self.inner.pools.shards {
            left.extend(shard.lock().iter_mut().map(|(key, pool)| (key.clone(), pool.drain().collect())));
        }
        let giving = left.into_iter().map(async |(key, entries)| self.inner.give_back(&key, entries).await);
        stream::iter(giving).buffer_unordered(64).collect::<Vec<()>>().await;
    }
}

impl<S> Clone for Lease<S> {
    fn clone(&self) -> Self {
        Lease { inner: Arc::clone(&self.inner) }
    }
}

impl<S> Inner<S> {
    fn shard(&self, key: &Key) -> &Mutex<Shard> {
        self.pools.shard(key)
    }
}

impl<S: Store + 'static> Inner<S> {
    /// Hears of resets from the first lease on.
    fn listen_once(&self) {
        self.listens.call_once(|| self.store.listen(Arc::downgrade(&self.pools) as Weak<dyn Listener>));
    }

    /// What is handed out to `ask`, if every check of it has a permit in advance.
    fn hand_out(self: &Arc<Self>, ask: &Checks) -> Option<Verdicts> {
        if !ask.checks().iter().all(is_leased) || ask.id().is_some() || ask.is_peek() {
            return None;
        }
        let now = self.clock.now();
        let mut handed: SmallVec<[Handed; 1]> = SmallVec::new();
        for check in ask.checks() {
            let (one, low) = {
                let mut shard = self.shard(&check.key).lock();
                let Some(pool) = shard.get_mut(&check.key) else { break };
                (pool.hand_out(check, now), pool.begins_to_take(check, now))
            };
            if let Some(permits) = low {
                self.take(check, permits);
            }
            let Some(one) = one else { break };
            handed.push(one);
        }
        if handed.len() == ask.checks().len() {
            self.answered.add(1);
            let at = handed.iter().map(|one| one.at).max().unwrap_or_default();
            let verdicts = handed.iter().map(Handed::verdict).collect();
            return Some(Verdicts { at, source: Source::Lease, verdicts });
        }
        // One has none, so nobody is charged here.
        for (check, one) in ask.checks().iter().zip(handed) {
            self.put_back(check, one);
        }
        None
    }

    #[cold]
    fn put_back(self: &Arc<Self>, check: &Check, handed: Handed) {
        let entry = handed.entry();
        let kept =
            self.shard(&check.key).lock().get_mut(&check.key).is_some_and(|pool| pool.put_back(handed));
        if !kept && let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (inner, key) = (Arc::clone(self), check.key.clone());
            runtime.spawn(async move { inner.give_back(&key, vec![entry]).await });
        }
    }

    /// What the store said of what could not be handed out; takes more if it makes sense.
    fn asked(self: &Arc<Self>, ask: &Checks, reading: &Verdicts) {
        let alone = reading.source == Source::Store && ask.id().is_none() && !ask.is_peek();
        if !alone || !ask.checks().iter().all(is_leased) {
            return;
        }
        let now = self.clock.now();
        for (check, verdict) in ask.checks().iter().zip(&reading.verdicts) {
            if verdict.outcome != Outcome::Charged {
                continue;
            }
            let takes = {
                let mut shard = self.shard(&check.key).lock();
                let room = shard.len() < MAX_KEYS / SHARDS;
                let mut new = Pool::default();
                let known = shard.get_mut(&check.key);
                let is_new = known.is_none();
                let pool = known.unwrap_or(&mut new);
                pool.missed(verdict.remaining());
                let takes = pool.begins_to_take(check, now).filter(|_| room || !is_new);
                if is_new && takes.is_some() {
                    shard.insert(check.key.clone(), new);
                }
                takes
            };
            if let Some(permits) = takes {
                self.take(check, permits);
            }
        }
    }

    /// Takes permits, holds them until the slice ends, and gives back what is left. Its own task: whoever asks may leave.
    fn take(self: &Arc<Self>, check: &Check, permits: u32) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (inner, check) = (Arc::clone(self), check.clone());
        runtime.spawn(async move {
            let taken = inner.taken(&check, permits).await;
            let Some((block, until)) = taken else { return };
            inner.clock.sleep(until.since(inner.clock.now())).await;
            inner.end(&check.key, block).await;
            // How many were asked for is remembered for a slice more.
            inner.clock.sleep(check.quota.grain()).await;
            let mut shard = inner.shard(&check.key).lock();
            if shard.get(&check.key).is_some_and(|pool| pool.is_unused_since(block)) {
                shard.remove(&check.key);
            }
        });
    }

    /// The number of a block of permits, and when it ends.
    async fn taken(&self, check: &Check, permits: u32) -> Option<(u64, Micros)> {
        self.listen_once();
        let mut taking = Taking { inner: self, key: &check.key, came: false };
        let resets = self.pools.resets(&check.key).load(Ordering::Acquire);
        let ask = Checks::one(Check { lease: None, ..check.clone() }).ok()?;
        let sent = self.clock.now();
        let readings = self.store.admit_run(&ask, permits as usize).await.ok()?;
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let (block, back) = Block::new(number, check, &readings, sent);
        let until = block.until();
        let denied = {
            let mut shard = self.shard(&check.key).lock();
            // Of what a reset has forgotten nothing is given back: the store knows.
            if self.pools.resets(&check.key).load(Ordering::Acquire) == resets {
                shard.entry(check.key.clone()).or_default().add(block, permits);
                taking.came = true;
                None
            } else {
                Some(block.into_entries())
            }
        };
        // What another than the store has granted is not for keeping.
        self.give_back(&check.key, back).await;
        if let Some(entries) = denied {
            self.give_back(&check.key, entries).await;
            return None;
        }
        Some((number, until))
    }

    /// A block has ended: what is left of it is given back.
    async fn end(&self, key: &Key, block: u64) {
        let left = {
            let mut shard = self.shard(key).lock();
            let Some(pool) = shard.get_mut(key) else { return };
            pool.end(block)
        };
        self.give_back(key, left).await;
    }

    async fn give_back(&self, key: &Key, left: Vec<Entry>) {
        if !left.is_empty() {
            // If it cannot be given back it counts until it leaves: stricter, never looser.
            let _ = self.store.give_back(key, &left).await;
        }
    }
}

/// Permits that are asked for. If they do not come, another may try.
struct Taking<'t, S> {
    inner: &'t Inner<S>,
    key: &'t Key,
    came: bool,
}

impl<S> Drop for Taking<'_, S> {
    fn drop(&mut self) {
        if self.came {
            return;
        }
        let mut shard = self.inner.shard(self.key).lock();
        if shard.get_mut(self.key).is_some_and(Pool::failed) {
            shard.remove(self.key);
        }
    }
}

/// Whether permits of it may be taken in advance.
fn is_leased(check: &Check) -> bool {
    check.lease.is_some()
        && check.cost > 0
        && check.quota.count() == Count::Admitted
        && matches!(check.quota.algorithm(), Algorithm::TimeSlice { .. })
}

impl<S: Store + 'static> Store for Lease<S> {
    async fn admit(&self, asks: &[Checks]) -> Result<BatchVerdicts, Error> {
        let leased = |ask: &Checks| ask.checks().iter().any(|check| check.lease.is_some());
        let [ask] = asks else { return self.inner.store.admit(asks).await };
        if !leased(ask) {
            return self.inner.store.admit(asks).await;
        }
        if let Some(reading) = self.inner.hand_out(ask) {
            return Ok(SmallVec::from_buf([reading]));
        }
        let readings = self.inner.store.admit(asks).await?;
        readings.iter().for_each(|reading| self.inner.asked(ask, reading));
        Ok(readings)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        self.inner.store.settle(settlements).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        self.inner.store.inspect(key).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        // What was taken before belongs to what is forgotten; so does what is taken until then.
        self.inner.pools.reset(key);
        let reset = self.inner.store.reset(key).await;
        self.inner.pools.reset(key);
        reset
    }

    fn lane(&self, key: &Key) -> u16 {
        self.inner.store.lane(key)
    }

    fn listen(&self, listener: Weak<dyn Listener>) {
        self.inner.store.listen(listener);
    }
}
