//! `GET /v1/store`: where the counts are, and how that is.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use slidegate::{GuardStats, MirrorStats, ServerStats};

use super::Shared;

pub(super) async fn store(State(limiter): State<Shared>) -> Json<Value> {
    let store = limiter.store();
    let Some(GuardStats { servers, mirror, in_flight, late, overloaded, .. }) = store.stats() else {
        return Json(json!({ "store": store.name() }));
    };
    let MirrorStats { keys, entries, bytes, dropped } = mirror;
    Json(json!({
        "store": store.name(),
        "servers": servers.iter().map(server).collect::<Vec<_>>(),
        "mirror": { "keys": keys, "entries": entries, "bytes": bytes, "dropped": dropped },
        "in_flight": in_flight,
        "late": late,
        "overloaded": overloaded,
    }))
}

fn server(stats: &ServerStats) -> Value {
    json!({
        "address": stats.address,
        "breaker": stats.breaker.as_str(),
        "direct": stats.direct,
        "nodes": stats.nodes,
        "outages": stats.outages,
        "written_back": stats.written_back,
        "excess": stats.excess,
        "last_fault": stats.fault.map(|fault| fault.as_str()),
    })
}
