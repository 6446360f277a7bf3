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
use crate::app::readiness::Readiness;

/// The process is alive.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Health")]
pub(super) struct HealthBody {
    /// `ok`
    status: &'static str,
}

/// Readiness of the server: it is ready if it can decide as configured.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Readiness")]
pub(super) struct ReadinessBody {
    /// True if the server can decide as configured.
    ready: bool,
    /// `memory` or `redis`.
    store: &'static str,
    /// Number of rules in force.
    rules: usize,
    /// Reason why the node decides without the store, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded: Option<String>,
    /// Reason why the server is not ready, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

pub(super) fn healthz_route() -> Route {
    let operation = Operation::new(Access::Public, "healthz", "Liveness of the process")
        .answers::<HealthBody>("200", "The process is alive", &[r#"{"status":"ok"}"#]);
    Route::new("/healthz").get(healthz, operation)
}

pub(super) fn readyz_route() -> Route {
    let operation = Operation::new(Access::Public, "readyz", "Readiness of the server to decide as configured")
        .answers::<ReadinessBody>(
            "200",
            "Ready. If the store does not answer, the node decides by `on-error`, and `degraded` has the reason",
            &[
                r#"{"ready":true,"store":"memory","rules":4}"#,
                r#"{"ready":true,"store":"redis","rules":4,"degraded":"Redis at 127.0.0.1:6379 cannot be reached"}"#,
            ],
        )
        .answers::<ReadinessBody>(
            "503",
            "Not ready. Either the rules are not known yet, or the server is stopping, or a rule has `on-error: closed` and the store has never answered",
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
    let (store, rules) = (limiter.store().name(), limiter.rules().iter().count());
    let (status, ready, degraded, reason) = match app.readiness().await {
        Readiness::Ready => (StatusCode::OK, true, None, None),
        Readiness::Degraded(degraded) => (StatusCode::OK, true, Some(degraded), None),
        Readiness::NotReady(reason) => (StatusCode::SERVICE_UNAVAILABLE, false, None, Some(reason)),
    };
    (status, Json(ReadinessBody { ready, store, rules, degraded, reason }))
}
