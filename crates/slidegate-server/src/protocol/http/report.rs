//! `POST /v1/report`: takes the latency of an allowed request, as input for adaptive rules.

use std::borrow::Cow;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slidegate::{Error, Request};

use super::call::CallRequest;
use super::dto::{Attributes, read_json};
use super::error::{ApiError, BODY_ERRORS};
use super::operation::{Access, Operation};
use super::response::{BufferedResponse, ok};

/// Maximum latency, in milliseconds: one hour.
const MAX_LATENCY_MS: f64 = 3_600_000.0;

/// Latency and result of a request that was allowed. It is enough to report a sample of the requests.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "an object with `attributes` or `resource`, and `latency_ms`")]
#[schemars(rename = "Report")]
struct ReportBody<'a> {
    /// Attributes of the request.
    #[serde(borrow)]
    attributes: Option<Attributes<'a>>,
    /// Resource of the request. No rule uses such a report, because limits of resources are not adaptive.
    #[serde(borrow)]
    #[schemars(length(min = 1))]
    resource: Option<Cow<'a, str>>,
    /// Duration of the request, in milliseconds.
    #[schemars(range(min = 0.0, max = MAX_LATENCY_MS))]
    latency_ms: f64,
    /// False if the request failed. Default: true.
    ok: Option<bool>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Reported")]
struct ReportedBody {
    /// Number of adaptive rules that use the report.
    rules: usize,
}

pub(super) fn operation() -> Operation {
    let summary = "Report the latency and the result of an allowed request, for adaptive rules";
    Operation::new(Access::Api, "report", summary)
        .takes::<ReportBody<'_>>(&[r#"{"attributes":{"api":"/orders"},"latency_ms":87.5,"ok":true}"#])
        .answers::<ReportedBody>("200", "Number of rules that use the report", &[r#"{"rules":1}"#])
        .fails(&BODY_ERRORS)
}

pub(super) fn report(call: CallRequest<'_>) -> Result<BufferedResponse, ApiError> {
    let body: ReportBody<'_> = read_json(call.body)?;
    let millis = body.latency_ms;
    if !(0.0..=MAX_LATENCY_MS).contains(&millis) {
        let message = format!("latency_ms must be between 0 and {MAX_LATENCY_MS}, not {millis}");
        return Err(Error::invalid(message).into());
    }
    let request = match (&body.attributes, &body.resource) {
        (Some(attributes), None) => Request::new(attributes.pairs()),
        (None, Some(resource)) => Request::resource(resource),
        _ => return Err(Error::invalid("set either `attributes` or `resource`").into()),
    };
    let latency = Duration::from_micros((millis * 1_000.0) as u64);
    let rules = call.instrumented.report(request, latency, body.ok.unwrap_or(true))?;
    Ok(ok(&ReportedBody { rules }))
}
