//! `GET /metrics`: metrics for Prometheus. `docs/reference/metrics.md` lists them all, and a test compares the two.
//!
//! Labels are protocols, rules, servers and fixed words: nothing that a caller sends becomes a label.

mod collector;
mod page;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use tokio::sync::OwnedSemaphorePermit;

use self::collector::MetricsCollector;
use super::Shared;
use super::error::{ApiError, Code};
use super::operation::{Access, Operation};
use super::route::Route;

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
    let page = PageBody { rest: Bytes::from(body), _permit: permit };
    Ok(([(header::CONTENT_TYPE, METRICS)], Body::new(page)).into_response())
}

/// Chunk size of the page in bytes. The rest stays here until the client has taken the chunk.
const CHUNK: usize = 16 << 10;

/// Body of a page being sent. It holds its permit until most of the page was sent.
struct PageBody {
    rest: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl HttpBody for PageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.rest.len().min(CHUNK);
        let chunk = self.rest.split_to(length);
        Poll::Ready((!chunk.is_empty()).then(|| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
