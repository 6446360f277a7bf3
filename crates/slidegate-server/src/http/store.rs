//! `GET /v1/store`: where the counts are, and how that is.

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::{GuardStats, MirrorStats, ServerStats};

use super::Shared;
use super::call::{Call, Who};
use super::route::Route;
use crate::store::RedisStats;

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Store")]
pub(super) struct StoreBody {
    /// `memory` or `redis`.
    store: &'static str,
    /// With Redis only.
    #[serde(flatten)]
    redis: Option<RedisBody>,
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
        &[r#"{"store":"memory"}"#],
    );
    Route::new("/v1/store").get(store, call)
}

async fn store(State(gate): State<Shared>) -> Json<StoreBody> {
    let store = gate.limiter.store();
    Json(StoreBody { store: store.name(), redis: store.stats().map(RedisBody::from) })
}

impl From<RedisStats> for RedisBody {
    fn from(RedisStats { guard, lease, coalesce }: RedisStats) -> Self {
        let GuardStats { servers, mirror, in_flight, late, overloaded, .. } = guard;
        let MirrorStats { keys, entries, bytes, dropped } = mirror;
        RedisBody {
            servers: servers.into_iter().map(ServerBody::from).collect(),
            mirror: MirrorBody { keys, entries, bytes, dropped },
            in_flight,
            late,
            overloaded,
            coalesced: CoalescedBody { calls: coalesce.calls, asks: coalesce.asks },
            leases: LeasesBody { keys: lease.keys, idle_permits: lease.idle },
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
        }
    }
}
