//! Where the server counts: chosen when it starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slidegate::{
    Ask, Error, Guard, GuardOptions, GuardStats, Inspection, Key, MemoryStore, Readings, Receipt,
    RedisOptions, RedisStore, ServerStats, Settlement, Store,
};

use crate::cli::warn;

/// One of the stores there are.
#[derive(Clone)]
pub enum AnyStore {
    /// In this process.
    Memory(MemoryStore),
    /// In Redis, with every process that counts there.
    Redis(Redis),
}

/// Redis, guarded.
#[derive(Clone)]
pub struct Redis {
    guard: Guard,
    /// Whether it has ever answered.
    met: Arc<AtomicBool>,
}

/// Whether decisions can be made, and what is not as it should be.
pub enum Readiness {
    /// As they should.
    Ready,
    /// Without a store that does not answer now.
    Degraded(Error),
    /// The store has never answered: most likely it is not where it should be.
    NotReady(Error),
}

/// How long to wait before Redis is asked again whether it is there.
const AGAIN: Duration = Duration::from_secs(2);

/// How often it is looked whether a server was given up or is back.
const LOOK: Duration = Duration::from_millis(250);

impl AnyStore {
    /// Counts in Redis. It need not be there yet.
    pub fn redis(options: &RedisOptions, guard: &GuardOptions) -> Result<Self, Error> {
        let guard = GuardOptions { max_in_flight: options.max_in_flight, ..guard.clone() };
        let guard = Guard::new(RedisStore::with_options(options)?, guard)?;
        Ok(AnyStore::Redis(Redis { guard, met: Arc::default() }))
    }

    /// Its kind, in a word.
    pub fn name(&self) -> &'static str {
        match self {
            AnyStore::Memory(_) => "memory",
            AnyStore::Redis(_) => "redis",
        }
    }

    /// Where it counts, for people: without a password.
    pub fn place(&self) -> String {
        match self {
            AnyStore::Memory(_) => "memory".to_owned(),
            AnyStore::Redis(redis) => format!("redis at {}", redis.guard.store().address()),
        }
    }

    /// Whether decisions can be made now.
    pub async fn ready(&self) -> Readiness {
        let AnyStore::Redis(redis) = self else { return Readiness::Ready };
        match redis.guard.store().ping().await {
            Ok(()) => {
                redis.met.store(true, Ordering::Relaxed);
                Readiness::Ready
            }
            Err(error) if redis.met.load(Ordering::Relaxed) => Readiness::Degraded(error),
            Err(error) => Readiness::NotReady(error),
        }
    }

    /// What a guard sees and does; none in memory.
    pub fn stats(&self) -> Option<GuardStats> {
        match self {
            AnyStore::Memory(_) => None,
            AnyStore::Redis(redis) => Some(redis.guard.stats()),
        }
    }

    /// Says how the store is set up and what of that is not good, and from then on when it goes and comes.
    pub async fn introduce(self) {
        let AnyStore::Redis(redis) = self else { return };
        redis.guard.start();
        redis.report().await;
        redis.watch().await;
    }

    /// Says goodbye to the other processes.
    pub async fn leave(&self) {
        if let AnyStore::Redis(redis) = self {
            redis.guard.leave().await;
        }
    }
}

impl Redis {
    /// Waits for it as long as it takes.
    async fn report(&self) {
        let store = self.guard.store();
        let mut told = None;
        loop {
            match store.report().await {
                Ok(report) => {
                    self.met.store(true, Ordering::Relaxed);
                    if told.is_some() {
                        warn(&format!("Redis {} at {} is there", report.version, store.address()));
                    }
                    for warning in &report.warnings {
                        warn(&format!("Redis at {}: {warning}", store.address()));
                    }
                    self.guard.start();
                    return;
                }
                Err(error) => {
                    let text = error.to_string();
                    if told.as_ref() != Some(&text) {
                        warn(&format!("{text}; asking again until it answers"));
                        told = Some(text);
                    }
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn watch(&self) {
        let mut away: Vec<String> = Vec::new();
        loop {
            for ServerStats { address, direct, fault, nodes, .. } in self.guard.servers() {
                let known = away.iter().position(|known| *known == address);
                match (known, direct) {
                    (None, false) => {
                        let fault = fault.map_or("unknown", |fault| fault.as_str());
                        warn(&format!(
                            "Redis at {address} does not answer ({fault}): deciding without it, as one of {nodes}, \
                             until it does"
                        ));
                        away.push(address);
                    }
                    (Some(known), true) => {
                        warn(&format!("Redis at {address} is back, and has what was admitted without it"));
                        away.swap_remove(known);
                    }
                    _ => {}
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Store for AnyStore {
    async fn admit(&self, asks: &[Ask]) -> Result<Readings, Error> {
        match self {
            AnyStore::Memory(store) => store.admit(asks).await,
            AnyStore::Redis(redis) => redis.guard.admit(asks).await,
        }
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        match self {
            AnyStore::Memory(store) => store.settle(settlements).await,
            AnyStore::Redis(redis) => redis.guard.settle(settlements).await,
        }
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        match self {
            AnyStore::Memory(store) => store.inspect(key).await,
            AnyStore::Redis(redis) => redis.guard.inspect(key).await,
        }
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        match self {
            AnyStore::Memory(store) => store.reset(key).await,
            AnyStore::Redis(redis) => redis.guard.reset(key).await,
        }
    }
}
