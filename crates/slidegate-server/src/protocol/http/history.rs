//! `GET /v1/history`: history of one rule.

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::{Clock, SystemClock};

use super::Shared;
use super::error::{ApiError, Code};
use super::operation::{Access, Operation};
use super::query::QueryParams;
use super::route::Route;
use crate::telemetry::stats::STEP_SECONDS;

/// History of a rule, in steps. Only the first 256 rules have a history; for other rules the lists are empty.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RuleHistory")]
struct HistoryBody {
    /// Name of the rule.
    rule: String,
    /// Length of a step.
    step_ms: u64,
    /// End of the last step by the clock of this server, in milliseconds since 1970.
    until_ms: u64,
    /// Requests that the rule charged in each step, oldest step first.
    charged: Vec<u64>,
    /// Requests that fit into the limit of the rule, but that another rule denied.
    not_charged: Vec<u64>,
    /// Requests that the rule denied.
    denied: Vec<u64>,
    /// Requests that the rule would have denied, if it is a shadow rule.
    would_deny: Vec<u64>,
    /// Mean duration of the decisions in which the rule took part. Null for a step without such a decision.
    mean_us: Vec<Option<f64>>,
}

pub(super) fn route() -> Route {
    let operation = Operation::new(Access::Api, "history", "History of a rule on this node, for at most an hour")
        .text_parameter("query", "rule", "Name of the rule. Required.")
        .answers::<HistoryBody>("200", "The history", &[
            r#"{"rule":"login-per-ip","step_ms":10000,"until_ms":1794774215000,"charged":[3,0],"not_charged":[0,0],"denied":[6,0],"would_deny":[0,0],"mean_us":[21.5,null]}"#,
        ])
        .fails(&[Code::InvalidRequest]);
    Route::new("/v1/history").get(history, operation)
}

async fn history(State(app): State<Shared>, uri: Uri) -> Result<Json<HistoryBody>, ApiError> {
    let rule = QueryParams::read(&uri, &["rule"])?.required("rule")?.to_owned();
    let (rules, rows) = app.stats.rows();
    let row = rules.iter().zip(rows).find(|(known, _)| known.name() == rule).map(|(_, row)| row);
    let row = row.ok_or_else(|| ApiError::new(Code::InvalidRequest, format!("there is no rule `{rule}`")))?;
    let (steps, seconds_since) = row.history();
    Ok(Json(HistoryBody {
        rule,
        step_ms: STEP_SECONDS * 1_000,
        until_ms: (SystemClock::new().now().get() / 1_000).saturating_sub(seconds_since * 1_000),
        charged: steps.iter().map(|step| step.charged()).collect(),
        not_charged: steps.iter().map(|step| step.not_charged).collect(),
        denied: steps.iter().map(|step| step.denied).collect(),
        would_deny: steps.iter().map(|step| step.would_deny).collect(),
        mean_us: steps.iter().map(|step| step.mean_us()).collect(),
    }))
}
