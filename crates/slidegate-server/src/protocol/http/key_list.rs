//! `GET /v1/keys`: lists the keys that count something, in pages.

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use slidegate::store::KeyUsage;

use super::Shared;
use super::error::{ApiError, Code};
use super::keys::{KeyRule, LimitBody};
use super::operation::{Access, Operation};
use super::query::{QueryParams, invalid};
use super::route::Route;
use crate::store::{KeyCursor, KeyQuery};

const DEFAULT_KEYS: u64 = 100;

/// Maximum number of keys in a page. Each key of a page is read from Redis.
const MAX_KEYS: u64 = 200;

/// Page of keys.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Keys")]
struct KeyListBody {
    /// Keys with a count above zero. A page can be empty even if more pages follow.
    keys: Vec<KeyUsageBody>,
    /// `cursor` of the next page. Null if this is the last page.
    next_cursor: Option<String>,
}

/// Key with its count, and with its limit if that is known.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "KeyUsage")]
struct KeyUsageBody {
    /// The key. `/v1/keys/{key}` shows its entries.
    key: String,
    /// Permits in use.
    used: u64,
    #[serde(flatten)]
    limit: LimitBody,
}

pub(super) fn route() -> Route {
    let operation = Operation::new(Access::Api, "keys", "List of the keys with a count above zero, in pages")
        .parameter(
            "query",
            "limit",
            "Number of keys in a page. Default: 100. With Redis, a page can have a few more keys.",
            json!({ "type": "integer", "minimum": 1, "maximum": MAX_KEYS }),
        )
        .parameter(
            "query",
            "cursor",
            "`next_cursor` of the previous page. Default: the first page.",
            json!({ "type": "string" }),
        )
        .parameter("query", "rule", "List only the keys of this rule, such as `ad-hoc`.", json!({ "type": "string" }))
        .parameter("query", "prefix", "List only the keys that start with this text.", json!({ "type": "string" }))
        .answers::<KeyListBody>(
            "200",
            "A page of keys",
            &[concat!(
                r#"{"keys":[{"key":"login-per-ip:ip=1.2.3.4","used":1,"rule":"login-per-ip","limit":3,"limit_source":"rule"},"#,
                r#"{"key":"ad-hoc:resource=user123:window=1s","used":2,"rule":"ad-hoc","limit":null,"limit_source":"request","#,
                r#""default_limit":1000}],"next_cursor":null}"#
            )],
        )
        .fails(&[Code::InvalidRequest, Code::Timeout, Code::Unavailable]);
    Route::new("/v1/keys").get(list, operation)
}

async fn list(State(app): State<Shared>, uri: Uri) -> Result<Json<KeyListBody>, ApiError> {
    let params = QueryParams::read(&uri, &["limit", "cursor", "rule", "prefix"])?;
    let wrong_cursor = || invalid("`cursor` must be the `next_cursor` of an earlier page");
    let query = KeyQuery {
        count: params.number("limit", 1..=MAX_KEYS)?.unwrap_or(DEFAULT_KEYS) as usize,
        from: match params.text("cursor") {
            None => None,
            Some(text) => Some(KeyCursor::parse(text).ok_or_else(wrong_cursor)?),
        },
        rule: params.text("rule").map(str::to_owned),
        prefix: params.text("prefix").map(str::to_owned),
    };
    let page = app.limiter.store().keys(query).await?.ok_or_else(wrong_cursor)?;
    let rules = app.limiter.rules();
    let body = |KeyUsage { key, used, capacity }| KeyUsageBody {
        limit: KeyRule::of(&rules, &key, capacity).limit,
        key: key.as_str().to_owned(),
        used,
    };
    let keys = page.keys.into_iter().map(body).collect();
    Ok(Json(KeyListBody { keys, next_cursor: page.next.map(|cursor| cursor.to_string()) }))
}
