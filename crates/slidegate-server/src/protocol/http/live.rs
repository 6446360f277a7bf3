//! `GET /v1/live`: statistics second by second, as server-sent events.

use std::cmp::Reverse;
use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::State;
use axum::response::sse::{Event, Sse};
use futures_util::stream::{self, Stream};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use slidegate::{Clock, SystemClock};

use super::Shared;
use super::error::{ApiError, Code};
use super::live_stats::Tick;
use super::operation::{Access, Operation};
use super::route::Route;
use crate::app::live_feed::Subscription;
use crate::app::state::AppState;
use crate::telemetry::stats::{Requests, RuleRow};

/// Statistics of the past.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LiveHistory")]
struct HistoryBody {
    step_ms: u64,
    /// End of the last step by this server's clock, in milliseconds since 1970.
    until_ms: u64,
    /// Requests allowed in each step, the oldest first.
    allowed: Vec<u64>,
    denied: Vec<u64>,
    /// Last minute of the busiest rules, at most 200.
    rules: Vec<RuleMinute>,
}

/// Last minute of one rule.
#[derive(Serialize, JsonSchema)]
struct RuleMinute {
    rule: String,
    /// Requests that the rule charged in each second, the oldest first.
    charged: Vec<u64>,
    denied: Vec<u64>,
}

/// Maximum number of rules in the first event. A rule takes about 400 bytes.
const MAX_RULES: usize = 200;

/// Returns the last minute of the busiest rules.
fn rule_minutes(app: &AppState) -> Vec<RuleMinute> {
    let (rules, mut rows) = app.stats.rows();
    // The last row is for ad-hoc limits, which have no rule.
    rows.truncate(rules.iter().count());
    rows.sort_by_cached_key(|row| Reverse(row.summary().minute.decisions()));
    rows.truncate(MAX_RULES);
    let minute = |row: Arc<RuleRow>| {
        let seconds = row.last_minute();
        RuleMinute {
            rule: row.name.clone(),
            charged: seconds.iter().map(|second| second.charged()).collect(),
            denied: seconds.iter().map(|second| second.denied).collect(),
        }
    };
    rows.into_iter().map(minute).collect()
}

/// One event.
#[derive(JsonSchema)]
#[schemars(rename = "LiveEvent")]
#[expect(dead_code, reason = "only its schema is used")]
struct EventBody {
    /// Name of the event.
    event: EventName,
    #[schemars(schema_with = "data")]
    data: String,
}

#[derive(JsonSchema)]
#[schemars(inline, rename_all = "kebab-case")]
#[expect(dead_code, reason = "only its schema is used")]
enum EventName {
    History,
    Tick,
}

/// Returns the schema of the event data: JSON whose type depends on the event's name.
fn data(generator: &mut SchemaGenerator) -> Schema {
    let [history, tick] = [generator.subschema_for::<HistoryBody>(), generator.subschema_for::<Tick>()];
    json_schema!({
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": { "anyOf": [history, tick] },
    })
}

pub(super) fn route() -> Route {
    let operation = Operation::new(
        Access::Api,
        "live",
        "Live statistics. The first event is `history`, with the last hour. An event `tick` follows every second",
    )
    .streams()
    .answers_events::<EventBody>("200", "Server-sent events, until the client disconnects")
    .fails(&[Code::Unavailable]);
    Route::new("/v1/live").get(live, operation)
}

async fn live(
    State(app): State<Shared>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let ticks = app.export.live.subscribe().ok_or_else(|| {
        ApiError::new(
            Code::Unavailable,
            "too many clients of the live statistics: close another dashboard, or try again later",
        )
    })?;
    let seconds = app.stats.history().seconds;
    let (allowed, denied) = seconds.iter().map(|Requests { allowed, denied }| (*allowed, *denied)).unzip();
    let until_ms = SystemClock::new().now().get() / 1_000;
    let history = HistoryBody { step_ms: 1_000, until_ms, allowed, denied, rules: rule_minutes(&app) };
    // Serializing our own types cannot fail.
    let history = Event::default().event("history").data(serde_json::to_string(&history).unwrap_or_default());
    Ok(Sse::new(stream::unfold((Some(history), ticks), next)))
}

/// Waits for the next event. Returns `None` when the server stops.
async fn next(
    (history, mut ticks): (Option<Event>, Subscription),
) -> Option<(Result<Event, Infallible>, (Option<Event>, Subscription))> {
    if let Some(history) = history {
        return Some((Ok(history), (None, ticks)));
    }
    let text = ticks.next().await?;
    Some((Ok(Event::default().event("tick").data(text)), (None, ticks)))
}
