//! `POST /v1/record`: the requests that are decided from now on, as they come. Nothing is written here, and nothing that a
//! caller sends is a path: he has what he is sent.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use schemars::JsonSchema;
use serde::Deserialize;

use super::Shared;
use super::dto::{JsonBytes, read_json};
use super::error::{ApiError, Code, OF_A_BODY};
use super::operation::{Call, Who};
use super::route::Route;
use crate::telemetry::capture::{Bounds, ClientSampler, LineReceiver, read_share};

const LINES: &str = "application/x-ndjson";

const LONGEST: u64 = 3_600;
const LARGEST: u64 = 1 << 30;

/// The most names of attributes, and the longest.
const NAMES: usize = slidegate::MAX_ATTRIBUTES;

/// What to record.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "an object with `seconds` and `sample`")]
#[schemars(rename = "Record")]
struct RecordBody {
    /// For how long.
    #[schemars(range(min = 1, max = LONGEST))]
    seconds: u64,
    /// Up to how many bytes.
    #[schemars(range(min = 1, max = LARGEST))]
    max_bytes: u64,
    /// A share of the clients, each with everything he asks: from `0.01%` to `100%`.
    sample: String,
    /// Attributes that make a client; all of a request's, unless given.
    #[schemars(length(max = NAMES))]
    by: Vec<String>,
    /// Attributes of which only a digest is told.
    #[schemars(length(max = NAMES))]
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
        let within = |name: &str, n: u64, most: u64| match n {
            n if (1..=most).contains(&n) => Ok(n),
            n => Err(invalid(format!("`{name}` must be between 1 and {most}, not {n}"))),
        };
        let seconds = within("seconds", self.seconds, LONGEST)?;
        let bytes = within("max_bytes", self.max_bytes, LARGEST)?;
        let share = read_share(&self.sample).map_err(|message| invalid(format!("`sample` {message}")))?;
        for (name, names) in [("by", &self.by), ("digest", &self.digest)] {
            if names.len() > NAMES {
                return Err(invalid(format!("`{name}` may name {NAMES} attributes, not {}", names.len())));
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
    let call = Call::new(
        Who::Changing,
        "record",
        "The requests that are decided from now on, a line of JSON each, for `slidegate simulate`",
    )
    .takes::<RecordBody>(&[r#"{"seconds":1,"sample":"10%","by":["ip"],"digest":["ip","user"]}"#])
    .answers_text("200", "Lines, until the time is over, or as many bytes were sent", &[LINES])
    .fails(&OF_A_BODY);
    Route::new("/v1/record").post(record, call)
}

async fn record(State(gate): State<Shared>, body: JsonBytes) -> Result<Response, ApiError> {
    let (sample, bounds) = read_json::<RecordBody>(body.as_slice())?.check()?;
    let reel = gate.stats.recorder.start(sample, bounds).ok_or_else(|| {
        ApiError::new(Code::Unavailable, "as much is recorded as may be: end another recording, or try again")
    })?;
    let lines = Body::from_stream(stream::unfold(reel, next));
    Ok(([(header::CONTENT_TYPE, LINES)], lines).into_response())
}

async fn next(mut reel: LineReceiver) -> Option<(Result<Bytes, Infallible>, LineReceiver)> {
    let lines = reel.next().await?;
    Some((Ok(lines.into()), reel))
}
