//! Calls: the operations that take a JSON body and answer with JSON.
//!
//! Each call is declared here once: its path, its description and its handler. The fast path, hyper, the router and
//! `/openapi.json` all use this declaration.

use axum::BoxError;
use axum::body::{Body, HttpBody};
use axum::extract::State;
use axum::http::Request;
use http_body_util::Limited;

use super::dto::read_body;
use super::error::ApiError;
use super::operation::{Charge, Operation};
use super::response::BufferedResponse;
use super::route::Route;
use super::{MAX_BATCH_BODY, MAX_BODY, Shared, acquire, explain, release, report, settle};
use crate::common::protocol::Protocol;
use crate::telemetry::stats::Instrumented;
use crate::telemetry::trace::TraceContext;

slidegate::words! {
    /// Operation with a JSON body: a `POST` to a path, which is its word. The most frequent call is first, because
    /// calls are found by a search from the start.
    pub(super) enum Call {
        Acquire = "/v1/acquire",
        Peek = "/v1/peek",
        AcquireBatch = "/v1/acquire/batch",
        Explain = "/v1/explain",
        Settle = "/v1/settle",
        Release = "/v1/release",
        Extend = "/v1/extend",
        Report = "/v1/report",
    }
}

/// Request for a call, with its whole body.
#[derive(Clone, Copy)]
pub(super) struct CallRequest<'r> {
    pub(super) instrumented: Instrumented<'r>,
    pub(super) body: &'r [u8],
    /// True if the client wants the legacy rate-limit headers as well.
    pub(super) legacy_headers: bool,
}

impl Call {
    fn operation(self) -> Operation {
        let operation = match self {
            Call::Acquire => acquire::acquire_operation(),
            Call::Peek => return acquire::peek_operation(),
            Call::AcquireBatch => acquire::batch_operation(),
            Call::Explain => return explain::operation(),
            Call::Settle => settle::operation(),
            Call::Release => release::release_operation(),
            Call::Extend => release::extend_operation(),
            Call::Report => report::operation(),
        };
        operation.charges(Charge::Sender)
    }

    /// Answers a request whose body has arrived. This is the only place that runs a call.
    pub(super) async fn answer(self, request: CallRequest<'_>) -> BufferedResponse {
        let answer = match self {
            Call::Acquire => acquire::acquire(request).await,
            // These futures are boxed, so that connections that never make these calls do not hold the memory
            // for them.
            Call::Peek => Box::pin(acquire::peek(request)).await,
            Call::AcquireBatch => Box::pin(acquire::batch(request)).await,
            Call::Explain => Box::pin(explain::explain(request)).await,
            Call::Settle => Box::pin(settle::settle(request)).await,
            Call::Release => Box::pin(release::release(request)).await,
            Call::Extend => Box::pin(release::extend(request)).await,
            Call::Report => report::report(request),
        };
        answer.unwrap_or_else(ApiError::into_buffered)
    }

    /// Returns the call of a method and a path.
    #[inline]
    pub(super) fn find(method: &str, path: &str) -> Option<Self> {
        if method != "POST" {
            return None;
        }
        Call::ALL.into_iter().find(|call| call.as_str() == path)
    }

    /// Returns the route of the call. The connection handler answers calls without the router, so the router needs
    /// the route only for other methods of its path.
    pub(super) fn route(self) -> Route {
        let handler = async move |State(app): State<Shared>, request: Request<Body>| {
            self.read_and_answer(app.instrumented(Protocol::Http), request).await.map(Body::from)
        };
        Route::new(self.as_str()).post(handler, self.operation())
    }

    /// Reads the body of a request and answers it.
    pub(super) async fn read_and_answer<B>(
        self,
        instrumented: Instrumented<'_>,
        request: Request<B>,
    ) -> BufferedResponse
    where
        B: HttpBody<Error: Into<BoxError>>,
    {
        let legacy_headers = wants_legacy_headers(request.uri().query());
        let instrumented = instrumented.called_by(TraceContext::of(request.headers()));
        let max_body = if self == Call::AcquireBatch { MAX_BATCH_BODY } else { MAX_BODY };
        match read_body(request.map(|body| Limited::new(body, max_body))).await {
            Ok(body) => self.answer(CallRequest { instrumented, body: &body, legacy_headers }).await,
            Err(error) => error.into_buffered(),
        }
    }
}

/// Returns true if the query has `headers=x-ratelimit`, which requests the legacy headers as well.
pub(super) fn wants_legacy_headers(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|parameter| parameter == "headers=x-ratelimit"))
}
