//! `POST /v1/record`: streams the requests that are decided from now on to the caller. The server writes no
//! file, and nothing that a caller sends is used as a path.

use std::convert::Infallible;
use std::time::Duration;

use axum::RequestExt;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use schemars::JsonSchema;
use serde::Deserialize;

use super::Shared;
use super::dto::{read_body, read_json};
use super::error::{ApiError, BODY_ERRORS, Code};
use super::operation::{Access, Operation};
use super::route::Route;
use crate::telemetry::capture::{Bounds, ClientSampler, read_share};

const NDJSON: &str = "application/x-ndjson";

const MAX_SECONDS: u64 = 3_600;
const MAX_BYTES: u64 = 1 << 30;

/// Maximum number of attribute names in `by` and in `digest`.
const MAX_ATTRIBUTE_NAMES: usize = slidegate::bounds::MAX_ATTRIBUTES;

/// Selection of the requests to record, and bounds of the recording.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "an object with `seconds` and `sample`")]
#[schemars(rename = "Record")]
struct RecordBody {
    /// Duration of the recording, in seconds. Default: 60.
    #[schemars(range(min = 1, max = MAX_SECONDS))]
    seconds: u64,
    /// Maximum size of the recording, in bytes. Default: 64 MiB.
    #[schemars(range(min = 1, max = MAX_BYTES))]
    max_bytes: u64,
    /// Share of the clients to record, from `0.01%` to `100%`. All requests of each recorded client are recorded.
    /// Default: `100%`.
    sample: String,
    /// Attributes that identify a client. Default: all attributes of a request.
    #[schemars(length(max = MAX_ATTRIBUTE_NAMES))]
    by: Vec<String>,
    /// Attributes of which only a digest is recorded.
    #[schemars(length(max = MAX_ATTRIBUTE_NAMES))]
    digest: Vec<String>,
}

impl Default for RecordBody {
    fn default() -> Self {
        let (by, digest) = (Vec::new(), Vec::new());
        RecordBody { seconds: 60, max_bytes: 64 << 20, sample: "100%".to_owned(), by, digest }
    }
}

impl RecordBody {
    fn check(self) -> Result<(ClientSampler, Bounds), ApiError> {
        let within = |name: &str, n: u64, max: u64| match n {
            n if (1..=max).contains(&n) => Ok(n),
            n => Err(invalid(format!("`{name}` must be between 1 and {max}, not {n}"))),
        };
        let seconds = within("seconds", self.seconds, MAX_SECONDS)?;
        let bytes = within("max_bytes", self.max_bytes, MAX_BYTES)?;
        let share = read_share(&self.sample).map_err(|message| invalid(format!("`sample` {message}")))?;
        for (name, names) in [("by", &self.by), ("digest", &self.digest)] {
            if names.len() > MAX_ATTRIBUTE_NAMES {
                return Err(invalid(format!(
                    "`{name}` may name at most {MAX_ATTRIBUTE_NAMES} attributes, not {}",
                    names.len()
                )));
            }
        }
        let bounds = Bounds { bytes, time: Some(Duration::from_secs(seconds)), streamed: true };
        Ok((ClientSampler::new(share, self.by, self.digest), bounds))
    }
}

fn invalid(message: String) -> ApiError {
    ApiError::new(Code::InvalidRequest, message)
}

pub(super) fn route() -> Route {
    let operation = Operation::new(
        Access::Admin,
        "record",
        "Record the requests that are decided from now on. Each request is a JSON line, which `slidegate simulate` can read",
    )
    .streams()
    .takes::<RecordBody>(&[r#"{"seconds":1,"sample":"10%","by":["ip"],"digest":["ip","user"]}"#])
    .answers_text("200", "JSON lines, until the duration or the size of the recording is reached", &[NDJSON])
    .fails(&BODY_ERRORS);
    Route::new("/v1/record").post(record, operation)
}

async fn record(State(app): State<Shared>, request: Request<Body>) -> Result<Response, ApiError> {
    let body = read_body(request.with_limited_body()).await?;
    let (sample, bounds) = read_json::<RecordBody>(&body)?.check()?;
    let reel = app.stats.recorder.start(sample, bounds).ok_or_else(|| {
        ApiError::new(
            Code::Unavailable,
            "too many recordings are in progress: end another recording, or try again later",
        )
    })?;
    let lines = stream::unfold(reel, |mut reel| async move {
        let lines = reel.next().await?;
        Some((Ok::<_, Infallible>(lines), reel))
    });
    Ok(([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(lines)).into_response())
}
