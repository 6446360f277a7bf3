//! `GET /metrics`: metrics for Prometheus. `docs/reference/metrics.md` lists them all, and a test compares the two.
//!
//! Labels are protocols, rules, servers and fixed words: nothing that a caller sends becomes a label.

mod collector;
mod page;

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use self::collector::MetricsCollector;
use super::Shared;
use super::error::{ApiError, Code};
use super::operation::{Access, Operation};
use super::route::Route;

/// Chunk size of the page in bytes. The server keeps the rest of the page until the client has taken the chunk.
const CHUNK: usize = 16 << 10;

/// Content type of metrics.
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn route() -> Route {
    let operation = Operation::new(Access::Api, "metrics", "Metrics for Prometheus, in OpenMetrics format")
        .answers_text("200", "The metrics", &[METRICS])
        .fails(&[Code::Unavailable]);
    Route::new("/metrics").get(metrics, operation)
}

async fn metrics(State(app): State<Shared>) -> Result<Response, ApiError> {
    let Ok(permit) = Arc::clone(&app.export.metrics_pages).try_acquire_owned() else {
        return Err(ApiError::new(
            Code::Unavailable,
            "too many concurrent requests for metrics: try again later",
        ));
    };
    let mut registry = Registry::with_prefix("slidegate");
    let (memory, redis) = (app.memory_stats().await, app.redis_stats().await);
    registry.register_collector(Box::new(MetricsCollector { app, memory, redis }));
    let mut body = String::new();
    text::encode(&mut body, &registry)
        .map_err(|_| ApiError::new(Code::Unavailable, "the metrics cannot be written"))?;
    let headers =
        [(header::CONTENT_TYPE, METRICS.to_owned()), (header::CONTENT_LENGTH, body.len().to_string())];
    // The body holds the permit of this page until most of the page was sent.
    let chunks = stream::unfold((Bytes::from(body), permit), |(mut rest, permit)| async move {
        let chunk = rest.split_to(rest.len().min(CHUNK));
        (!chunk.is_empty()).then_some((Ok::<_, Infallible>(chunk), (rest, permit)))
    });
    Ok((headers, Body::from_stream(chunks)).into_response())
}
