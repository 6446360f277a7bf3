//! `POST /v1/acquire`, `/v1/peek` and `/v1/acquire/batch`.

use axum::body::{Body, HttpBody};
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{BoxError, Json};
use bytes::BytesMut;
use http_body_util::Limited;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json as value;
use slidegate::http::headers;
use slidegate::{Decision, Error, Limiter};

use super::dto::{AcquireBody, BatchBody, JsonBytes, read_json};
use super::error::{ApiError, Code, ErrorBody};
use super::operation::{ALLOWED_HEADERS, Access, DENIED_HEADERS, Operation};
use super::response::{BufferedResponse, json};
use super::route::Route;
use super::{MAX_BATCH_BODY, MAX_BODY, Shared};
use crate::app::decision_body::DecisionBody;
use crate::common::protocol::Protocol;
use crate::store::AnyStore;
use crate::telemetry::stats::Instrumented;
use crate::telemetry::trace::TraceContext;

/// Kind of decision: acquire the permits of a request, or only peek.
#[derive(Clone, Copy)]
pub(super) enum DecisionKind {
    Acquire,
    Peek,
}

/// Errors of an operation that takes a request for permits.
pub(super) const DECISION_ERRORS: [Code; 7] = [
    Code::InvalidJson,
    Code::InvalidRequest,
    Code::PermitsExceedLimit,
    Code::Timeout,
    Code::TooLarge,
    Code::UnsupportedMediaType,
    Code::Unavailable,
];

pub(super) const LOGIN_EXAMPLE: &str = r#"{"attributes":{"api":"/login","ip":"1.2.3.4","user":"alice"}}"#;
const ALLOWED_EXAMPLE: &str = r#"{"allowed":true,"code":0,"denied_by":null,"retry_after_ms":0,"limits":[{"rule":"login-per-ip","key":"login-per-ip:ip=1.2.3.4","limit":3,"used":1,"remaining":2,"retry_after_ms":0,"reset_after_ms":5000},{"rule":"login-per-user","key":"login-per-user:user=alice","limit":5,"used":1,"remaining":4,"retry_after_ms":0,"reset_after_ms":60000}],"reservation":null,"source":"store"}"#;
const DENIED_EXAMPLE: &str = r#"{"allowed":false,"code":10007,"denied_by":"login-per-ip","retry_after_ms":4986,"limits":[{"rule":"login-per-ip","key":"login-per-ip:ip=1.2.3.4","limit":3,"used":3,"remaining":0,"retry_after_ms":4986,"reset_after_ms":5000},{"rule":"login-per-user","key":"login-per-user:user=alice","limit":5,"used":3,"remaining":2,"retry_after_ms":0,"reset_after_ms":59993}],"reservation":null,"source":"store"}"#;
pub(super) const AD_HOC_EXAMPLE: &str = r#"{"resource":"user123","limit":10,"window":"1s","permits":3}"#;
const AD_HOC_ALLOWED_EXAMPLE: &str = r#"{"allowed":true,"code":0,"denied_by":null,"retry_after_ms":0,"limits":[{"rule":"ad-hoc","key":"ad-hoc:resource=user123:window=1s","limit":10,"used":3,"remaining":7,"retry_after_ms":0,"reset_after_ms":1000}],"reservation":"1794774215407676.0.3.33.ad-hoc:resource=user123:window=1s.5f0c7ab4d1e6938207cd45be91f3a86e","source":"store"}"#;

impl DecisionKind {
    pub(super) fn route(self) -> Route {
        let (path, id, summary) = match self {
            DecisionKind::Acquire => ("/v1/acquire", "acquire", "Ask for permits"),
            DecisionKind::Peek => ("/v1/peek", "peek", "What acquire would answer; charges nothing"),
        };
        let operation = Operation::new(Access::Api, id, summary)
            .parameter(
                "query",
                "headers",
                "`x-ratelimit` adds the older headers.",
                value!({ "type": "string" }),
            )
            .takes::<AcquireBody<'_>>(&[LOGIN_EXAMPLE, AD_HOC_EXAMPLE])
            .answers::<DecisionBody<'_>>("200", "Allowed", &[ALLOWED_EXAMPLE, AD_HOC_ALLOWED_EXAMPLE])
            .with_headers(&ALLOWED_HEADERS)
            .answers::<DecisionBody<'_>>("429", "Denied", &[DENIED_EXAMPLE])
            .with_headers(&DENIED_HEADERS)
            .fails(&DECISION_ERRORS);
        let handler = async move |State(app): State<Shared>, request: Request<Body>| {
            self.read_and_answer(app.instrumented(Protocol::Http), request).await.map(Body::from)
        };
        Route::new(path).post(handler, operation)
    }

    pub(super) fn of(method: &str, path: &str) -> Option<Self> {
        match (method, path) {
            ("POST", "/v1/acquire") => Some(DecisionKind::Acquire),
            ("POST", "/v1/peek") => Some(DecisionKind::Peek),
            _ => None,
        }
    }

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
        match JsonBytes::read(request.map(|body| Limited::new(body, MAX_BODY))).await {
            Ok(body) => self.answer(instrumented, body.as_slice(), legacy_headers).await,
            Err(error) => error.into_buffered(),
        }
    }

    pub(super) async fn answer(
        self,
        instrumented: Instrumented<'_>,
        body: &[u8],
        legacy_headers: bool,
    ) -> BufferedResponse {
        let limiter = instrumented.limiter;
        match self.decide(instrumented, body).await {
            Ok(decision) => decision_response(limiter, &decision, legacy_headers),
            Err(error) => error.into_buffered(),
        }
    }

    async fn decide(self, instrumented: Instrumented<'_>, body: &[u8]) -> Result<Decision, ApiError> {
        let body: AcquireBody<'_> = read_json(body)?;
        let request = body.request()?;
        Ok(match self {
            DecisionKind::Acquire => instrumented.acquire(&request).await?,
            DecisionKind::Peek => instrumented.peek(&request).await?,
        })
    }
}

fn decision_response(
    limiter: &Limiter<AnyStore>,
    decision: &Decision,
    legacy_headers: bool,
) -> BufferedResponse {
    let status = if decision.allowed() { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    // One buffer for the header values and the body; most decisions fit.
    let mut text = BytesMut::with_capacity(768);
    let mut head = HeaderMap::new();
    headers::add(decision, legacy_headers, &mut text, &mut head);
    json(status, head, text, &DecisionBody::new(limiter, decision))
}

/// Returns true if the query has `headers=x-ratelimit`, which requests the legacy headers as well.
pub(super) fn wants_legacy_headers(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|parameter| parameter == "headers=x-ratelimit"))
}

pub(super) fn batch_route() -> Route {
    let operation =
        Operation::new(Access::Api, "acquire-batch", "Ask for permits of several requests, each on its own")
            .takes::<BatchBody<'_>>(&[
                r#"{"requests":[{"resource":"user123","limit":10,"window":"1s","permits":3}]}"#,
            ])
            .answers::<BatchResponse<'_>>("200", "A decision or an error for each, in order", &[])
            .fails(&DECISION_ERRORS);
    Route::new("/v1/acquire/batch").post(batch, operation).up_to(MAX_BATCH_BODY)
}

/// Decides each request of a batch on its own: an invalid or denied request does not stop the others.
async fn batch(
    State(app): State<Shared>,
    caller: TraceContext,
    body: JsonBytes,
) -> Result<Response, ApiError> {
    let body: BatchBody<'_> = read_json(body.as_slice())?;
    let requests: Vec<_> = body.requests.iter().map(AcquireBody::request).collect();
    let valid: Vec<_> = requests.iter().flatten().cloned().collect();
    let instrumented = app.instrumented(Protocol::Http).called_by(caller);
    let mut decisions = instrumented.acquire_many(&valid).await?.into_iter();
    let answers: Vec<Result<Decision, Error>> = requests
        .into_iter()
        .map(|request| request.and_then(|_| decisions.next().unwrap_or_else(|| Err(missing_decision()))))
        .collect();
    let results = answers.iter().map(|answer| match answer {
        Ok(decision) => BatchResult::Decision(DecisionBody::new(&app.limiter, decision)),
        Err(error) => BatchResult::Error(ApiError::from(error.clone()).into_body()),
    });
    Ok(Json(BatchResponse { results: results.collect() }).into_response())
}

fn missing_decision() -> Error {
    Error::unavailable("the store answered fewer requests than it was given")
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Answers")]
struct BatchResponse<'d> {
    results: Vec<BatchResult<'d>>,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum BatchResult<'d> {
    Decision(DecisionBody<'d>),
    Error(ErrorBody),
}
