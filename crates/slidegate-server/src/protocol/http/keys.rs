//! `GET` and `DELETE /v1/keys/{key}`: inspects and resets the count of a key.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use slidegate::{
    Key, Micros,
    bounds::MAX_INSPECTED,
    store::{Inspection, WindowEntry},
};

use super::Shared;
use super::error::{ApiError, Code};
use super::operation::{Access, Operation};
use super::route::Route;

/// Maximum length of a key, in bytes: a rule's name and eight digests, with room to spare.
const MAX_KEY: usize = 2048;

/// The count of a key.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Key")]
pub(super) struct KeyBody {
    key: String,
    /// Time of this snapshot by the store's clock, in milliseconds since 1970.
    at_ms: f64,
    used: u64,
    reset_after_ms: u64,
    /// Rule that counts under this key; null if the rule is gone, or if requests carry the limit themselves.
    rule: Option<String>,
    algorithm: Option<&'static str>,
    /// `admitted`, or `attempts` if the rule counts denied requests too.
    count: Option<&'static str>,
    /// Maximum number of permits that this key may have in use.
    limit: Option<u64>,
    window_ms: Option<u64>,
    /// Admissions in use, and the time until each expires.
    entries: Vec<EntryBody>,
    /// True if there are more entries, which are newer.
    truncated: bool,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct EntryBody {
    permits: u64,
    /// Time of admission; for a slice, the time at which the slice ends.
    at_ms: f64,
    leaves_after_ms: u64,
}

/// Result of a reset.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Reset")]
pub(super) struct ResetBody {
    key: String,
    /// True if there was anything to forget.
    reset: bool,
}

pub(super) fn route() -> Route {
    let operation = |access, id, summary| {
        Operation::new(access, id, summary)
            .parameter(
                "path",
                "key",
                "Key as in decisions; slashes need no escape.",
                json!({ "type": "string", "minLength": 1, "maxLength": MAX_KEY, "examples": ["login-per-ip:ip=1.2.3.4"] }),
            )
            .fails(&[Code::InvalidKey, Code::Timeout, Code::Unavailable])
    };
    let get = operation(Access::Api, "inspect", "Count of a key")
        .answers::<KeyBody>("200", "The count", &[
            r#"{"key":"login-per-ip:ip=1.2.3.4","at_ms":1794774215407.676,"used":1,"reset_after_ms":4321,"rule":"login-per-ip","algorithm":"sliding-window","count":"admitted","limit":3,"window_ms":5000,"entries":[{"permits":1,"at_ms":1794774214728.676,"leaves_after_ms":4321}],"truncated":false}"#,
        ])
        .fails(&[Code::NoSuchKey]);
    let delete = operation(Access::Admin, "reset", "Reset the count of a key").answers::<ResetBody>(
        "200",
        "The count is reset",
        &[r#"{"key":"login-per-ip:ip=1.2.3.4","reset":true}"#],
    );
    Route::new("/v1/keys/{*key}").get(inspect, get).delete(reset, delete)
}

type KeyPath = Result<Path<String>, PathRejection>;

/// Returns the key as written in the URL, and then percent-decoded. Keys contain escapes, so a key that was copied from
/// a response must be found without decoding.
fn candidate_keys(uri: &Uri, path: KeyPath) -> Result<[Key; 2], ApiError> {
    let Path(decoded) = path.map_err(|_| ApiError::new(Code::InvalidKey, "a key must be UTF-8"))?;
    let raw = uri.path().strip_prefix("/v1/keys/").unwrap_or_default();
    if decoded.is_empty() || decoded.len() > MAX_KEY {
        return Err(ApiError::new(Code::InvalidKey, format!("a key must have 1 to {MAX_KEY} bytes")));
    }
    Ok([Key::printed(raw), Key::printed(&decoded)])
}

async fn inspect(State(app): State<Shared>, uri: Uri, path: KeyPath) -> Result<Json<KeyBody>, ApiError> {
    for key in candidate_keys(&uri, path)? {
        let found = app.limiter.inspect(&key).await?;
        let Some(Inspection { at, used, reset_after, entries, .. }) = found else { continue };
        let entry = |WindowEntry { at, cost, leaves_after }: &WindowEntry| EntryBody {
            permits: *cost,
            at_ms: millis(*at),
            leaves_after_ms: leaves_after.ceil_millis(),
        };
        let rules = app.limiter.rules();
        let (rule, quota) = rules.find(&key).unzip();
        return Ok(Json(KeyBody {
            key: key.as_str().to_owned(),
            at_ms: millis(at),
            used,
            reset_after_ms: reset_after.ceil_millis(),
            rule: rule.map(|rule| rule.name().to_owned()),
            algorithm: quota.map(|quota| quota.algorithm().as_str()),
            count: quota.map(|quota| quota.count().as_str()),
            limit: quota.map(|quota| quota.capacity()),
            window_ms: quota.map(|quota| quota.window().ceil_millis()),
            truncated: entries.len() == MAX_INSPECTED,
            entries: entries.iter().map(entry).collect(),
        }));
    }
    Err(ApiError::new(Code::NoSuchKey, "nothing is counted under this key"))
}

/// Converts to milliseconds, with the fraction.
fn millis(at: Micros) -> f64 {
    at.get() as f64 / 1_000.0
}

async fn reset(State(app): State<Shared>, uri: Uri, path: KeyPath) -> Result<Json<ResetBody>, ApiError> {
    let [raw, decoded] = candidate_keys(&uri, path)?;
    let reset = app.limiter.reset(&raw).await? || app.limiter.reset(&decoded).await?;
    Ok(Json(ResetBody { key: raw.as_str().to_owned(), reset }))
}
