//! Store of the server, chosen at start: memory or Redis.

mod keys;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slidegate::{
    Clock, Error, Key, MemoryStore, Micros, OnError, Rules, Store, SystemClock,
    algorithm::Audit,
    redis::{
        BreakerState, CallStats, CoalesceStats, Failover, FailoverOptions, FailoverStats, LeaseStats,
        RedisOptions, RedisPassword, RedisStore, ServerStats, Stack, StackOptions,
    },
    store::{BatchVerdicts, Checks, DenyCacheStats, Inspection, MemoryStats, Receipt, Settlement},
};

use tokio::sync::Mutex;

pub(crate) use self::keys::{KeyCursor, KeyQuery};
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
    /// Policy for rules without `on-error`, and for requests that give their own limit.
    on_error: OnError,
    clock: SystemClock,
}

/// Outage that is logged when it begins and when it ends.
struct Outage {
    server: String,
    since: Micros,
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

/// Answer of the store to a probe.
pub(crate) enum Health {
    Answers,
    /// The store does not answer now, and has answered before.
    Away(Error),
    /// The store has not answered since the server started.
    NeverAnswered(Error),
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
        let on_error = failover.on_error;
        let failover = FailoverOptions { max_in_flight: options.max_in_flight, ..failover.clone() };
        let failover = Failover::new(RedisStore::with_options(options)?, failover)?;
        let store = Stack::around(failover.clone(), hot_keys)?;
        Ok(AnyStore::Redis(Redis {
            store,
            failover,
            has_answered: Arc::default(),
            last_probe: Arc::default(),
            on_error,
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

    /// Returns the state of the Redis servers that were called so far; none with the memory store.
    pub(crate) fn servers(&self) -> Vec<ServerStats> {
        match self {
            AnyStore::Memory(_) => Vec::new(),
            AnyStore::Redis(redis) => redis.failover.servers(),
        }
    }

    /// Probes the store.
    pub(crate) async fn health(&self) -> Health {
        let AnyStore::Redis(redis) = self else { return Health::Answers };
        match redis.probe().await {
            None => {
                redis.has_answered.store(true, Ordering::Relaxed);
                // The probe may be older than the outage.
                redis.open_breaker().map_or(Health::Answers, Health::Away)
            }
            Some(error) if redis.has_answered.load(Ordering::Relaxed) => Health::Away(error),
            Some(error) => Health::NeverAnswered(error),
        }
    }

    /// Returns the setting because of which some requests are denied while the store does not answer. None if this node can
    /// decide all of them.
    pub(crate) fn denies_without_answer(&self, rules: &Rules) -> Option<String> {
        let AnyStore::Redis(redis) = self else { return None };
        if redis.on_error == OnError::Closed {
            return Some("`guard.on-error` is `closed`".to_owned());
        }
        match rules.closed_on_error(redis.on_error).count() {
            0 => None,
            1 => Some("`on-error` is `closed` for 1 rule".to_owned()),
            n => Some(format!("`on-error` is `closed` for {n} rules")),
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
        let outage = redis.report().await;
        redis.watch(outage).await;
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

    /// Returns an error that names a server which this node does not call now.
    fn open_breaker(&self) -> Option<Error> {
        let mut servers = self.failover.servers().into_iter();
        let ServerStats { address, fault, .. } =
            servers.find(|server| server.breaker != BreakerState::Closed)?;
        let fault = fault.map_or("unknown", |fault| fault.as_str());
        Some(Error::unavailable(format!("Redis at {address} does not answer ({fault})")))
    }

    /// Waits until Redis answers, and logs the warnings of its report. If Redis did not answer the first
    /// call, returns the outage that began then.
    async fn report(&self) -> Option<Outage> {
        let store = self.failover.store();
        let (mut outage, mut last_error) = (None, None);
        loop {
            match store.report().await {
                Ok(report) => {
                    self.has_answered.store(true, Ordering::Relaxed);
                    if outage.is_some() {
                        let (server, version) = (store.address(), &report.version);
                        tracing::info!(
                            event = "connected",
                            server,
                            version,
                            "connected to Redis {version} at {server}"
                        );
                    }
                    for warning in &report.warnings {
                        warn(&format!("Redis at {}: {warning}", store.address()));
                    }
                    self.failover.start();
                    return outage;
                }
                Err(error) => {
                    let message = format!("{error}; retrying until it answers");
                    if outage.is_none() {
                        let fault = error.fault().map(|fault| fault.as_str());
                        outage = Some(self.begin_outage(store.address(), fault, &message));
                    } else if last_error.as_ref() != Some(&message) {
                        warn(&message);
                    }
                    last_error = Some(message);
                }
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Logs when a server becomes unavailable, and when it is available again. `at_start` is an outage of all servers that has
    /// been logged already: it ends when every server decides.
    async fn watch(&self, mut at_start: Option<Outage>) {
        let mut outages: Vec<Outage> = Vec::new();
        loop {
            let servers = self.failover.servers();
            if servers.iter().all(|server| server.direct)
                && let Some(outage) = at_start.take()
            {
                self.end_outage(outage);
            }
            if at_start.is_none() {
                servers.into_iter().for_each(|server| self.follow_server(server, &mut outages));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn follow_server(&self, server: ServerStats, outages: &mut Vec<Outage>) {
        let ServerStats { address, direct, fault, nodes, .. } = server;
        let known = outages.iter().position(|outage| outage.server == address);
        match (known, direct) {
            (None, false) => {
                let fault = fault.map(|fault| fault.as_str());
                let message = format!(
                    "Redis at {address} does not answer ({}): deciding without it, as one of {nodes} nodes, until it does",
                    fault.unwrap_or("unknown")
                );
                outages.push(self.begin_outage(&address, fault, &message));
            }
            (Some(known), true) => self.end_outage(outages.swap_remove(known)),
            _ => {}
        }
    }

    fn begin_outage(&self, server: &str, fault: Option<&str>, message: &str) -> Outage {
        tracing::warn!(event = "outage_begin", server, fault, "{message}");
        Outage { server: server.to_owned(), since: self.clock.now() }
    }

    /// Logs the end at the same level as the beginning, so that a filter shows both or neither.
    fn end_outage(&self, Outage { server, since }: Outage) {
        let duration_ms = self.clock.now().since(since).ceil_millis();
        tracing::warn!(
            event = "outage_end",
            server,
            duration_ms,
            "Redis at {server} is back after {}, and the admissions of the outage are written back",
            Micros::from_millis(duration_ms)
        );
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
