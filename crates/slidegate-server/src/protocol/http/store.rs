//! `GET /v1/store`: where the counts are, and how that is.

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::{FailoverStats, JournalStats, MemoryStats, ServerStats};

use super::Shared;
use super::operation::{Call, Who};
use super::route::Route;
use crate::app::state::AppState;
use crate::store::RedisStats;

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Store")]
pub(crate) struct StoreBody {
    /// `memory` or `redis`.
    store: &'static str,
    /// With memory only.
    #[serde(flatten)]
    memory: Option<MemoryBody>,
    /// With Redis only.
    #[serde(flatten)]
    redis: Option<RedisBody>,
}

#[derive(Serialize, JsonSchema)]
struct MemoryBody {
    keys: usize,
    /// Admissions remembered one by one.
    events: usize,
    /// Bytes of keys, admissions, request ids and settlements.
    bytes: usize,
    /// Keys that still counted something and had to make room.
    evicted: u64,
    /// Keys that had nothing left to remember.
    swept: u64,
    /// Counters that keys share because the store is full.
    shared_counters: usize,
    /// Decisions by a shared counter.
    shared: u64,
    /// Decisions that were denied because the store was full.
    denied_full: u64,
    /// Bytes of request ids and settlements.
    note_bytes: usize,
    /// Request ids that were not remembered, because there were too many.
    ids_dropped: u64,
    /// Settlements and extensions that were not carried out, because there were too many.
    settlements_dropped: u64,
}

#[derive(Serialize, JsonSchema)]
struct RedisBody {
    servers: Vec<ServerBody>,
    mirror: MirrorBody,
    /// Calls that have not ended.
    in_flight: usize,
    /// Answers that came after their deadline.
    late: u64,
    /// Decisions without Redis, because too many calls were in flight.
    overloaded: u64,
    coalesced: CoalescedBody,
    leases: LeasesBody,
    calls: CallsBody,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StoreServer")]
struct ServerBody {
    address: String,
    /// `closed` (it is asked), `open` (it is not) or `half-open` (it is tried).
    breaker: &'static str,
    /// Whether it decides alone, without this node's share.
    direct: bool,
    /// Processes that count on it, as far as is known.
    nodes: u64,
    /// Times that it was given up.
    outages: u64,
    /// Permits that were written back to it.
    written_back: u64,
    /// Permits by which that took keys above their limit.
    excess: u64,
    last_fault: Option<&'static str>,
    /// Bytes in use when its memory was last looked at.
    used_memory: Option<u64>,
    /// Its `maxmemory`, if it has one.
    max_memory: Option<u64>,
}

/// What this node admitted itself, in case Redis loses it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StoreMirror")]
struct MirrorBody {
    keys: usize,
    entries: usize,
    bytes: usize,
    dropped: u64,
}

/// How many asks shared how many calls.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StoreCoalesced")]
struct CoalescedBody {
    calls: u64,
    asks: u64,
}

/// Calls to Redis, since the server started.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StoreCalls")]
struct CallsBody {
    calls: u64,
    /// How long they took, on average.
    mean_us: Option<u64>,
    /// How many failed.
    errors: u64,
}

/// Permits taken in advance.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StoreLeases")]
struct LeasesBody {
    keys: usize,
    idle_permits: u64,
}

pub(super) fn route() -> Route {
    let call = Call::new(Who::Asking, "store", "Where the counts are, and how that is").answers::<StoreBody>(
        "200",
        "The store",
        &[concat!(
            r#"{"store":"memory","keys":2,"events":5,"bytes":564,"evicted":0,"swept":0,"shared_counters":0,"shared":0,"#,
            r#""denied_full":0,"note_bytes":0,"ids_dropped":0,"settlements_dropped":0}"#
        )],
    );
    Route::new("/v1/store").get(store, call)
}

async fn store(State(gate): State<Shared>) -> Json<StoreBody> {
    Json(StoreBody::of(&gate).await)
}

impl StoreBody {
    pub(crate) async fn of(gate: &AppState) -> Self {
        let memory = gate.memory_stats().await.map(|stats: MemoryStats| MemoryBody {
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
        let mut redis = gate.redis_stats().await.map(RedisBody::from);
        for server in redis.iter_mut().flat_map(|redis| &mut redis.servers) {
            let memory = gate.monitor.memory.server(&server.address);
            server.used_memory = memory.as_ref().map(|memory| memory.used);
            server.max_memory = memory.map(|memory| memory.max).filter(|max| *max > 0);
        }
        StoreBody { store: gate.limiter.store().name(), memory, redis }
    }
}

impl From<RedisStats> for RedisBody {
    fn from(RedisStats { failover, lease, coalesce, calls, .. }: RedisStats) -> Self {
        let FailoverStats { servers, mirror, in_flight, late, overloaded, .. } = failover;
        let JournalStats { keys, entries, bytes, dropped } = mirror;
        RedisBody {
            servers: servers.into_iter().map(ServerBody::from).collect(),
            mirror: MirrorBody { keys, entries, bytes, dropped },
            in_flight,
            late,
            overloaded,
            coalesced: CoalescedBody { calls: coalesce.calls, asks: coalesce.asks },
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
