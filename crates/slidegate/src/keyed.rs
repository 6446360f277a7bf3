//! Limiter for one Rust program: one quota for each key of any type.
//!
//! [`KeyedLimiter`] is for programs that need neither rules nor several processes. A check borrows the key, is not
//! async, and returns a small value. Each key has the same [`State`] as in the memory store, so both make the same
//! decisions.
//!
//! Keys are spread over shards by their hash. A shard is a hash table behind a spin lock, which is held for one decision.

use std::borrow::Borrow;
use std::error;
use std::fmt;
use std::hash::{BuildHasher, Hash};

use crossbeam_utils::CachePadded;
use foldhash::quality::RandomState;
use hashbrown::HashTable;

use crate::algorithm::{CheckInput, Recording};
use crate::common::spin_lock::{Lock, LockGuard};
use crate::settlement::NEVER_SETTLED;
use crate::{Clock, Entry, Micros, Outcome, Quota, Settled, State, SystemClock, Verdict};

/// Number of shards: a power of two.
const SHARDS: usize = 64;

/// Limiter with one quota for each key of any hashable type, counted in this process.
///
/// ```
/// use slidegate::{KeyedLimiter, Quota, Settled};
///
/// let limiter: KeyedLimiter<String> = KeyedLimiter::new(Quota::per_minute(2)?);
/// let first = limiter.check("alice").unwrap();
/// assert_eq!((first.used(), first.remaining()), (1, 1));
/// assert!(limiter.check("alice").is_ok());
///
/// let denied = limiter.check("alice").unwrap_err();
/// println!("alice may retry in {}", denied.retry_after());
/// assert!(limiter.check("bob").is_ok(), "each key has its own count");
///
/// // The first request failed for another reason: give its permit back.
/// assert_eq!(limiter.settle("alice", &first, 0), Settled::Done);
/// assert!(limiter.check("alice").is_ok());
/// # Ok::<(), slidegate::Error>(())
/// ```
///
/// Every [`Algorithm`](crate::Algorithm) is available through the quota; the default is the exact sliding window. To share
/// a limiter between threads, put it into an `Arc` or a `static`.
///
/// # Memory
///
/// A key takes the size of `K` and about 110 bytes, in a hash table that is up to half empty. In an exact window, each
/// admission takes eight bytes more. A shard that is about to grow first drops the keys that count nothing any more, so
/// memory follows the keys that were used within the last window. [`KeyedLimiter::retain_recent`] drops such keys at
/// once. If clients can invent keys, use a [`MemoryStore`](crate::MemoryStore): it bounds their number.
pub struct KeyedLimiter<K, C = SystemClock> {
    quota: Quota,
    clock: C,
    hasher: RandomState,
    shards: Box<[CachePadded<Lock<Shard<K>>>]>,
}

struct Shard<K> {
    table: HashTable<Slot<K>>,
    /// Latest instant at which idle keys were dropped. Decisions use no earlier instant, even if the clock steps back,
    /// because dropped admissions might still count then.
    dropped_at: Micros,
    /// Number of counters created so far. Admissions of a dropped counter have other numbers than those of its successor.
    generation: u64,
}

struct Slot<K> {
    key: K,
    state: State,
}

/// Permission of a [`KeyedLimiter`]. It names the admission, so that [`KeyedLimiter::settle`] can correct it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    used: u64,
    limit: u64,
    entry: Entry,
}

impl Allowed {
    /// Returns the permits in use, including those of this request.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Returns the permits that are left.
    pub fn remaining(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// Denial of a [`KeyedLimiter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    used: u64,
    limit: u64,
    retry_after: Micros,
    permanent: bool,
}

impl Denied {
    /// Returns the permits in use.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Returns the permits that are left: fewer than requested.
    pub fn remaining(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// Returns the shortest wait after which the same request fits, if no other request arrives.
    pub fn retry_after(&self) -> Micros {
        self.retry_after
    }

    /// Returns true if the request can never be allowed: it asks for more than the limit.
    pub fn is_permanent(&self) -> bool {
        self.permanent
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.permanent {
            return write!(f, "denied: the request asks for more permits than the limit of {}", self.limit);
        }
        write!(f, "denied: {} of {} permits in use, retry in {}", self.used, self.limit, self.retry_after)
    }
}

impl error::Error for Denied {}

impl<K: Hash + Eq> KeyedLimiter<K> {
    /// Creates a limiter with the system clock.
    pub fn new(quota: Quota) -> Self {
        KeyedLimiter::with_clock(quota, SystemClock::new())
    }
}

impl<K: Hash + Eq, C: Clock> KeyedLimiter<K, C> {
    /// Creates a limiter with the given clock.
    pub fn with_clock(quota: Quota, clock: C) -> Self {
        let shard = || Shard { table: HashTable::new(), dropped_at: Micros::ZERO, generation: 0 };
        let shards = (0..SHARDS).map(|_| CachePadded::new(Lock::new(shard()))).collect();
        KeyedLimiter { quota, clock, hasher: RandomState::default(), shards }
    }

    /// Returns the quota of every key.
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// Requests one permit for `key`, and charges it if it is allowed.
    #[inline]
    pub fn check<Q>(&self, key: &Q) -> Result<Allowed, Denied>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.check_n(key, 1)
    }

    /// Requests `permits` for `key`, and charges all of them, or none. Zero permits are always allowed.
    #[inline]
    pub fn check_n<Q>(&self, key: &Q, permits: u64) -> Result<Allowed, Denied>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let (mut shard, hash, now) = self.lock_shard(key);
        match shard.find(hash, key) {
            Some(state) => result_of(&state.admit(now, &self.quota, permits)),
            None => self.check_new(shard, hash, now, key, permits),
        }
    }

    /// Returns the result that [`KeyedLimiter::check_n`] would return now, and charges nothing. The result cannot be
    /// settled.
    pub fn peek<Q>(&self, key: &Q, permits: u64) -> Result<Allowed, Denied>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (mut shard, hash, now) = self.lock_shard(key);
        let mut unused;
        let state = match shard.find(hash, key) {
            Some(state) => state,
            None => {
                unused = State::new(&self.quota);
                &mut unused
            }
        };
        let input = CheckInput { quota: &self.quota, cost: permits, id: None, scope: 0, budget: None };
        let now = state.roll(now, &self.quota);
        let evaluation = state.consider(now, input);
        let mut verdict = state.conclude(now, input, evaluation, Recording::Nothing);
        verdict.entry.seq = NEVER_SETTLED;
        result_of(&verdict)
    }

    /// Corrects an admission of `key` to its actual cost; 0 is a refund. Only the first settlement takes effect.
    ///
    /// The actual cost is a fact, so a correction upwards may exceed the limit: later requests wait for longer. An admission of
    /// a quota with [`Count::Attempts`](crate::Count::Attempts) cannot be settled; the result is [`Settled::Gone`].
    pub fn settle<Q>(&self, key: &Q, allowed: &Allowed, permits: u64) -> Settled
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (mut shard, hash, now) = self.lock_shard(key);
        match shard.find(hash, key) {
            Some(state) => state.settle(now, allowed.entry, permits.min(crate::bounds::MAX_LIMIT)),
            None => Settled::Gone,
        }
    }

    /// Waits until `permits` are allowed, and charges them. The error is [permanent](Denied::is_permanent): the request asks
    /// for more than the limit.
    ///
    /// Callers that wait for the same key race for its permits, in no order. The wait has no time limit: if you need
    /// one, wrap the call in a timeout of your runtime.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use slidegate::{KeyedLimiter, Quota};
    ///
    /// let limiter: KeyedLimiter<u32> = KeyedLimiter::new(Quota::per_second(10)?);
    /// for request in 0..15 {
    ///     limiter.until_ready(&7, 1).await.unwrap();
    ///     // … the first ten at once, the others a second later
    /// }
    /// # Ok::<(), slidegate::Error>(()) }).unwrap();
    /// ```
    pub async fn until_ready<Q>(&self, key: &Q, permits: u64) -> Result<Allowed, Denied>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        loop {
            match self.check_n(key, permits) {
                Err(denied) if !denied.permanent => self.clock.sleep(denied.retry_after).await,
                result => return result,
            }
        }
    }

    /// Drops the keys that count nothing any more, and frees their memory.
    pub fn retain_recent(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.drop_idle(self.clock.now());
            shard.table.shrink_to_fit(|slot| self.hasher.hash_one(slot.key.borrow()));
        }
    }

    /// Returns the number of keys, including those that count nothing any more and were not dropped yet.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().table.len()).sum()
    }

    /// Returns true if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Locks the shard of `key`. Returns it with the hash of the key, and the present instant.
    #[inline(always)]
    fn lock_shard<Q: Hash + ?Sized>(&self, key: &Q) -> (LockGuard<'_, Shard<K>>, u64, Micros) {
        let hash = self.hasher.hash_one(key);
        let now = self.clock.now();
        // The hash table uses the low bits of a hash and the top seven, so the shard uses other bits.
        let shard = self.shards[(hash >> 40) as usize % SHARDS].lock();
        let now = now.max(shard.dropped_at);
        (shard, hash, now)
    }

    /// Checks a key that has no counter. A denied request creates no counter, unless attempts count.
    #[cold]
    fn check_new<Q>(
        &self,
        mut shard: LockGuard<'_, Shard<K>>,
        hash: u64,
        now: Micros,
        key: &Q,
        permits: u64,
    ) -> Result<Allowed, Denied>
    where
        Q: ToOwned<Owned = K> + ?Sized,
    {
        let hash_of = |slot: &Slot<K>| self.hasher.hash_one(&slot.key);
        let mut state = State::of_generation(&self.quota, shard.generation);
        let verdict = state.admit(now, &self.quota, permits);
        if !state.is_blank() {
            shard.make_room(now, hash_of);
            shard.generation += 1;
            shard.table.insert_unique(hash, Slot { key: key.to_owned(), state }, hash_of);
        }
        result_of(&verdict)
    }
}

impl<K> Shard<K> {
    #[inline]
    fn find<Q>(&mut self, hash: u64, key: &Q) -> Option<&mut State>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.table.find_mut(hash, |slot| slot.key.borrow() == key).map(|slot| &mut slot.state)
    }

    /// Makes room for one more key. A full table first drops its idle keys, and grows if it is then still more than
    /// three quarters full. So the average number of keys visited for each new key is bounded by a constant.
    fn make_room(&mut self, now: Micros, hash_of: impl Fn(&Slot<K>) -> u64) {
        let capacity = self.table.capacity();
        if self.table.len() < capacity {
            return;
        }
        self.drop_idle(now);
        if self.table.len() > capacity / 4 * 3 {
            self.table.reserve(capacity + 1 - self.table.len(), hash_of);
        }
    }

    fn drop_idle(&mut self, now: Micros) {
        let now = now.max(self.dropped_at);
        self.dropped_at = now;
        self.table.retain(|slot| slot.state.idle_at() > now);
    }
}

#[inline]
fn result_of(verdict: &Verdict) -> Result<Allowed, Denied> {
    let Verdict { used, limit, .. } = *verdict;
    match verdict.outcome {
        Outcome::Charged | Outcome::Fits => Ok(Allowed { used, limit, entry: verdict.entry }),
        outcome => {
            let permanent = outcome == Outcome::Impossible;
            Err(Denied { used, limit, retry_after: verdict.retry_after, permanent })
        }
    }
}

impl<K, C> fmt::Debug for KeyedLimiter<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLimiter").field("quota", &self.quota).finish_non_exhaustive()
    }
}
