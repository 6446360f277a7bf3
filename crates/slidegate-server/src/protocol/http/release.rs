//! `POST /v1/release` and `POST /v1/extend`: release or extend the permits that are held under a
//! `concurrency` limit.

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Shared;
use super::dto::{JsonBytes, read_json};
use super::error::{ApiError, BODY_ERRORS};
use super::operation::{Access, Operation};
use super::route::Route;
use super::settle::Outcome;

/// Permits that are held.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "an object with `reservation`")]
#[schemars(rename = "Hold")]
struct HoldBody {
    /// Reservation of the decision, unchanged: it is signed.
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

fn operation(name: &'static str, summary: &'static str) -> Operation {
    Operation::new(Access::Api, name, summary).takes::<HoldBody>(&[EXAMPLE]).fails(&BODY_ERRORS)
}

pub(super) fn release_route() -> Route {
    let summary = "Give back what is held of concurrency limits; what other rules counted stays counted";
    Route::new("/v1/release").post(
        release,
        operation("release", summary).answers::<ReleasedBody>(
            "200",
            "The outcome",
            &[r#"{"released":"gone"}"#],
        ),
    )
}

pub(super) fn extend_route() -> Route {
    let summary = "Hold what is held of concurrency limits for another window, from now on";
    Route::new("/v1/extend").post(
        extend,
        operation("extend", summary).answers::<ExtendedBody>(
            "200",
            "The outcome",
            &[r#"{"extended":"gone"}"#],
        ),
    )
}

async fn release(State(app): State<Shared>, body: JsonBytes) -> Result<Json<ReleasedBody>, ApiError> {
    let HoldBody { reservation } = read_json(body.as_slice())?;
    let released = app.limiter.release(&app.limiter.verify(&reservation)?).await?.into();
    Ok(Json(ReleasedBody { released }))
}

async fn extend(State(app): State<Shared>, body: JsonBytes) -> Result<Json<ExtendedBody>, ApiError> {
    let HoldBody { reservation } = read_json(body.as_slice())?;
    let extended = app.limiter.extend(&app.limiter.verify(&reservation)?).await?.into();
    Ok(Json(ExtendedBody { extended }))
}
