//! Store of the server, chosen at start: memory or Redis.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slidegate::{
    Clock, Error, Key, MemoryStore, Micros, Store, SystemClock,
    algorithm::Audit,
    redis::{
        CallStats, CoalesceStats, Failover, FailoverOptions, FailoverStats, LeaseStats, RedisOptions,
        RedisPassword, RedisStore, ServerStats, Stack, StackOptions,
    },
    store::{BatchVerdicts, Checks, DenyCacheStats, Inspection, MemoryStats, Receipt, Settlement},
};

use tokio::sync::Mutex;

use crate::common::console::warn;
use crate::common::secret_file;
use crate::config::{ConfigSettings, StoreKind};

/// Memory store or Redis store.
#[derive(Clone)]
pub enum AnyStore {
    /// Counts in this process.
    Memory(MemoryStore),
    /// Counts in Redis, shared with all processes that use it.
    Redis(Redis),
}

/// Redis with failover and the hot-key layers.
#[derive(Clone)]
pub struct Redis {
    store: Stack,
    failover: Failover,
    /// True once Redis has answered.
    has_answered: Arc<AtomicBool>,
    /// Last readiness probe.
    last_probe: Arc<Mutex<Option<Probe>>>,
    clock: SystemClock,
}

/// Time of a probe, and its error, if any.
type Probe = (Micros, Option<Error>);

/// Statistics of the layers around Redis.
#[derive(Clone)]
pub struct RedisStats {
    /// Deadlines, circuit breakers, and admissions without Redis.
    pub failover: FailoverStats,
    /// Permits taken in advance.
    pub lease: LeaseStats,
    /// Calls, and the requests in them.
    pub coalesce: CoalesceStats,
    /// Denials from the cache.
    pub deny_cache: DenyCacheStats,
    /// Cost of the calls to Redis.
    pub calls: CallStats,
}

/// Readiness of the store for decisions.
pub enum Readiness {
    /// The store answers.
    Ready,
    /// The store does not answer now, and failover decides.
    Degraded(Error),
    /// The store has never answered: most likely its address is wrong.
    NotReady(Error),
}

/// Time for which a readiness probe is valid.
const PROBE_TTL: Duration = Duration::from_millis(500);

/// Pause between two attempts to reach Redis at start.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Interval at which the state of the Redis servers is read.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

impl AnyStore {
    /// Opens a store of this kind with the settings of the configuration. Must be called in a runtime.
    pub(crate) fn open(kind: StoreKind, settings: &ConfigSettings) -> Result<Self, String> {
        match kind {
            StoreKind::Memory => Ok(AnyStore::Memory(MemoryStore::with_options(settings.memory))),
            StoreKind::Redis(url) => {
                let options = settings.redis.options(url.as_deref())?;
                if let (Some(path), Some(password)) =
                    (settings.redis.password_file(), options.password.clone())
                {
                    tokio::spawn(follow_password(path.to_owned(), password));
                }
                AnyStore::redis(&options, &settings.guard, &settings.hot_keys)
                    .map_err(|error| error.to_string())
            }
        }
    }

    /// Creates a Redis store. Redis need not be reachable yet.
    pub fn redis(
        options: &RedisOptions,
        failover: &FailoverOptions,
        hot_keys: &StackOptions,
    ) -> Result<Self, Error> {
        let failover = FailoverOptions { max_in_flight: options.max_in_flight, ..failover.clone() };
        let failover = Failover::new(RedisStore::with_options(options)?, failover)?;
        let store = Stack::around(failover.clone(), hot_keys)?;
        Ok(AnyStore::Redis(Redis {
            store,
            failover,
            has_answered: Arc::default(),
            last_probe: Arc::default(),
            clock: SystemClock::new(),
        }))
    }

    /// Returns the kind of the store, in one word.
    pub fn name(&self) -> &'static str {
        match self {
            AnyStore::Memory(_) => "memory",
            AnyStore::Redis(_) => "redis",
        }
    }

    /// Returns the location of the store for messages, without a password.
    pub fn location(&self) -> String {
        match self {
            AnyStore::Memory(_) => "memory".to_owned(),
            AnyStore::Redis(redis) => format!("redis at {}", redis.failover.store().address()),
        }
    }

    /// Returns the Redis store without failover, for operations other than decisions.
    pub(crate) fn redis_store(&self) -> Option<&RedisStore> {
        match self {
            AnyStore::Memory(_) => None,
            AnyStore::Redis(redis) => Some(redis.failover.store()),
        }
    }

    /// Returns whether decisions can be made now.
    pub async fn ready(&self) -> Readiness {
        let AnyStore::Redis(redis) = self else { return Readiness::Ready };
        match redis.probe().await {
            None => {
                redis.has_answered.store(true, Ordering::Relaxed);
                Readiness::Ready
            }
            Some(error) if redis.has_answered.load(Ordering::Relaxed) => Readiness::Degraded(error),
            Some(error) => Readiness::NotReady(error),
        }
    }

    /// Counts `key` again from its entries. None if nothing is counted.
    pub(crate) async fn audit(
        &self,
        key: &Key,
        limit: Option<u64>,
        repair: bool,
    ) -> Result<Option<Audit>, Error> {
        match self {
            AnyStore::Memory(store) => Ok(store.audit(key)),
            AnyStore::Redis(redis) => redis.failover.store().audit(key, limit, repair).await,
        }
    }

    /// Returns statistics of the memory store. None with Redis. Visits every key, so it must run on a blocking thread.
    pub fn memory_stats(&self) -> Option<MemoryStats> {
        match self {
            AnyStore::Memory(store) => Some(store.stats()),
            AnyStore::Redis(_) => None,
        }
    }

    /// Returns statistics of the layers around Redis. None with the memory store. Visits every key that this node
    /// remembers, so it must run on a blocking thread.
    pub fn redis_stats(&self) -> Option<RedisStats> {
        match self {
            AnyStore::Memory(_) => None,
            AnyStore::Redis(Redis { store, failover, .. }) => Some(RedisStats {
                failover: failover.stats(),
                lease: store.stats(),
                coalesce: store.store().store().stats(),
                deny_cache: store.store().stats(),
                calls: failover.store().calls(),
            }),
        }
    }

    /// Logs problems of the store's setup, and from then on when a server becomes unavailable and available. Never
    /// returns with Redis.
    pub async fn start_and_watch(self) {
        let AnyStore::Redis(redis) = self else { return };
        redis.failover.start();
        redis.report().await;
        redis.watch().await;
    }

    /// Returns leased permits, and tells the other nodes that this one leaves.
    pub async fn leave(&self) {
        if let AnyStore::Redis(redis) = self {
            tokio::join!(redis.store.give_back(), redis.failover.leave());
        }
    }
}

/// Reads the password of Redis again whenever its file changes.
async fn follow_password(path: PathBuf, password: RedisPassword) {
    let read = {
        let path = path.clone();
        move || secret_file::read(&path)
    };
    secret_file::follow("password of Redis", vec![path], read, |text| password.set(text)).await;
}

impl Redis {
    /// Returns the error of the last probe of Redis, if it failed. Redis is probed at most once per [`PROBE_TTL`],
    /// because untrusted clients may request the readiness as often as they like.
    async fn probe(&self) -> Option<Error> {
        let mut last_probe = self.last_probe.lock().await;
        let now = self.clock.now();
        let fresh = last_probe
            .as_ref()
            .filter(|(at, _)| Duration::from(now).saturating_sub((*at).into()) < PROBE_TTL);
        if let Some((_, error)) = fresh {
            return error.clone();
        }
        let error = self.failover.store().ping().await.err();
        *last_probe = Some((self.clock.now(), error.clone()));
        error
    }

    /// Waits until Redis answers, and logs the warnings of its report.
    async fn report(&self) {
        let store = self.failover.store();
        let mut last_error = None;
        loop {
            match store.report().await {
                Ok(report) => {
                    self.has_answered.store(true, Ordering::Relaxed);
                    if last_error.is_some() {
                        warn(&format!("connected to Redis {} at {}", report.version, store.address()));
                    }
                    for warning in &report.warnings {
                        warn(&format!("Redis at {}: {warning}", store.address()));
                    }
                    self.failover.start();
                    return;
                }
                Err(error) => {
                    let text = error.to_string();
                    if last_error.as_ref() != Some(&text) {
                        warn(&format!("{text}; retrying until it answers"));
                        last_error = Some(text);
                    }
                }
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    async fn watch(&self) {
        let mut unavailable: Vec<String> = Vec::new();
        loop {
            for ServerStats { address, direct, fault, nodes, .. } in self.failover.servers() {
                let known = unavailable.iter().position(|known| *known == address);
                match (known, direct) {
                    (None, false) => {
                        let fault = fault.map_or("unknown", |fault| fault.as_str());
                        warn(&format!(
                            "Redis at {address} does not answer ({fault}): deciding without it, as one of {nodes} nodes, \
                             until it does"
                        ));
                        unavailable.push(address);
                    }
                    (Some(known), true) => {
                        warn(&format!(
                            "Redis at {address} is back, and the admissions of the outage are written back"
                        ));
                        unavailable.swap_remove(known);
                    }
                    _ => {}
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

impl Store for AnyStore {
    async fn admit(&self, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        match self {
            AnyStore::Memory(store) => store.admit(batch).await,
            AnyStore::Redis(redis) => redis.store.admit(batch).await,
        }
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        match self {
            AnyStore::Memory(store) => store.settle(settlements).await,
            AnyStore::Redis(redis) => redis.store.settle(settlements).await,
        }
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        match self {
            AnyStore::Memory(store) => store.inspect(key).await,
            AnyStore::Redis(redis) => redis.store.inspect(key).await,
        }
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        match self {
            AnyStore::Memory(store) => store.reset(key).await,
            AnyStore::Redis(redis) => redis.store.reset(key).await,
        }
    }
}
