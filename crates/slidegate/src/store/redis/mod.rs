//! Store that counts in Redis or Valkey, shared by all processes.
//!
//! One script admits a batch: it reads each key once, evaluates the requests in order by the server's own clock, and
//! writes each key once. The script decides as [`evaluate`](crate::algorithm::evaluate()) does; tests run the same
//! requests through both and compare the results.
//!
//! - `lua/`: the script, in parts; [`script`] assembles them and [`codec`] encodes arguments and decodes replies
//! - [`layout`]: the names of keys in Redis
//! - [`transaction`]: the same decisions without scripts
//! - [`topology`]: which server has a key; [`shard_batch`] splits batches that go to several shards
//! - [`restore`] and [`epoch`]: the operations that failover needs (`RemoteStore`)
//! - [`admin`]: inspection, audit, garbage collection, memory usage

mod admin;
mod call_stats;
mod client;
mod codec;
mod config_stream;
mod connection;
mod epoch;
mod error_map;
mod gossip_stream;
mod invalidation;
mod layout;
mod options;
mod reservation_key;
mod restore;
mod script;
mod server;
mod server_registry;
mod shard_batch;
mod topology;
mod transaction;
mod zset_snapshot;

use std::sync::{Arc, Weak};

use redis::Value;

pub use self::admin::audit::MAX_AUDITED;
pub use self::admin::gc::GcReport;
pub use self::admin::inspect::{KeyPage, ServerReport};
pub use self::admin::memory_usage::{MemoryUsage, RuleMemoryUsage, ServerMemory};
use self::call_stats::Calls;
pub use self::call_stats::{BATCH_BOUNDS, CALL_BOUNDS, CallStats};
use self::codec::Plan;
use self::codec::record::Numbers;
pub use self::config_stream::SharedText;
use self::epoch::Purpose;
pub use self::gossip_stream::Broadcast;
pub(crate) use self::gossip_stream::GossipMessage;
use self::invalidation::RESET;
use self::layout::Names;
use self::options::Expiry;
pub use self::options::{
    DEFAULT_PREFIX, MAX_BATCH_SIZE, RedisMode, RedisOptions, RedisPassword, RedisSentinel, RedisTls,
    RedisTopology,
};
use self::script::{Arguments, Parts, SETTLE_SCRIPT, admit_script};
use self::server::Call;
use self::topology::{ShardId, Topology};
use self::transaction::KeyLocks;
use super::give_back_singly;
use super::remote::{FIRST_RESTORED_SEQ, RemoteStore, ServerId};
use crate::{
    BatchVerdicts, Checks, Entry, Error, Fault, Inspection, Key, Listener, Micros, Receipt, Settled,
    Settlement, Store,
};

/// Store that counts in Redis. Clones share their connections.
///
/// The constructor does not connect: the first call does, so a process starts even if Redis is unreachable. Use the
/// store in a tokio runtime.
///
/// ```no_run
/// # async fn run() -> Result<(), slidegate::Error> {
/// use slidegate::{redis::RedisStore, Limiter, Quota, Rule, Rules};
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
    topology: Topology,
    address: String,
    key_locks: KeyLocks,
    mode: RedisMode,
    names: Names,
    expiry: Expiry,
    batch_size: usize,
    calls: Calls,
}

impl RedisStore {
    /// Creates a store on the Redis at `url`, with default options.
    pub fn new(url: &str) -> Result<Self, Error> {
        Self::with_options(&RedisOptions::new(url))
    }

    /// Creates a store with the given options.
    pub fn with_options(options: &RedisOptions) -> Result<Self, Error> {
        options.check()?;
        Ok(RedisStore {
            inner: Arc::new(Inner {
                topology: Topology::new(options)?,
                address: options.address(),
                key_locks: std::array::from_fn(|_| Default::default()),
                mode: options.mode,
                names: Names::new(&options.prefix),
                expiry: Expiry::new(options),
                batch_size: options.batch_size,
                calls: Calls::default(),
            }),
        })
    }

    pub(crate) fn batch_size(&self) -> usize {
        self.inner.batch_size
    }

    /// Address of Redis, without passwords.
    pub fn address(&self) -> &str {
        &self.inner.address
    }
}

impl Store for RedisStore {
    /// Evaluates a batch of more than `batch-size` requests in parts, one after the other, each at its own instant. In
    /// a cluster the store evaluates the requests of each slot in their order, and on several servers the requests of
    /// each server; each slot or server has its own instant. A request with keys in several slots or servers is
    /// admitted in one after the other, and refunded if one of them denies.
    async fn admit(&self, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        if self.inner.topology.is_one() {
            return self.inner.admit_in_shard(0, batch).await;
        }
        self.inner.admit_across_shards(batch).await
    }

    async fn admit_run(&self, checks: &Checks, times: usize) -> Result<BatchVerdicts, Error> {
        let inner = &*self.inner;
        let plan = self::codec::run_plan(checks, times, &inner.names, inner.expiry);
        let (Some((arguments, parts)), RedisMode::Script) = (plan, inner.mode) else {
            return self.admit(&vec![checks.clone(); times]).await;
        };
        let shard =
            checks.as_slice().first().map_or(0, |check| inner.topology.shard_of(&check.key, &inner.names));
        let reply = inner.decide(shard, times, parts, &arguments).await?;
        self::codec::decode_run(checks, times, reply)
    }

    /// Makes more than `batch-size` settlements in parts, one after the other; the instant is that of the last part.
    /// Returns [`Settled::Gone`] for admission numbers that the store has not given out, and for attempts.
    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        let is_ours = |settlement: &&Settlement| settlement.entry.seq < FIRST_RESTORED_SEQ;
        if settlements.iter().all(|settlement| is_ours(&settlement)) {
            return self.settle_restored(settlements).await;
        }
        let ours: Vec<Settlement> = settlements.iter().filter(is_ours).cloned().collect();
        let Receipt { at, settled } = self.settle_restored(&ours).await?;
        let mut settled = settled.into_iter();
        let outcomes = settlements.iter().map(|settlement| match is_ours(&settlement) {
            true => settled.next().unwrap_or(Settled::Gone),
            false => Settled::Gone,
        });
        Ok(Receipt { at, settled: outcomes.collect() })
    }

    /// Gives back the entries of one instant in one step, as if they were one admission with the number of the first
    /// entry. This leaves only one note. If a reset has deleted that first admission, it has deleted most of the other
    /// entries too, so none of the entries is given back.
    async fn give_back(&self, key: &Key, entries: &[Entry]) -> Result<(), Error> {
        if self.inner.mode != RedisMode::Script {
            return give_back_singly(self, key, entries).await;
        }
        let mut instants: Vec<Settlement> = Vec::new();
        for entry in entries {
            match instants.iter_mut().find(|known| known.entry.at == entry.at) {
                Some(Settlement { entry: known, .. }) => {
                    known.cost = known.cost.saturating_add(entry.cost);
                    known.seq = known.seq.min(entry.seq);
                }
                None => instants.push(Settlement::refund(key.clone(), *entry)),
            }
        }
        for instant in instants {
            self.settle(std::slice::from_ref(&instant)).await?;
        }
        Ok(())
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        self.inner.inspect(key).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        let Inner { topology, names, .. } = &*self.inner;
        let shard = topology.shard_of(key, names);
        let all = names.all(key);
        let (mut removed, mut failed) = (0, None);
        // While a slot of a cluster moves, some of the keys may be on this node and some on another.
        for some in all.chunks(if topology.is_cluster() { 1 } else { all.len() }) {
            let mut command = redis::cmd("UNLINK");
            command.arg(some);
            match topology.call(shard, Purpose::Decide, Call::Command(&command)).await {
                Ok(Value::Int(n)) => removed += n,
                Ok(_) => failed = Some(bad_reply()),
                Err(error) => failed = Some(error),
            }
        }
        // The message is published also if only some of the keys were removed.
        let mut command = redis::cmd("PUBLISH");
        command.arg(names.freed_channel()).arg(format!("{RESET}{key}"));
        // If the Redis user may not publish, other nodes may deny until their cached denials expire.
        let _ = topology.call(shard, Purpose::Decide, Call::Command(&command)).await;
        failed.map_or(Ok(removed > 0), Err)
    }

    fn shard_of(&self, key: &Key) -> u16 {
        if self.inner.topology.is_one() { 0 } else { self.server_of(key).0 }
    }

    fn listen(&self, listener: Weak<dyn Listener>) {
        self.subscribe(listener);
    }
}

impl Inner {
    /// Admits requests whose keys are all in one shard.
    async fn admit_in_shard(&self, shard: ShardId, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        let mut verdicts = BatchVerdicts::new();
        let mut rest = batch;
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(self::codec::first_batch(rest, self.batch_size));
            rest = later;
            if self.mode == RedisMode::Transaction {
                verdicts
                    .extend(self.record_call(batch.len(), self.admit_by_transaction(shard, batch)).await?);
                continue;
            }
            let plan = Plan::new(batch, &self.names, self.expiry);
            let reply = self.decide(shard, batch.len(), plan.parts, &plan.arguments).await?;
            verdicts.extend(plan.decode(reply)?);
        }
        Ok(verdicts)
    }

    /// Calls the script that admits. A call that did not finish has removed expired entries and charged nothing, so
    /// it is sent again.
    async fn decide(
        &self,
        shard: ShardId,
        requests: usize,
        parts: Parts,
        arguments: &Arguments,
    ) -> Result<Value, Error> {
        for _ in 0..DECIDE_ROUNDS {
            let call = Call::Script(admit_script(parts), arguments);
            let reply = self.record_call(requests, self.topology.call(shard, Purpose::Decide, call)).await?;
            if !Numbers::is_unfinished(&reply) {
                return Ok(reply);
            }
        }
        Err(too_many_expired())
    }

    async fn settle_in_shard(&self, shard: ShardId, settlements: &[Settlement]) -> Result<Receipt, Error> {
        let mut receipt = Receipt { at: Micros::ZERO, settled: Vec::with_capacity(settlements.len()) };
        for some in settlements.chunks(self.batch_size) {
            let part = match self.mode {
                RedisMode::Transaction => {
                    self.record_call(0, self.settle_by_transaction(shard, some)).await?
                }
                RedisMode::Script => self.settle_by_script(shard, some).await?,
            };
            receipt.at = part.at;
            receipt.settled.extend(part.settled);
        }
        Ok(receipt)
    }

    async fn settle_by_script(&self, shard: ShardId, settlements: &[Settlement]) -> Result<Receipt, Error> {
        let (at, settled) = self.settle_once(shard, settlements).await?;
        let mut receipt = Receipt { at, settled: Vec::with_capacity(settlements.len()) };
        for (settlement, settled) in settlements.iter().zip(settled) {
            receipt.settled.push(match settled {
                Some(settled) => settled,
                None => self.settle_again(shard, settlement).await?,
            });
        }
        Ok(receipt)
    }

    /// Repeats a settlement until few enough expired entries are left in its key: each call removes some of them.
    #[cold]
    async fn settle_again(&self, shard: ShardId, settlement: &Settlement) -> Result<Settled, Error> {
        for _ in 0..SETTLE_ROUNDS {
            let (_, settled) = self.settle_once(shard, std::slice::from_ref(settlement)).await?;
            if let Some(Some(settled)) = settled.first() {
                return Ok(*settled);
            }
        }
        Err(too_many_expired())
    }

    /// Calls the script that settles. Returns the instant of the call; the outcome is none if the key has too many
    /// expired entries.
    async fn settle_once(
        &self,
        shard: ShardId,
        settlements: &[Settlement],
    ) -> Result<(Micros, Vec<Option<Settled>>), Error> {
        let arguments = self::codec::settlement_plan(settlements, &self.names, self.expiry);
        let call = Call::Script(&SETTLE_SCRIPT, &arguments);
        let reply = self.record_call(0, self.topology.call(shard, Purpose::Decide, call)).await?;
        self::codec::decode_settled(reply, settlements.len())
    }
}

/// Maximum number of calls of one decision that may remove expired entries. Each call takes a few milliseconds, and a
/// decision has a deadline of 50 ms.
const DECIDE_ROUNDS: usize = 6;

/// Maximum number of calls of one settlement that may remove expired entries. It is larger, because a settlement has no
/// such short deadline.
const SETTLE_ROUNDS: usize = 100;

#[cold]
fn too_many_expired() -> Error {
    Error::store(
        Fault::Trimming,
        "a key has too many expired entries for one decision; nothing was charged: try again",
    )
}

/// Converts a reply of a command.
fn convert<T: redis::FromRedisValue>(reply: Value) -> Result<T, Error> {
    redis::from_redis_value(reply).map_err(|_| bad_reply())
}

fn bad_reply() -> Error {
    Error::store(
        Fault::Protocol,
        "the reply is not one of Slidegate's script: check that the server is Redis",
    )
}

#[cfg(fuzzing)]
pub(crate) fn main_name(prefix: &str, key: &crate::Key) -> String {
    layout::Names::new(prefix).name(key, layout::KeyPart::Main)
}
