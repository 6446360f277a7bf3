//! `GET /v1/top`: the most requested keys, and the most denied ones.

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use slidegate::Key;

use super::Shared;
use super::error::{ApiError, Code};
use super::operation::{Access, Operation};
use super::query::QueryParams;
use super::route::Route;
use crate::telemetry::stats::Period;

/// Maximum number of keys in each list.
const MAX_KEYS: usize = 20;

/// The most requested and the most denied keys. If there are many keys, the counts are estimates.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Top")]
struct TopBody {
    period: Period,
    /// The keys with the most requests.
    hottest: Vec<TopKeyBody>,
    /// The keys with the most denied requests.
    denied: Vec<TopKeyBody>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "TopKey")]
struct TopKeyBody {
    /// Name of the rule.
    rule: String,
    /// Key of the count. `/v1/keys/{key}` shows it.
    key: String,
    /// Number of requests, or of denied requests.
    count: u64,
}

pub(super) fn route() -> Route {
    let operation = Operation::new(Access::Api, "top", "The most requested and the most denied keys of this node")
        .parameter("query", "period", "Period of the statistics. Default: `minute`.", json!({ "enum": ["minute", "hour"] }))
        .text_parameter("query", "rule", "Only keys of this rule.")
        .answers::<TopBody>("200", "The keys", &[
            r#"{"period":"minute","hottest":[{"rule":"login-per-ip","key":"login-per-ip:ip=1.2.3.4","count":9}],"denied":[{"rule":"login-per-ip","key":"login-per-ip:ip=1.2.3.4","count":6}]}"#,
        ])
        .fails(&[Code::InvalidRequest]);
    Route::new("/v1/top").get(top, operation)
}

async fn top(State(app): State<Shared>, uri: Uri) -> Result<Json<TopBody>, ApiError> {
    let query = QueryParams::read(&uri, &["period", "rule"])?;
    let period = query.choice("period", &[("minute", Period::Minute), ("hour", Period::Hour)])?;
    let period = period.unwrap_or_default();
    let [hottest, denied] = app.stats.top_keys(period, query.text("rule"), MAX_KEYS).map(|keys| {
        let body = |(key, count): (Key, u64)| TopKeyBody {
            rule: key.rule().to_owned(),
            key: key.as_str().to_owned(),
            count,
        };
        keys.into_iter().map(body).collect()
    });
    Ok(Json(TopBody { period, hottest, denied }))
}
