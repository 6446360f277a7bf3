//! Where the server counts: chosen when it starts.

use std::time::Duration;

use slidegate::{
    Ask, Error, Inspection, Key, MemoryStore, Readings, Receipt, RedisOptions, RedisStore, Settlement, Store,
};

use crate::cli::warn;

/// One of the stores there are.
#[derive(Clone)]
pub enum AnyStore {
    /// In this process.
    Memory(MemoryStore),
    /// In Redis, with every process that counts there.
    Redis(RedisStore),
}

/// How long to wait before Redis is asked again whether it is there.
const AGAIN: Duration = Duration::from_secs(2);

impl AnyStore {
    /// Counts in Redis. It need not be there yet.
    pub fn redis(options: &RedisOptions) -> Result<Self, Error> {
        RedisStore::with_options(options).map(AnyStore::Redis)
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
            AnyStore::Redis(store) => format!("redis at {}", store.address()),
        }
    }

    /// Whether it could decide now.
    pub async fn ready(&self) -> Result<(), Error> {
        match self {
            AnyStore::Memory(_) => Ok(()),
            AnyStore::Redis(store) => store.ping().await,
        }
    }

    /// Says once how the store is set up, and what of that is not good; waits for it as long as it takes.
    pub async fn introduce(self) {
        let AnyStore::Redis(store) = self else { return };
        let mut told = None;
        loop {
            match store.report().await {
                Ok(report) => {
                    if told.is_some() {
                        warn(&format!("Redis {} at {} is there", report.version, store.address()));
                    }
                    for warning in &report.warnings {
                        warn(&format!("Redis at {}: {warning}", store.address()));
                    }
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
}

impl Store for AnyStore {
    async fn admit(&self, asks: &[Ask]) -> Result<Readings, Error> {
        match self {
            AnyStore::Memory(store) => store.admit(asks).await,
            AnyStore::Redis(store) => store.admit(asks).await,
        }
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        match self {
            AnyStore::Memory(store) => store.settle(settlements).await,
            AnyStore::Redis(store) => store.settle(settlements).await,
        }
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        match self {
            AnyStore::Memory(store) => store.inspect(key).await,
            AnyStore::Redis(store) => store.inspect(key).await,
        }
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        match self {
            AnyStore::Memory(store) => store.reset(key).await,
            AnyStore::Redis(store) => store.reset(key).await,
        }
    }
}
