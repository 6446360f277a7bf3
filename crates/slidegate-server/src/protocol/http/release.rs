//! `POST /v1/release` and `POST /v1/extend`: permits that are held of a `concurrency` limit.

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Shared;
use super::dto::{JsonBytes, read_json};
use super::error::{ApiError, OF_A_BODY};
use super::operation::{Call, Who};
use super::route::Route;
use super::settle::Outcome;

/// What is held.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "an object with `reservation`")]
#[schemars(rename = "Hold")]
struct HoldBody {
    /// That of the decision, as it was received: it is signed.
    reservation: String,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Released")]
struct ReleasedBody {
    released: Outcome,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Extended")]
struct ExtendedBody {
    extended: Outcome,
}

const EXAMPLE: &str = r#"{"reservation":"h1794774215407676.0.1.7.at-once.21b9e07c5d8a4f63908e1cd27ab6f345"}"#;

fn call(name: &'static str, summary: &'static str) -> Call {
    Call::new(Who::Asking, name, summary).takes::<HoldBody>(&[EXAMPLE]).fails(&OF_A_BODY)
}

pub(super) fn release_route() -> Route {
    let summary = "Give back what is held of concurrency limits; what other rules counted stays counted";
    Route::new("/v1/release").post(
        release,
        call("release", summary).answers::<ReleasedBody>("200", "The outcome", &[r#"{"released":"gone"}"#]),
    )
}

pub(super) fn extend_route() -> Route {
    let summary = "Hold what is held of concurrency limits for another window, from now on";
    Route::new("/v1/extend").post(
        extend,
        call("extend", summary).answers::<ExtendedBody>("200", "The outcome", &[r#"{"extended":"gone"}"#]),
    )
}

async fn release(State(gate): State<Shared>, body: JsonBytes) -> Result<Json<ReleasedBody>, ApiError> {
    let HoldBody { reservation } = read_json(body.as_slice())?;
    let released = gate.limiter.release(&gate.limiter.verify(&reservation)?).await?.into();
    Ok(Json(ReleasedBody { released }))
}

async fn extend(State(gate): State<Shared>, body: JsonBytes) -> Result<Json<ExtendedBody>, ApiError> {
    let HoldBody { reservation } = read_json(body.as_slice())?;
    let extended = gate.limiter.extend(&gate.limiter.verify(&reservation)?).await?.into();
    Ok(Json(ExtendedBody { extended }))
}
