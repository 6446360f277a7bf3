//! The HTTP door: JSON in, a decision out.

mod acquire;
mod body;
mod error;
mod headers;
mod rules;
mod settle;
mod store;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use slidegate::Limiter;

use self::error::ApiError;
use crate::store::{AnyStore, Readiness};

/// The largest body of a single request, in bytes.
pub const MAX_BODY: usize = 64 << 10;

/// The largest body of a batch, in bytes.
pub const MAX_BATCH_BODY: usize = 1 << 20;

/// The most requests in a batch.
pub const MAX_BATCH: usize = 1_000;

pub(crate) type Shared = Arc<Limiter<AnyStore>>;

/// Every route. A request that takes longer than `timeout` to arrive and be answered is given up.
pub fn router(limiter: Shared, timeout: Duration) -> Router {
    Router::new()
        .route("/v1/acquire", post(acquire::acquire))
        .route("/v1/peek", post(acquire::peek))
        .route("/v1/acquire/batch", post(acquire::batch).layer(DefaultBodyLimit::max(MAX_BATCH_BODY)))
        .route("/v1/settle", post(settle::settle))
        .route("/v1/rules", get(rules::rules))
        .route("/v1/store", get(store::store))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/", get(index))
        .fallback(async || {
            ApiError::new(StatusCode::NOT_FOUND, "not-found", "there is nothing here: see GET /")
        })
        .method_not_allowed_fallback(async || {
            ApiError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method-not-allowed",
                "this path takes another method: see GET /",
            )
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(move |request, next| in_time(request, next, timeout)))
        .with_state(limiter)
}

async fn in_time(request: Request, next: Next, timeout: Duration) -> Response {
    match tokio::time::timeout(timeout, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let error =
                ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the request took too long to arrive");
            // What is left of the body would be taken for the next request.
            ([(header::CONNECTION, "close")], error).into_response()
        }
    }
}

/// Alive: the process answers.
async fn healthz() -> impl IntoResponse {
    Json(json!({ "status": "ok" }))
}

/// Ready: decisions can be made.
async fn readyz(State(limiter): State<Shared>) -> impl IntoResponse {
    let rules = limiter.rules().iter().count();
    let store = limiter.store().name();
    match limiter.store().ready().await {
        Readiness::Ready => (StatusCode::OK, Json(json!({ "ready": true, "store": store, "rules": rules }))),
        // Taking every node out of service would make an outage of Redis one of everything.
        Readiness::Degraded(error) => {
            let degraded = error.to_string();
            let body = json!({ "ready": true, "store": store, "rules": rules, "degraded": degraded });
            (StatusCode::OK, Json(body))
        }
        Readiness::NotReady(error) => {
            let body = json!({ "ready": false, "store": store, "rules": rules, "reason": error.to_string() });
            (StatusCode::SERVICE_UNAVAILABLE, Json(body))
        }
    }
}

async fn index() -> &'static str {
    "Slidegate\n\
     \n\
     POST /v1/acquire        {\"attributes\":{\"api\":\"/login\",\"ip\":\"1.2.3.4\"},\"permits\":1}\n\
     POST /v1/acquire        {\"resource\":\"user123\",\"limit\":10,\"window\":\"1s\"}\n\
     POST /v1/acquire/batch  {\"requests\":[…]}\n\
     POST /v1/peek           as acquire, charges nothing\n\
     POST /v1/settle         {\"reservation\":\"…\",\"permits\":0}\n\
     GET  /v1/rules  /v1/store\n\
     GET  /healthz  /readyz\n"
}
