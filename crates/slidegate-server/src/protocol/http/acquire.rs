//! `POST /v1/acquire`, `/v1/peek` and `/v1/acquire/batch`.

use std::borrow::Cow;
use std::fmt;

use axum::http::{HeaderMap, StatusCode};
use bytes::BytesMut;
use schemars::{JsonSchema, Schema};
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use slidegate::bounds::MAX_ID;
use slidegate::http::headers;
use slidegate::{AdHocLimit, Decision, Error, Micros, Request, RequestId};

use super::MAX_BATCH;
use super::call::CallRequest;
use super::dto::{Attributes, JsonU64, read_json};
use super::error::{ApiError, BODY_ERRORS, Code, ErrorBody};
use super::operation::{Access, DECISION_HEADERS, Operation};
use super::response::{BufferedResponse, json, ok};
use crate::app::decision_body::{AD_HOC_ALLOWED_EXAMPLE, ALLOWED_EXAMPLE, DENIED_EXAMPLE, DecisionBody};

pub(super) const LOGIN_EXAMPLE: &str = r#"{"attributes":{"api":"/login","ip":"1.2.3.4","user":"alice"}}"#;
pub(super) const AD_HOC_EXAMPLE: &str = r#"{"resource":"user123","limit":10,"window":"1s","permits":3}"#;

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

/// A request for permits, limited by the rules that match its `attributes` or by its own limit for a
/// `resource`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "an object with `attributes` or `resource`")]
#[schemars(rename = "Acquire", transform = require_attributes_or_resource)]
pub(super) struct AcquireBody<'a> {
    /// Attributes of the request, which the rules match and count by.
    #[serde(borrow)]
    attributes: Option<Attributes<'a>>,
    /// Resource to limit by the limit that the request carries.
    #[serde(borrow)]
    #[schemars(length(min = 1))]
    resource: Option<Cow<'a, str>>,
    /// Limit for `resource`, within the bounds of `ad-hoc`.
    limit: Option<JsonU64>,
    /// Window for `resource`, within the bounds of `ad-hoc`: a duration such as `250ms`, `5s` or `1h`.
    #[serde(borrow)]
    window: Option<Cow<'a, str>>,
    /// Number of permits; 0 only reads the state. Default: 1.
    permits: Option<JsonU64>,
    /// Idempotency key: a repeated request with the same id is not charged again.
    #[serde(borrow)]
    #[schemars(length(min = 1, max = MAX_ID), pattern(r"^[A-Za-z0-9._:-]+$"))]
    id: Option<Cow<'a, str>>,
}

/// Adds the constraints between fields that [`AcquireBody::request`] checks to the schema.
fn require_attributes_or_resource(schema: &mut Schema) {
    let alternatives = serde_json::json!([
        {
            "required": ["attributes"],
            "properties": {
                "attributes": { "type": "object" },
                "resource": { "type": "null" },
                "limit": { "type": "null" },
                "window": { "type": "null" },
            },
        },
        {
            "required": ["resource"],
            "properties": { "resource": { "type": "string" }, "attributes": { "type": "null" } },
        },
    ]);
    schema.insert("oneOf".to_owned(), alternatives);
}

impl AcquireBody<'_> {
    pub(super) fn request(&self) -> Result<Request<'_>, Error> {
        let mut request = match (&self.attributes, &self.resource) {
            (Some(_), Some(_)) => return Err(Error::invalid("set `attributes` or `resource`, not both")),
            (None, None) => {
                return Err(Error::invalid("set `attributes`, or `resource` with `limit` and `window`"));
            }
            (Some(attributes), None) => {
                if self.limit.is_some() || self.window.is_some() {
                    return Err(Error::invalid(
                        "`limit` and `window` need `resource`; `attributes` are limited by the rules",
                    ));
                }
                Request::new(attributes.pairs())
            }
            (None, Some(resource)) => self.ad_hoc_request(resource)?,
        };
        if let Some(JsonU64(permits)) = self.permits {
            request = request.permits(permits);
        }
        if let Some(id) = &self.id {
            request = request.id(RequestId::new(id)?);
        }
        Ok(request)
    }

    fn ad_hoc_request<'r>(&self, resource: &'r str) -> Result<Request<'r>, Error> {
        let window = self.window.as_ref().map(|window| window.parse::<Micros>()).transpose();
        let window = window
            .map_err(|_| Error::invalid("`window` must be a length of time such as 250ms, 5s or 1h"))?;
        let limit = AdHocLimit { limit: self.limit.map(|JsonU64(limit)| limit), window, burst: None };
        Ok(Request::resource(resource).with_own_limit(limit))
    }
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

/// A batch of requests.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "an object with `requests`")]
#[schemars(rename = "Batch")]
struct BatchBody<'a> {
    #[serde(borrow, deserialize_with = "bounded_batch")]
    #[schemars(length(max = MAX_BATCH))]
    requests: Vec<AcquireBody<'a>>,
}

/// Deserializes at most [`MAX_BATCH`] requests, so that a small body cannot request much memory.
fn bounded_batch<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<AcquireBody<'a>>, D::Error> {
    deserializer.deserialize_seq(BatchVisitor)
}

struct BatchVisitor;

impl<'de> Visitor<'de> for BatchVisitor {
    type Value = Vec<AcquireBody<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX_BATCH} requests")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut requests = Vec::new();
        while let Some(request) = items.next_element()? {
            if requests.len() == MAX_BATCH {
                return Err(A::Error::invalid_length(MAX_BATCH + 1, &self));
            }
            requests.push(request);
        }
        Ok(requests)
    }
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
