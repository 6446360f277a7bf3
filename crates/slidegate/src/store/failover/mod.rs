//! A store that always answers in time: when Redis is slow, gone, or not what it was.
//!
//! Every decision has a deadline. A server that fails again and again is not asked (`breaker`), and decisions are
//! made here (`local`), from what this node itself had admitted (`mirror`). When the server is back, what was
//! admitted meanwhile, and what it may have lost, is written back before it is asked again (`keeper`).

mod admission_log;
mod admit;
mod breaker;
mod bucket_estimate;
mod clock_offset;
mod fallback;
mod journal;
mod membership;
mod options;
mod recovery_task;
mod routing;
mod server_state;
mod settle;
#[cfg(test)]
mod simulation;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use tokio::sync::Semaphore;

pub use self::breaker::BreakerState;
use self::journal::Journal;
pub use self::journal::JournalStats;
pub use self::options::FailoverOptions;
pub(crate) use self::options::{lasts, within};
use self::server_state::ServerState;
pub use self::server_state::ServerStats;
use super::redis::ServerId;
use crate::{
    BatchVerdicts, Checks, Clock, Entry, Error, Fault, Inspection, Key, Listener, Receipt, RedisStore,
    Settlement, Store, SystemClock,
};

/// A [`RedisStore`] that always answers in time. Clones share everything.
///
/// Each decision says who made it: see [`Decision::source`](crate::Decision::source). Use it in a tokio runtime.
///
/// ```no_run
/// # fn run() -> Result<(), slidegate::Error> {
/// use slidegate::{Failover, FailoverOptions, Limiter, OnError, Quota, RedisStore, Rule, Rules};
///
/// let rule = Rule::new("per-user", Quota::per_minute(100)?)?.per(["user"])?.on_error(OnError::Local);
/// let store = Failover::new(RedisStore::new("redis://127.0.0.1:6379")?, FailoverOptions::default())?;
/// let limiter = Limiter::new(store, Rules::new([rule])?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Failover {
    inner: Arc<Inner>,
}

struct Inner {
    store: RedisStore,
    options: FailoverOptions,
    clock: Arc<dyn Clock>,
    mirror: Journal,
    servers: RwLock<Vec<Arc<ServerState>>>,
    in_flight: Arc<Semaphore>,
    /// What this process is called among those that count on the same servers.
    name: String,
    chance: AtomicU64,
    late: AtomicU64,
    overloaded: AtomicU64,
    /// How many times without a server there were, of all of them.
    outages: AtomicU64,
    /// The servers that there were when the first was met, and those that were given up since for others.
    first: OnceLock<Vec<ServerId>>,
    retired: Mutex<HashSet<ServerId>>,
}

/// What a guard sees and does.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct FailoverStats {
    /// The servers that were asked so far.
    pub servers: Vec<ServerStats>,
    /// What is remembered of what this process had admitted.
    pub mirror: JournalStats,
    /// Calls to the store that have not ended.
    pub in_flight: usize,
    /// Answers of the store that came after their deadline.
    pub late: u64,
    /// Decisions that were made without the store because too many calls were in flight.
    pub overloaded: u64,
}

impl Failover {
    /// Guards `store`.
    pub fn new(store: RedisStore, options: FailoverOptions) -> Result<Self, Error> {
        Self::with_clock(store, options, SystemClock::new())
    }

    /// The same on another clock, which should run as the servers' clocks do.
    pub fn with_clock(
        store: RedisStore,
        options: FailoverOptions,
        clock: impl Clock + 'static,
    ) -> Result<Self, Error> {
        options.check()?;
        // A server that is not the one that counted before must wait until it has everything back.
        store.hold(options.mirror > 0);
        let seed = random_seed();
        Ok(Failover {
            inner: Arc::new(Inner {
                mirror: Journal::new(options.mirror),
                servers: RwLock::default(),
                in_flight: Arc::new(Semaphore::new(options.max_in_flight)),
                name: self::membership::name(seed),
                chance: AtomicU64::new(seed),
                late: AtomicU64::new(0),
                overloaded: AtomicU64::new(0),
                outages: AtomicU64::new(0),
                first: OnceLock::new(),
                retired: Mutex::default(),
                clock: Arc::new(clock),
                store,
                options,
            }),
        })
    }

    /// The store it guards.
    pub fn store(&self) -> &RedisStore {
        &self.inner.store
    }

    /// The servers that were asked so far.
    pub fn servers(&self) -> Vec<ServerStats> {
        self.inner.servers.read().iter().map(|server| server.stats(&self.inner)).collect()
    }

    /// What it sees and does. Walks over every key it remembers: for a metrics page, not for a hot path.
    pub fn stats(&self) -> FailoverStats {
        let inner = &*self.inner;
        FailoverStats {
            servers: self.servers(),
            mirror: inner.mirror.stats(),
            in_flight: inner.options.max_in_flight - inner.in_flight.available_permits(),
            late: inner.late.load(Ordering::Relaxed),
            overloaded: inner.overloaded.load(Ordering::Relaxed),
        }
    }

    /// Asks the servers from now on, not only when the first decision needs them, and tells the other processes
    /// that this one is there.
    pub fn start(&self) {
        for server in self.inner.store.servers() {
            self.inner.watched(server);
        }
    }

    /// Tells the other processes that this one is gone, so that their share of the limits grows at once.
    pub async fn leave(&self) {
        let servers: Vec<_> = self.inner.servers.read().clone();
        for server in servers {
            server.leave(&self.inner).await;
        }
    }
}

impl Inner {
    /// The server with this number, watched from now on.
    fn watched(self: &Arc<Self>, id: ServerId) -> Arc<ServerState> {
        if let Some(server) = self.servers.read().iter().find(|server| server.id == id) {
            return Arc::clone(server);
        }
        let mut servers = self.servers.write();
        if let Some(server) = servers.iter().find(|server| server.id == id) {
            return Arc::clone(server);
        }
        let another = servers.iter().max_by_key(|another| another.peers.lock().share().0);
        let server = Arc::new(ServerState::new(id, self, another.map(|another| &**another)));
        servers.push(Arc::clone(&server));
        tokio::spawn(self::recovery_task::keep(Arc::downgrade(self), Arc::clone(&server)));
        server
    }

    fn chance(&self) -> u64 {
        // The steps of a Weyl sequence, mixed.
        let step = self.chance.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        let mixed = (step ^ step >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ mixed >> 27
    }

    /// Whether a server was there when the first was met: later ones took over from others.
    fn is_first(&self, server: ServerId) -> bool {
        let first = self.first.get().is_some_and(|first| first.contains(&server));
        // One that comes back has missed what was admitted meanwhile.
        first && !self.retired.lock().contains(&server)
    }

    /// Finds out which servers there are, the first time.
    #[cold]
    async fn find(&self) -> Result<(), Error> {
        let found = tokio::time::timeout(self.options.deadline, self.store.discover()).await;
        found.unwrap_or_else(|_| Err(Error::store(Fault::Timeout, "the cluster did not answer in time")))?;
        self.first.get_or_init(|| self.store.servers());
        Ok(())
    }

    /// Finds out which servers there are now, and watches them.
    async fn refresh_topology(self: &Arc<Self>) {
        if self.store.refresh_topology().await.is_ok() {
            self.first.get_or_init(|| self.store.servers());
            for server in self.store.servers() {
                self.watched(server);
            }
        }
    }

    /// Whether a server counts nothing any more; it is then forgotten.
    fn is_retired(&self, server: &ServerState) -> bool {
        let retired = self.first.get().is_some() && !self.store.servers().contains(&server.id);
        if retired {
            self.retired.lock().insert(server.id);
            self.servers.write().retain(|known| known.id != server.id);
        }
        retired
    }
}

impl Store for Failover {
    async fn admit(&self, asks: &[Checks]) -> Result<BatchVerdicts, Error> {
        if let [ask] = asks {
            return Ok(SmallVec::from_buf([self.inner.admit_one(ask).await?]));
        }
        self.inner.admit_many(asks).await
    }

    async fn admit_run(&self, ask: &Checks, times: usize) -> Result<BatchVerdicts, Error> {
        self.inner.admit_run(ask, times).await
    }

    /// Corrects what was admitted here at once, and the rest in the store. While a server is given up, what it
    /// has admitted cannot be settled.
    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        self.inner.settle(settlements).await
    }

    async fn give_back(&self, key: &Key, entries: &[Entry]) -> Result<(), Error> {
        self.inner.give_back(key, entries).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        self.inner.store.inspect(key).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        self.inner.mirror.forget(key);
        self.inner.store.reset(key).await
    }

    fn lane(&self, key: &Key) -> u16 {
        self.inner.store.lane(key)
    }

    fn listen(&self, listener: Weak<dyn Listener>) {
        self.inner.store.listen(listener);
    }
}

/// A name for one process among many.
pub(crate) fn some_name() -> String {
    self::membership::name(random_seed())
}

/// Any number.
fn random_seed() -> u64 {
    use std::hash::BuildHasher;
    std::hash::RandomState::new().hash_one(std::process::id())
}
