//! `POST /v1/settle`: refund an admission, or correct it to what it really cost.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use slidegate::Settled;

use super::Shared;
use super::body::{JsonBytes, Whole, owned};
use super::error::ApiError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `reservation` and `permits`")]
struct SettleBody {
    reservation: String,
    permits: Whole,
}

pub(super) async fn settle(State(limiter): State<Shared>, body: JsonBytes) -> Result<Json<Value>, ApiError> {
    let SettleBody { reservation, permits: Whole(permits) } = owned(&body)?;
    let settled = match limiter.settle(&reservation.parse()?, permits).await? {
        Settled::Done => "done",
        Settled::Already => "already",
        Settled::Gone => "gone",
    };
    Ok(Json(json!({ "settled": settled })))
}
