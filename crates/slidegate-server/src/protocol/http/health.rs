//! `GET /healthz` and `GET /readyz`: liveness and readiness.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;

use super::Shared;
use super::error::Code;
use super::operation::{Access, Operation};
use super::route::Route;
use crate::store::Readiness;

/// The process is alive.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Health")]
pub(super) struct HealthBody {
    /// `ok`
    status: &'static str,
}

/// Readiness of the server to decide.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Readiness")]
pub(super) struct ReadinessBody {
    ready: bool,
    /// `memory` or `redis`.
    store: &'static str,
    /// Number of rules.
    rules: usize,
    /// Reason why decisions are made without the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded: Option<String>,
    /// Reason why the server is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

pub(super) fn healthz_route() -> Route {
    let operation = Operation::new(Access::Public, "healthz", "Liveness of the process")
        .answers::<HealthBody>("200", "The process is alive", &[r#"{"status":"ok"}"#]);
    Route::new("/healthz").get(healthz, operation)
}

pub(super) fn readyz_route() -> Route {
    let operation = Operation::new(Access::Public, "readyz", "Readiness to decide")
        .answers::<ReadinessBody>("200", "Ready", &[r#"{"ready":true,"store":"memory","rules":4}"#])
        .answers::<ReadinessBody>(
            "503",
            "Not ready: the rules are not known yet, the store has never answered, or the server is stopping",
            &[r#"{"ready":false,"store":"redis","rules":0,"reason":"the rules are not known yet"}"#],
        )
        .fails(&[Code::Timeout]);
    Route::new("/readyz").get(readyz, operation)
}

async fn healthz() -> Json<HealthBody> {
    Json(HealthBody { status: "ok" })
}

async fn readyz(State(app): State<Shared>) -> (StatusCode, Json<ReadinessBody>) {
    let limiter = &app.limiter;
    let (known, rules) = (limiter.rules().is_known(), limiter.rules().iter().count());
    let body =
        |ready| ReadinessBody { ready, store: limiter.store().name(), rules, degraded: None, reason: None };
    if app.is_draining() {
        let reason = Some("the server is stopping".to_owned());
        return (StatusCode::SERVICE_UNAVAILABLE, Json(ReadinessBody { reason, ..body(false) }));
    }
    if !known {
        let reason = Some("the rules are not known yet".to_owned());
        return (StatusCode::SERVICE_UNAVAILABLE, Json(ReadinessBody { reason, ..body(false) }));
    }
    match limiter.store().ready().await {
        Readiness::Ready => (StatusCode::OK, Json(body(true))),
        // The node stays in service: taking every node out would turn an outage of Redis into an outage of
        // everything.
        Readiness::Degraded(error) => {
            (StatusCode::OK, Json(ReadinessBody { degraded: Some(error.to_string()), ..body(true) }))
        }
        Readiness::NotReady(error) => {
            let reason = Some(error.to_string());
            (StatusCode::SERVICE_UNAVAILABLE, Json(ReadinessBody { reason, ..body(false) }))
        }
    }
}
