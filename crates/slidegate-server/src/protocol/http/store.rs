//! `GET /v1/store`: kind and state of the store.

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::{
    redis::{FailoverStats, JournalStats, ServerStats},
    store::MemoryStats,
};

use super::Shared;
use super::operation::{Access, Operation};
use super::route::Route;
use crate::app::state::AppState;
use crate::store::{Health, RedisStats};

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Store")]
pub(crate) struct StoreBody {
    /// `memory` or `redis`.
    store: &'static str,
    /// Reason why Redis does not answer, if it does not. `/readyz` has the same text. A circuit breaker opens only after several
    /// failed calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded: Option<String>,
    /// Only for the memory store.
    #[serde(flatten)]
    memory: Option<MemoryBody>,
    /// Only for Redis.
    #[serde(flatten)]
    redis: Option<RedisBody>,
}

#[derive(Serialize, JsonSchema)]
struct MemoryBody {
    /// Number of keys.
    keys: usize,
    /// Number of admissions that are stored individually.
    events: usize,
    /// Bytes of keys, admissions, request ids and settlements.
    bytes: usize,
    /// Keys that were evicted while their count was above zero.
    evicted: u64,
    /// Keys that were removed because their count was zero.
    swept: u64,
    /// Counters that keys share because the store is full.
    shared_counters: usize,
    /// Number of decisions by a shared counter.
    shared: u64,
    /// Decisions that were denied because the store was full.
    denied_full: u64,
    /// Bytes of request ids and settlements.
    note_bytes: usize,
    /// Request ids that were not stored, because `memory.max-note-bytes` was reached.
    ids_dropped: u64,
    /// Settlements and extensions that were not carried out, because `memory.max-note-bytes` was reached.
    settlements_dropped: u64,
}

#[derive(Serialize, JsonSchema)]
struct RedisBody {
    /// State of each Redis server.
    servers: Vec<ServerBody>,
    journal: JournalBody,
    /// Calls in flight.
    in_flight: usize,
    /// Number of replies that arrived after their deadline.
    late: u64,
    /// Number of decisions without Redis, because too many calls were in flight.
    overloaded: u64,
    coalesced: CoalescedBody,
    leases: LeasesBody,
    calls: CallsBody,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StoreServer")]
struct ServerBody {
    /// Address of the server.
    address: String,
    /// Circuit breaker: `closed` (the node uses the server), `open` (the node does not use it) or `half-open` (the node probes it).
    breaker: &'static str,
    /// True if the server alone decides. False while the share of this node limits the decisions, too.
    direct: bool,
    /// Number of nodes that use this server, by their heartbeats.
    nodes: u64,
    /// Number of outages that this node has seen.
    outages: u64,
    /// Permits that were written back to the server.
    written_back: u64,
    /// Permits above the limits of their keys, caused by writing back.
    excess: u64,
    /// Last fault of a call to the server.
    last_fault: Option<&'static str>,
    /// Memory in use at the last check, in bytes.
    used_memory: Option<u64>,
    /// `maxmemory` of the server, if it is set.
    max_memory: Option<u64>,
}

/// Journal of the admissions of this node. If Redis loses them, the node writes them back.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StoreJournal")]
struct JournalBody {
    /// Number of keys.
    keys: usize,
    /// Number of admissions.
    entries: usize,
    /// Size of the journal, in bytes.
    bytes: usize,
    /// Number of admissions that did not fit into the journal.
    dropped: u64,
}

/// Calls of the coalescer, each of which decides the requests that waited for it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StoreCoalesced")]
struct CoalescedBody {
    /// Number of calls.
    calls: u64,
    /// Number of requests in these calls.
    requests: u64,
}

/// Calls to Redis since the server started.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StoreCalls")]
struct CallsBody {
    /// Number of calls.
    calls: u64,
    /// Mean duration of a call.
    mean_us: Option<u64>,
    /// Number of failed calls.
    errors: u64,
}

/// Permits that this node has taken in advance.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StoreLeases")]
struct LeasesBody {
    /// Number of keys with such permits.
    keys: usize,
    /// Number of permits that are not used yet.
    idle_permits: u64,
}

pub(super) fn route() -> Route {
    let operation = Operation::new(Access::Api, "store", "State of the store").answers::<StoreBody>(
        "200",
        "The store",
        &[concat!(
            r#"{"store":"memory","keys":2,"events":5,"bytes":564,"evicted":0,"swept":0,"shared_counters":0,"shared":0,"#,
            r#""denied_full":0,"note_bytes":0,"ids_dropped":0,"settlements_dropped":0}"#
        )],
    );
    Route::new("/v1/store").get(store, operation)
}

async fn store(State(app): State<Shared>) -> Json<StoreBody> {
    let degraded = match app.limiter.store().health().await {
        Health::Answers => None,
        Health::Away(error) | Health::NeverAnswered(error) => Some(error.to_string()),
    };
    Json(StoreBody { degraded, ..StoreBody::of(&app).await })
}

impl StoreBody {
    /// Returns the state of the store. Sizes may be some seconds old; the state of the servers is current.
    pub(crate) async fn of(app: &AppState) -> Self {
        let memory = app.memory_stats().await.map(|stats: MemoryStats| MemoryBody {
            keys: stats.keys,
            events: stats.events,
            bytes: stats.bytes,
            evicted: stats.evicted,
            swept: stats.swept,
            shared_counters: stats.shared_counters,
            shared: stats.shared,
            denied_full: stats.denied_full,
            note_bytes: stats.note_bytes,
            ids_dropped: stats.ids_dropped,
            settlements_dropped: stats.settlements_dropped,
        });
        // Servers are not cached, so that a breaker is reported as it is now.
        let redis = app.redis_stats().await;
        let mut redis = redis.map(|stats| RedisBody::new(stats, app.limiter.store().servers()));
        for server in redis.iter_mut().flat_map(|redis| &mut redis.servers) {
            let memory = app.monitor.memory.server(&server.address);
            server.used_memory = memory.as_ref().map(|memory| memory.used);
            server.max_memory = memory.map(|memory| memory.max).filter(|max| *max > 0);
        }
        StoreBody { store: app.limiter.store().name(), degraded: None, memory, redis }
    }
}

impl RedisBody {
    fn new(stats: RedisStats, servers: Vec<ServerStats>) -> Self {
        let RedisStats { failover, lease, coalesce, calls, .. } = stats;
        let FailoverStats { journal, in_flight, late, overloaded, .. } = failover;
        let JournalStats { keys, entries, bytes, dropped } = journal;
        RedisBody {
            servers: servers.into_iter().map(ServerBody::from).collect(),
            journal: JournalBody { keys, entries, bytes, dropped },
            in_flight,
            late,
            overloaded,
            coalesced: CoalescedBody { calls: coalesce.calls, requests: coalesce.requests },
            leases: LeasesBody { keys: lease.keys, idle_permits: lease.idle },
            calls: CallsBody {
                calls: calls.calls,
                mean_us: calls.time.get().checked_div(calls.calls),
                errors: calls.errors.iter().map(|(_, count)| count).sum(),
            },
        }
    }
}

impl From<ServerStats> for ServerBody {
    fn from(stats: ServerStats) -> Self {
        ServerBody {
            breaker: stats.breaker.as_str(),
            direct: stats.direct,
            nodes: stats.nodes,
            outages: stats.outages,
            written_back: stats.written_back,
            excess: stats.excess,
            last_fault: stats.fault.map(|fault| fault.as_str()),
            address: stats.address,
            used_memory: None,
            max_memory: None,
        }
    }
}
