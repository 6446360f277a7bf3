//! `POST /v1/acquire`, `/v1/peek` and `/v1/acquire/batch`.

use axum::http::{HeaderMap, StatusCode};
use bytes::BytesMut;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::http::headers;
use slidegate::{Decision, Error};

use super::call::CallRequest;
use super::dto::{AcquireBody, BatchBody, read_json};
use super::error::{ApiError, BODY_ERRORS, Code, ErrorBody};
use super::operation::{Access, DECISION_HEADERS, Operation};
use super::response::{BufferedResponse, json, ok};
use crate::app::decision_body::DecisionBody;

pub(super) const LOGIN_EXAMPLE: &str = r#"{"attributes":{"api":"/login","ip":"1.2.3.4","user":"alice"}}"#;
const ALLOWED_EXAMPLE: &str = r#"{"allowed":true,"code":0,"denied_by":null,"retry_after_ms":0,"limits":[{"rule":"login-per-ip","key":"login-per-ip:ip=1.2.3.4","limit":3,"used":1,"remaining":2,"retry_after_ms":0,"reset_after_ms":5000},{"rule":"login-per-user","key":"login-per-user:user=alice","limit":5,"used":1,"remaining":4,"retry_after_ms":0,"reset_after_ms":60000}],"reservation":null,"source":"store"}"#;
const DENIED_EXAMPLE: &str = r#"{"allowed":false,"code":10007,"denied_by":"login-per-ip","retry_after_ms":4986,"limits":[{"rule":"login-per-ip","key":"login-per-ip:ip=1.2.3.4","limit":3,"used":3,"remaining":0,"retry_after_ms":4986,"reset_after_ms":5000},{"rule":"login-per-user","key":"login-per-user:user=alice","limit":5,"used":3,"remaining":2,"retry_after_ms":0,"reset_after_ms":59993}],"reservation":null,"source":"store"}"#;
pub(super) const AD_HOC_EXAMPLE: &str = r#"{"resource":"user123","limit":10,"window":"1s","permits":3}"#;
const AD_HOC_ALLOWED_EXAMPLE: &str = r#"{"allowed":true,"code":0,"denied_by":null,"retry_after_ms":0,"limits":[{"rule":"ad-hoc","key":"ad-hoc:resource=user123:window=1s","limit":10,"used":3,"remaining":7,"retry_after_ms":0,"reset_after_ms":1000}],"reservation":"1794774215407676.0.3.33.ad-hoc:resource=user123:window=1s.5f0c7ab4d1e6938207cd45be91f3a86e","source":"store"}"#;

pub(super) fn acquire_operation() -> Operation {
    decision_operation("acquire", "Request permits")
}

pub(super) fn peek_operation() -> Operation {
    decision_operation("peek", "Return the decision that acquire would make, and charge nothing")
}

fn decision_operation(id: &'static str, summary: &'static str) -> Operation {
    Operation::new(Access::Api, id, summary)
        .text_parameter(
            "query",
            "headers",
            "With `x-ratelimit`, the response also has the headers `X-RateLimit-*`.",
        )
        .takes::<AcquireBody<'_>>(&[LOGIN_EXAMPLE, AD_HOC_EXAMPLE])
        .answers::<DecisionBody<'_>>("200", "Allowed", &[ALLOWED_EXAMPLE, AD_HOC_ALLOWED_EXAMPLE])
        .with_headers(&DECISION_HEADERS)
        .answers::<DecisionBody<'_>>("429", "Denied", &[DENIED_EXAMPLE])
        .with_headers(&DECISION_HEADERS)
        .with_headers(&["Retry-After"])
        .fails(&BODY_ERRORS)
        .fails(&[Code::PermitsExceedLimit])
}

pub(super) fn batch_operation() -> Operation {
    Operation::new(
        Access::Api,
        "acquire-batch",
        "Request permits for several requests. Each of them is decided on its own",
    )
    .takes::<BatchBody<'_>>(&[
        r#"{"requests":[{"resource":"user123","limit":10,"window":"1s","permits":3}]}"#,
    ])
    .answers::<BatchResponse<'_>>(
        "200",
        "A decision or an error for each request, in the order of the requests",
        &[],
    )
    .fails(&BODY_ERRORS)
    .fails(&[Code::PermitsExceedLimit])
}

pub(super) async fn acquire(call: CallRequest<'_>) -> Result<BufferedResponse, ApiError> {
    let body: AcquireBody<'_> = read_json(call.body)?;
    let decision = call.instrumented.acquire(&body.request()?).await?;
    Ok(decision_response(&call, &decision))
}

pub(super) async fn peek(call: CallRequest<'_>) -> Result<BufferedResponse, ApiError> {
    let body: AcquireBody<'_> = read_json(call.body)?;
    let decision = call.instrumented.peek(&body.request()?).await?;
    Ok(decision_response(&call, &decision))
}

fn decision_response(call: &CallRequest<'_>, decision: &Decision) -> BufferedResponse {
    let status = if decision.allowed() { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    // One buffer for the header values and the body; most decisions fit.
    let mut text = BytesMut::with_capacity(768);
    let mut head = HeaderMap::new();
    headers::add(decision, call.legacy_headers, &mut text, &mut head);
    json(status, head, text, &DecisionBody::new(call.instrumented.limiter, decision))
}

/// Decides each request of a batch on its own: an invalid or denied request does not stop the others.
pub(super) async fn batch(call: CallRequest<'_>) -> Result<BufferedResponse, ApiError> {
    let body: BatchBody<'_> = read_json(call.body)?;
    let requests: Vec<_> = body.requests.iter().map(AcquireBody::request).collect();
    let valid: Vec<_> = requests.iter().flatten().cloned().collect();
    let mut decisions = call.instrumented.acquire_many(&valid).await?.into_iter();
    let answers: Vec<Result<Decision, Error>> = requests
        .into_iter()
        .map(|request| request.and_then(|_| decisions.next().unwrap_or_else(|| Err(missing_decision()))))
        .collect();
    let results = answers.iter().map(|answer| match answer {
        Ok(decision) => BatchResult::Decision(DecisionBody::new(call.instrumented.limiter, decision)),
        Err(error) => BatchResult::Error(ApiError::from(error.clone()).body),
    });
    Ok(ok(&BatchResponse { results: results.collect() }))
}

fn missing_decision() -> Error {
    Error::unavailable("the store answered fewer requests than it was given")
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Answers")]
struct BatchResponse<'d> {
    /// A decision or an error for each request, in the order of the requests.
    results: Vec<BatchResult<'d>>,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum BatchResult<'d> {
    Decision(DecisionBody<'d>),
    Error(ErrorBody),
}
