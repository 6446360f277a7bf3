//! `POST /v1/release` and `POST /v1/extend`: release or extend the permits that are held under a
//! `concurrency` limit.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slidegate::Settled;

use super::call::CallRequest;
use super::dto::read_json;
use super::error::{ApiError, BODY_ERRORS};
use super::operation::{Access, Operation};
use super::response::{BufferedResponse, ok};
use super::settle::Outcome;
use crate::telemetry::stats::ReservationChange;

/// Reservation whose permits are held.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "an object with `reservation`")]
#[schemars(rename = "Hold")]
struct HoldBody {
    /// Reservation from the response of `acquire`. It is signed, so send it unchanged.
    reservation: String,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Released")]
struct ReleasedBody {
    /// `done`: the permits are free. `already`: they were released before. `gone`: they are no longer held, or the reservation
    /// never held any.
    #[serde(with = "Outcome")]
    released: Settled,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Extended")]
struct ExtendedBody {
    /// `done`: the permits are held for another window from now. `already` or `gone`: the permits are no longer held, so stop the
    /// work.
    #[serde(with = "Outcome")]
    extended: Settled,
}

const EXAMPLE: &str = r#"{"reservation":"h1794774215407676.0.1.7.at-once.21b9e07c5d8a4f63908e1cd27ab6f345"}"#;

fn operation(name: &'static str, summary: &'static str) -> Operation {
    Operation::new(Access::Api, name, summary).takes::<HoldBody>(&[EXAMPLE]).fails(&BODY_ERRORS)
}

pub(super) fn release_operation() -> Operation {
    operation("release", "Release held permits of `concurrency` rules. The counts of other rules stay")
        .answers::<ReleasedBody>("200", "The outcome", &[r#"{"released":"gone"}"#])
}

pub(super) fn extend_operation() -> Operation {
    operation("extend", "Hold permits of `concurrency` rules for another window from now on")
        .answers::<ExtendedBody>("200", "The outcome", &[r#"{"extended":"gone"}"#])
}

pub(super) async fn release(call: CallRequest<'_>) -> Result<BufferedResponse, ApiError> {
    let HoldBody { reservation } = read_json(call.body)?;
    let released = call.instrumented.change(&reservation, ReservationChange::Release).await?;
    Ok(ok(&ReleasedBody { released }))
}

pub(super) async fn extend(call: CallRequest<'_>) -> Result<BufferedResponse, ApiError> {
    let HoldBody { reservation } = read_json(call.body)?;
    let extended = call.instrumented.change(&reservation, ReservationChange::Extend).await?;
    Ok(ok(&ExtendedBody { extended }))
}
