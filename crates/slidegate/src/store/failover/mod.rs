//! Failover: a store that answers within a deadline when a remote store is slow, unreachable, or has lost its data.
//!
//! Every decision has a deadline. After several failures in a row the state machine of a server (`state_machine`) stops
//! calls to it. The node then decides by itself (`fallback`), starting from its own admissions (`journal`). When the
//! server answers again, the node writes back what it admitted meanwhile and what the server may have lost
//! (`recovery_task`), and only then sends it decisions again.

mod admission_log;
mod admit;
mod bucket_estimate;
mod clock_offset;
mod fallback;
mod journal;
mod lease;
mod membership;
mod node;
mod options;
mod pending_write;
mod recovery_task;
mod server_state;
mod settle;
#[cfg(test)]
mod simulation;
mod state_machine;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use tokio::sync::Semaphore;

use self::journal::Journal;
pub use self::journal::JournalStats;
use self::node::Node;
pub use self::options::FailoverOptions;
pub(crate) use self::options::check_duration;
use self::server_state::ServerState;
pub use self::server_state::ServerStats;
pub use self::state_machine::BreakerState;
use super::multi_shard::{self, ShardedStore};
use super::remote::{RemoteStore, ServerId};
use super::single;
use crate::{
    BatchVerdicts, Check, Checks, Clock, Entry, Error, Fault, Key, Micros, Receipt, RedisStore, Settlement,
    Source, Store, SystemClock, Verdicts,
};

/// A [`RemoteStore`], such as [`RedisStore`], that always answers in time. Clones share all state.
///
/// Each decision names its source: see [`Decision::source`](crate::Decision::source). It must be used within a tokio
/// runtime.
///
/// ```no_run
/// # fn run() -> Result<(), slidegate::Error> {
/// use slidegate::{redis::{Failover, FailoverOptions, RedisStore}, Limiter, OnError, Quota, Rule, Rules};
///
/// let rule = Rule::new("per-user", Quota::per_minute(100)?)?.per(["user"])?.on_error(OnError::Local);
/// let store = Failover::new(RedisStore::new("redis://127.0.0.1:6379")?, FailoverOptions::default())?;
/// let limiter = Limiter::new(store, Rules::new([rule])?);
/// # Ok(()) }
/// ```
pub struct Failover<R: RemoteStore = RedisStore> {
    inner: Arc<Inner<R>>,
}

share_by_clone!(Failover<R: RemoteStore>);

struct Inner<R> {
    store: R,
    node: Node,
    journal: Journal,
    servers: RwLock<Vec<Arc<ServerState>>>,
    in_flight: Arc<Semaphore>,
    /// Calls that ended after their deadline.
    late: AtomicU64,
    overloaded: AtomicU64,
    /// Servers known when the topology was first discovered.
    initial_servers: OnceLock<Vec<ServerId>>,
    /// Servers that left the topology since.
    retired: Mutex<HashSet<ServerId>>,
}

/// Statistics of a [`Failover`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct FailoverStats {
    /// Servers that were called so far.
    pub servers: Vec<ServerStats>,
    /// Size of the journal of this node's own admissions.
    pub journal: JournalStats,
    /// Calls to the store that have not ended.
    pub in_flight: usize,
    /// Calls that ended after their deadline.
    pub late: u64,
    /// Decisions made without the store because too many calls were in flight.
    pub overloaded: u64,
}

impl<R: RemoteStore> Failover<R> {
    /// Wraps `store`, with the system clock.
    pub fn new(store: R, options: FailoverOptions) -> Result<Self, Error> {
        Self::with_clock(store, options, SystemClock::new())
    }

    /// Wraps `store`, with the given clock, which should run at the same rate as the servers' clocks.
    pub fn with_clock(
        store: R,
        options: FailoverOptions,
        clock: impl Clock + 'static,
    ) -> Result<Self, Error> {
        Self::with_seed(store, options, clock, random_seed())
    }

    /// Wraps `store`, with the given clock. The name of the node and its random numbers follow from `seed`, so that a
    /// simulation can be repeated. Nodes of one deployment need different seeds.
    pub fn with_seed(
        store: R,
        options: FailoverOptions,
        clock: impl Clock + 'static,
        seed: u64,
    ) -> Result<Self, Error> {
        options.check()?;
        // A server that lost its data must not decide until this node has written its admissions back.
        store.hold(options.journal > 0);
        Ok(Failover {
            inner: Arc::new(Inner {
                journal: Journal::new(options.journal),
                servers: RwLock::default(),
                in_flight: Arc::new(Semaphore::new(options.max_in_flight)),
                late: AtomicU64::new(0),
                overloaded: AtomicU64::new(0),
                initial_servers: OnceLock::new(),
                retired: Mutex::default(),
                node: Node::new(options, Arc::new(clock), seed),
                store,
            }),
        })
    }

    /// Returns the wrapped store.
    pub fn store(&self) -> &R {
        &self.inner.store
    }

    /// Returns the statistics of the servers that were called so far.
    pub fn servers(&self) -> Vec<ServerStats> {
        let Inner { store, node, servers, .. } = &*self.inner;
        let stats = |server: &Arc<ServerState>| server.stats(node, store.server_address(server.id));
        servers.read().iter().map(stats).collect()
    }

    /// Returns the statistics. It visits every key of the journal, so it suits a metrics page, not a hot path.
    pub fn stats(&self) -> FailoverStats {
        let inner = &*self.inner;
        FailoverStats {
            servers: self.servers(),
            journal: inner.journal.stats(),
            in_flight: inner.node.options.max_in_flight - inner.in_flight.available_permits(),
            late: inner.late.load(Ordering::Relaxed),
            overloaded: inner.overloaded.load(Ordering::Relaxed),
        }
    }

    /// Connects to the servers now, instead of at the first decision, and announces this node to the other nodes.
    pub fn start(&self) {
        for server in self.inner.store.servers() {
            self.inner.server_state_of(server);
        }
    }

    /// Announces to the other nodes that this node leaves, so that their shares of the limits grow at once.
    pub async fn leave(&self) {
        let servers: Vec<_> = self.inner.servers.read().clone();
        for server in servers {
            // A server that does not answer cannot be notified.
            let _ = self::recovery_task::leave(&self.inner, &server).await;
        }
    }
}

impl<R: RemoteStore> Inner<R> {
    async fn admit_one(self: &Arc<Self>, checks: &Checks) -> Result<Verdicts, Error> {
        let Some(first) = checks.as_slice().first() else {
            return Ok(Verdicts { at: Micros::ZERO, source: Source::NoRule, verdicts: SmallVec::new() });
        };
        self.ensure_discovered().await;
        if let Some(parts) = multi_shard::split(checks, |check| self.store.server_of(&check.key)) {
            return multi_shard::admit(Arc::new(Failover { inner: Arc::clone(self) }), checks, parts).await;
        }
        let server = self.server_state_of(self.store.server_of(&first.key));
        single(self.admit_on(&server, std::slice::from_ref(checks)).await?)
    }

    /// Discovers the servers before the first key is routed. If that fails, all keys are routed to the first server,
    /// which does not answer.
    pub(super) async fn ensure_discovered(&self) {
        if self.initial_servers.get().is_none() {
            let _ = self.discover_servers().await;
        }
    }

    /// Returns the server of all keys, if there is only one.
    fn single_server(&self, batch: &[Checks]) -> Option<ServerId> {
        let any_empty = batch.iter().any(|checks| checks.as_slice().is_empty());
        let checks = batch.iter().flat_map(Checks::as_slice);
        let mut servers = checks.map(|check| self.store.server_of(&check.key));
        let first = servers.next()?;
        (!any_empty && servers.all(|server| server == first)).then_some(first)
    }

    /// Decides a batch with one concurrent call per server. Requests with keys on several servers are decided
    /// separately.
    async fn admit_many(self: &Arc<Self>, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        self.ensure_discovered().await;
        if let Some(server) = self.single_server(batch) {
            return self.admit_on(&self.server_state_of(server), batch).await;
        }
        let mut groups: Vec<(ServerId, Vec<usize>)> = Vec::new();
        let mut multi_server = Vec::new();
        for (i, checks) in batch.iter().enumerate() {
            let server_of = |check: &Check| self.store.server_of(&check.key);
            match checks.as_slice().first() {
                Some(first) if multi_shard::split(checks, server_of).is_none() => {
                    multi_shard::add_to_group(&mut groups, server_of(first), i);
                }
                _ => multi_server.push(i),
            }
        }
        let grouped = groups.into_iter().map(async |(server, indices)| {
            let server = self.server_state_of(server);
            let group: Vec<Checks> = indices.iter().map(|&i| batch[i].clone()).collect();
            let batch_verdicts = self.admit_on(&server, &group).await?;
            Ok::<_, Error>(indices.into_iter().zip(batch_verdicts).collect::<Vec<_>>())
        });
        let single = multi_server
            .into_iter()
            .map(async |i| Ok::<_, Error>(vec![(i, self.admit_one(&batch[i]).await?)]));
        let (grouped, single) = tokio::join!(join_all(grouped), join_all(single));
        let mut batch_verdicts: Vec<(usize, Verdicts)> = Vec::with_capacity(batch.len());
        for part in grouped.into_iter().chain(single) {
            batch_verdicts.extend(part?);
        }
        batch_verdicts.sort_unstable_by_key(|(i, _)| *i);
        if batch_verdicts.len() != batch.len() {
            return Err(Error::short_answer());
        }
        Ok(batch_verdicts.into_iter().map(|(_, verdicts)| verdicts).collect())
    }

    /// Returns the state of a server; creates it and starts its recovery task on first use.
    fn server_state_of(self: &Arc<Self>, id: ServerId) -> Arc<ServerState> {
        if let Some(server) = self.servers.read().iter().find(|server| server.id == id) {
            return Arc::clone(server);
        }
        let mut servers = self.servers.write();
        if let Some(server) = servers.iter().find(|server| server.id == id) {
            return Arc::clone(server);
        }
        let template = servers.iter().max_by_key(|template| template.membership.lock().share.0);
        let server = Arc::new(ServerState::new(id, &self.node, template.map(|template| &**template)));
        servers.push(Arc::clone(&server));
        tokio::spawn(self::recovery_task::run(Arc::downgrade(self), Arc::clone(&server)));
        server
    }

    /// Returns whether the server was known when the topology was first discovered. A server that is found later has
    /// taken over the keys of another server.
    fn is_initial(&self, server: ServerId) -> bool {
        let initial = self.initial_servers.get().is_some_and(|initial| initial.contains(&server));
        // A server that left the topology and comes back has missed the admissions made meanwhile.
        initial && !self.retired.lock().contains(&server)
    }

    /// Discovers the servers for the first time, within the deadline.
    #[cold]
    async fn discover_servers(&self) -> Result<(), Error> {
        let found = tokio::time::timeout(self.node.options.deadline, self.store.discover()).await;
        found.unwrap_or_else(|_| Err(Error::store(Fault::Timeout, "the cluster did not answer in time")))?;
        self.initial_servers.get_or_init(|| self.store.servers());
        Ok(())
    }

    /// Reads the current servers and creates a state for each.
    async fn refresh_topology(self: &Arc<Self>) {
        if self.store.refresh_topology().await.is_ok() {
            self.initial_servers.get_or_init(|| self.store.servers());
            for server in self.store.servers() {
                self.server_state_of(server);
            }
        }
    }

    /// Forgets a server that the topology no longer contains; returns whether it did.
    fn retire_if_removed(&self, server: &ServerState) -> bool {
        let retired = self.initial_servers.get().is_some() && !self.store.servers().contains(&server.id);
        if retired {
            self.retired.lock().insert(server.id);
            self.servers.write().retain(|known| known.id != server.id);
        }
        retired
    }
}

impl<R: RemoteStore> Store for Failover<R> {
    async fn admit(&self, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        if let [checks] = batch {
            return Ok(SmallVec::from_buf([self.inner.admit_one(checks).await?]));
        }
        self.inner.admit_many(batch).await
    }

    async fn admit_run(&self, checks: &Checks, times: usize) -> Result<BatchVerdicts, Error> {
        self.inner.admit_run(checks, times).await
    }

    /// Corrects admissions of this node's fallback at once, and all other admissions in the store. While a server is
    /// unavailable, the admissions that it made cannot be settled.
    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        self.inner.settle(settlements).await
    }

    async fn give_back(&self, key: &Key, entries: &[Entry]) -> Result<(), Error> {
        self.inner.give_back(key, entries).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        self.inner.journal.forget(key);
        self.inner.store.reset(key).await
    }

    forward!(self => self.inner.store; inspect, shard_of, listen);
}

impl<R: RemoteStore> ShardedStore for Failover<R> {
    type Shard = ServerId;

    async fn admit_part(&self, server: &ServerId, checks: Checks) -> Result<Verdicts, Error> {
        let server = self.inner.server_state_of(*server);
        single(self.inner.admit_on(&server, &[checks]).await?)
    }

    async fn give_back(&self, _: &ServerId, settlements: Vec<Settlement>) -> Result<(), Error> {
        self.inner.settle(&settlements).await.map(|_| ())
    }
}

/// Returns a random node name.
pub(crate) fn random_node_name() -> String {
    self::membership::node_name(random_seed())
}

/// Returns a random number from the seed of the standard library's hasher.
fn random_seed() -> u64 {
    use std::hash::BuildHasher;
    std::hash::RandomState::new().hash_one(std::process::id())
}
