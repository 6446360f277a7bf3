//! The store that processes share: Redis, or Valkey.
//!
//! One script admits a batch: it reads each key once, judges the asks in order by the server's own clock, and
//! writes each key once. What it decides is what [`judge`](crate::judge()) decides; the tests replay one
//! against the other. `lua/` has the script, in parts; [`layout`] has the names; `transaction` does the same
//! without scripts.

mod connection;
mod fault;
mod held;
mod inspect;
mod layout;
mod options;
mod plan;
mod script;
mod transaction;

use std::sync::Arc;

use redis::Value;

use self::connection::Connections;
pub use self::inspect::{KeyPage, ServerReport};
use self::layout::Names;
use self::options::Expiry;
pub use self::options::{DEFAULT_PREFIX, MAX_BATCH_SIZE, RedisMode, RedisOptions, RedisTls};
use self::plan::Plan;
use self::script::Scripts;
use self::transaction::Transactions;
use crate::{Ask, Error, Fault, Inspection, Key, Readings, Receipt, Settlement, Store};

/// Counts in Redis. Clones share their connections.
///
/// Making one does not connect: the first call does, so a process starts whether Redis is there or not. Use it
/// in a tokio runtime.
///
/// ```no_run
/// # async fn run() -> Result<(), slidegate::Error> {
/// use slidegate::{Limiter, Quota, RedisStore, Rule, Rules};
///
/// let rule = Rule::new("per-user", Quota::per_minute(100)?)?.per(["user"])?;
/// let limiter = Limiter::new(RedisStore::new("redis://127.0.0.1:6379")?, Rules::new([rule])?);
/// let decision = limiter.acquire(slidegate::Request::new([("user", "alice")])).await?;
/// println!("{}", if decision.allowed() { "go on" } else { "too many" });
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    connections: Connections,
    scripts: Scripts,
    transactions: Transactions,
    mode: RedisMode,
    names: Names,
    expiry: Expiry,
    batch_size: usize,
}

impl RedisStore {
    /// A store on the Redis at `url`, with defaults.
    pub fn new(url: &str) -> Result<Self, Error> {
        Self::with_options(&RedisOptions::new(url))
    }

    /// The same with other options.
    pub fn with_options(options: &RedisOptions) -> Result<Self, Error> {
        options.check()?;
        Ok(RedisStore {
            inner: Arc::new(Inner {
                connections: Connections::new(options)?,
                scripts: Scripts::default(),
                transactions: Transactions::default(),
                mode: options.mode,
                names: Names::new(&options.prefix),
                expiry: Expiry::new(options),
                batch_size: options.batch_size,
            }),
        })
    }

    /// Where it counts, without the password.
    pub fn address(&self) -> &str {
        self.inner.connections.address()
    }
}

impl Store for RedisStore {
    /// A batch of more than `batch-size` asks is judged in parts, one after the other, each at its instant.
    async fn admit(&self, asks: &[Ask]) -> Result<Readings, Error> {
        let inner = &*self.inner;
        let mut readings = Readings::new();
        for asks in asks.chunks(inner.batch_size) {
            if inner.mode == RedisMode::Transaction {
                readings.extend(inner.admit_watched(asks).await?);
                continue;
            }
            let plan = Plan::new(asks, &inner.names, inner.expiry);
            let reply = inner.scripts.admit(&inner.connections, plan.parts, &plan.arguments).await?;
            readings.extend(plan.readings(reply)?);
        }
        Ok(readings)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        let inner = &*self.inner;
        if inner.mode == RedisMode::Transaction {
            return inner.settle_watched(settlements).await;
        }
        let arguments = plan::settlement_plan(settlements, &inner.names, inner.expiry);
        let reply = inner.scripts.settle(&inner.connections, &arguments).await?;
        let (at, settled) = plan::settled(reply, settlements.len())?;
        Ok(Receipt { at, settled })
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        self.inner.inspect(key).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        let names = &self.inner.names;
        let mut connection = self.inner.connections.get().await?;
        let mut command = redis::cmd("UNLINK");
        command.arg(names.main(key)).arg(names.log(key)).arg(names.notes(key));
        match connection.send(&command).await {
            Ok(Value::Int(removed)) => Ok(removed > 0),
            Ok(_) => Err(bad_reply()),
            Err(error) => Err(connection.explain(error)),
        }
    }
}

fn bad_reply() -> Error {
    Error::store(Fault::Protocol, "Redis gave an answer that is not one of our script's: is it Redis?")
}
