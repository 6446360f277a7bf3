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

use super::dto::{AcquireBody, BatchBody, DecisionBody, JsonBytes, read_json};
use super::error::{ApiError, Code, ErrorBody};
use super::operation::{ALLOWED, Call, DENIED, Who};
use super::response::{Answer, json};
use super::route::Route;
use super::{MAX_BATCH_BODY, MAX_BODY, Shared};
use crate::common::protocol::Protocol;
use crate::store::AnyStore;
use crate::telemetry::stats::Instrumented;
use crate::telemetry::trace::TraceContext;

/// What is asked about a request: to have its permits, or whether it could.
#[derive(Clone, Copy)]
pub(super) enum DecisionKind {
    Acquire,
    Peek,
}

/// What may be wrong with any body.
pub(super) const FAILS: [Code; 7] = [
    Code::InvalidJson,
    Code::InvalidRequest,
    Code::PermitsExceedLimit,
    Code::Timeout,
    Code::TooLarge,
    Code::UnsupportedMediaType,
    Code::Unavailable,
];

pub(super) const LOGIN: &str = r#"{"attributes":{"api":"/login","ip":"1.2.3.4","user":"alice"}}"#;
const ALLOWS: &str = r#"{"allowed":true,"code":0,"denied_by":null,"retry_after_ms":0,"limits":[{"rule":"login-per-ip","key":"login-per-ip:ip=1.2.3.4","limit":3,"used":1,"remaining":2,"retry_after_ms":0,"reset_after_ms":5000},{"rule":"login-per-user","key":"login-per-user:user=alice","limit":5,"used":1,"remaining":4,"retry_after_ms":0,"reset_after_ms":60000}],"reservation":null,"source":"store"}"#;
const DENIES: &str = r#"{"allowed":false,"code":10007,"denied_by":"login-per-ip","retry_after_ms":4986,"limits":[{"rule":"login-per-ip","key":"login-per-ip:ip=1.2.3.4","limit":3,"used":3,"remaining":0,"retry_after_ms":4986,"reset_after_ms":5000},{"rule":"login-per-user","key":"login-per-user:user=alice","limit":5,"used":3,"remaining":2,"retry_after_ms":0,"reset_after_ms":59993}],"reservation":null,"source":"store"}"#;
pub(super) const OWN: &str = r#"{"resource":"user123","limit":10,"window":"1s","permits":3}"#;
const ALLOWS_OWN: &str = r#"{"allowed":true,"code":0,"denied_by":null,"retry_after_ms":0,"limits":[{"rule":"ad-hoc","key":"ad-hoc:resource=user123:window=1s","limit":10,"used":3,"remaining":7,"retry_after_ms":0,"reset_after_ms":1000}],"reservation":"1794774215407676.0.3.33.ad-hoc:resource=user123:window=1s.5f0c7ab4d1e6938207cd45be91f3a86e","source":"store"}"#;

impl DecisionKind {
    pub(super) fn route(self) -> Route {
        let (path, id, summary) = match self {
            DecisionKind::Acquire => ("/v1/acquire", "acquire", "Ask for permits"),
            DecisionKind::Peek => ("/v1/peek", "peek", "What acquire would answer; charges nothing"),
        };
        let call = Call::new(Who::Asking, id, summary)
            .parameter(
                "query",
                "headers",
                "`x-ratelimit` adds the older headers.",
                value!({ "type": "string" }),
            )
            .takes::<AcquireBody<'_>>(&[LOGIN, OWN])
            .answers::<DecisionBody<'_>>("200", "Allowed", &[ALLOWS, ALLOWS_OWN])
            .headed(&ALLOWED)
            .answers::<DecisionBody<'_>>("429", "Denied", &[DENIES])
            .headed(&DENIED)
            .fails(&FAILS);
        let handler = async move |State(gate): State<Shared>, request: Request<Body>| {
            self.answer_when_here(gate.instrumented(Protocol::Http), request).await.map(Body::from)
        };
        Route::new(path).post(handler, call)
    }

    pub(super) fn of(method: &str, path: &str) -> Option<Self> {
        match (method, path) {
            ("POST", "/v1/acquire") => Some(DecisionKind::Acquire),
            ("POST", "/v1/peek") => Some(DecisionKind::Peek),
            _ => None,
        }
    }

    pub(super) async fn answer_when_here<B>(self, deciding: Instrumented<'_>, request: Request<B>) -> Answer
    where
        B: HttpBody<Error: Into<BoxError>>,
    {
        let older = wants_older(request.uri().query());
        let deciding = deciding.called_by(TraceContext::of(request.headers()));
        match JsonBytes::arrive(request.map(|body| Limited::new(body, MAX_BODY))).await {
            Ok(body) => self.answer(deciding, body.as_slice(), older).await,
            Err(error) => error.into_answer(),
        }
    }

    pub(super) async fn answer(self, deciding: Instrumented<'_>, body: &[u8], older: bool) -> Answer {
        let limiter = deciding.limiter;
        match self.decide(deciding, body).await {
            Ok(decision) => answer(limiter, &decision, older),
            Err(error) => error.into_answer(),
        }
    }

    async fn decide(self, deciding: Instrumented<'_>, body: &[u8]) -> Result<Decision, ApiError> {
        let body: AcquireBody<'_> = read_json(body)?;
        let request = body.request()?;
        Ok(match self {
            DecisionKind::Acquire => deciding.acquire(&request).await?,
            DecisionKind::Peek => deciding.peek(&request).await?,
        })
    }
}

fn answer(limiter: &Limiter<AnyStore>, decision: &Decision, older: bool) -> Answer {
    let status = if decision.allowed() { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    // One buffer for the values of headers and the body; most decisions fit.
    let mut text = BytesMut::with_capacity(768);
    let mut head = HeaderMap::new();
    headers::add(decision, older, &mut text, &mut head);
    json(status, head, text, &DecisionBody::new(limiter, decision))
}

/// `?headers=x-ratelimit` asks for the older headers too.
pub(super) fn wants_older(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|wish| wish == "headers=x-ratelimit"))
}

pub(super) fn batch_route() -> Route {
    let call =
        Call::new(Who::Asking, "acquire-batch", "Ask for permits of several requests, each on its own")
            .takes::<BatchBody<'_>>(&[
                r#"{"requests":[{"resource":"user123","limit":10,"window":"1s","permits":3}]}"#,
            ])
            .answers::<BatchAnswer<'_>>("200", "A decision or an error for each, in order", &[])
            .fails(&FAILS);
    Route::new("/v1/acquire/batch").post(batch, call).up_to(MAX_BATCH_BODY)
}

/// Each request is judged on its own: a bad or a denied one does not stop the others.
async fn batch(
    State(gate): State<Shared>,
    caller: TraceContext,
    body: JsonBytes,
) -> Result<Response, ApiError> {
    let body: BatchBody<'_> = read_json(body.as_slice())?;
    let requests: Vec<_> = body.requests.iter().map(AcquireBody::request).collect();
    let good: Vec<_> = requests.iter().flatten().cloned().collect();
    let deciding = gate.instrumented(Protocol::Http).called_by(caller);
    let mut decided = deciding.acquire_many(&good).await?.into_iter();
    let answers: Vec<Result<Decision, Error>> = requests
        .into_iter()
        .map(|request| request.and_then(|_| decided.next().unwrap_or_else(|| Err(missing()))))
        .collect();
    let results = answers.iter().map(|answer| match answer {
        Ok(decision) => OneOf::Decision(DecisionBody::new(&gate.limiter, decision)),
        Err(error) => OneOf::Error(ApiError::from(error.clone()).into_body()),
    });
    Ok(Json(BatchAnswer { results: results.collect() }).into_response())
}

fn missing() -> Error {
    Error::unavailable("the store answered fewer requests than it was given")
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Answers")]
struct BatchAnswer<'d> {
    results: Vec<OneOf<'d>>,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum OneOf<'d> {
    Decision(DecisionBody<'d>),
    Error(ErrorBody),
}
