//! `POST /v1/settle`: refunds an admission, or corrects it to its actual cost.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slidegate::Settled;

use super::call::CallRequest;
use super::dto::{JsonU64, read_json};
use super::error::{ApiError, BODY_ERRORS};
use super::operation::{Access, Operation};
use super::response::{BufferedResponse, ok};
use crate::telemetry::stats::ReservationChange;

/// An admission and its actual cost.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "an object with `reservation` and `permits`")]
#[schemars(rename = "Settle")]
struct SettleBody {
    /// Reservation from the response of `acquire`. It is signed, so send it unchanged.
    reservation: String,
    /// Actual cost in permits. 0 refunds the whole admission.
    permits: JsonU64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Settled")]
struct SettledBody {
    /// `done`: the admission was corrected. `already`: it was settled before, and nothing has changed. `gone`: it no longer
    /// counts, and nothing has changed.
    #[serde(with = "Outcome")]
    settled: Settled,
}

#[derive(Serialize, JsonSchema)]
#[serde(remote = "Settled", rename_all = "kebab-case")]
#[schemars(inline)]
pub(super) enum Outcome {
    /// The admission was corrected.
    Done,
    /// The admission was corrected before: nothing has changed.
    Already,
    /// The admission no longer counts: nothing has changed.
    Gone,
}

pub(super) fn operation() -> Operation {
    Operation::new(Access::Api, "settle", "Refund an admission, or correct it to its actual cost")
        .takes::<SettleBody>(&[
            r#"{"reservation":"1794774215407676.0.3.33.ad-hoc:resource=user123:window=1s.5f0c7ab4d1e6938207cd45be91f3a86e","permits":1}"#,
        ])
        .answers::<SettledBody>("200", "The outcome", &[r#"{"settled":"gone"}"#])
        .fails(&BODY_ERRORS)
}

pub(super) async fn settle(call: CallRequest<'_>) -> Result<BufferedResponse, ApiError> {
    let SettleBody { reservation, permits: JsonU64(permits) } = read_json(call.body)?;
    let settled = call.instrumented.change(&reservation, ReservationChange::Settle { permits }).await?;
    Ok(ok(&SettledBody { settled }))
}
