//! `GET` and `DELETE /v1/keys/{key}`: inspects and resets the count of a key.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use slidegate::{
    Algorithm, Count, Key, Micros, Rules,
    bounds::MAX_INSPECTED,
    rules::AD_HOC,
    store::{Inspection, WindowEntry},
};

use super::Shared;
use super::error::{ApiError, Code};
use super::operation::{Access, Operation};
use super::route::Route;

/// Maximum length of a key, in bytes: more than enough for the name of a rule and eight digests.
const MAX_KEY: usize = 2048;

/// The count of a key.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Key")]
pub(super) struct KeyBody {
    /// The key.
    key: String,
    /// Time of this response by the clock of the store, in milliseconds since 1970.
    at_ms: f64,
    /// Permits in use.
    used: u64,
    /// Time until the count is zero if no other request arrives.
    reset_after_ms: u64,
    #[serde(flatten)]
    limit: LimitBody,
    /// Algorithm of the rule. Null if it is not known.
    algorithm: Option<&'static str>,
    /// `admitted`, or `attempts` if the rule counts denied requests too. Null if it is not known.
    count: Option<&'static str>,
    /// Length of the window. Null if it is not known.
    window_ms: Option<u64>,
    /// Admissions that count, oldest first, each with the time until it stops counting.
    entries: Vec<EntryBody>,
    /// True if the key has more entries than this list. The missing entries are newer.
    truncated: bool,
}

/// Limit of a key, as far as it is known.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct LimitBody {
    /// Name of the rule that uses this key. `ad-hoc` if requests give their own limit. Null if no rule in force has this name.
    rule: Option<String>,
    /// Maximum number of permits that the key may have in use. Null if it is not known.
    limit: Option<u64>,
    /// Source of `limit`.
    limit_source: LimitSource,
    /// Limit of a request that gives none. Only if requests give their own limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    default_limit: Option<u64>,
}

/// Source of the limit of a key.
#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LimitSource {
    /// The limit is that of the rule in force.
    Rule,
    /// The limit is stored with the count, because the key is a token bucket of requests that give their own limit.
    Count,
    /// Each request gives its own limit. The limit is not stored, so it is not known.
    Request,
    /// No rule in force has this name, so the limit is not known.
    Unknown,
}

/// Limit, algorithm and window of a key, as far as the rules in force or the key itself determine them.
pub(super) struct KeyRule {
    pub(super) limit: LimitBody,
    algorithm: Option<&'static str>,
    count: Option<&'static str>,
    window: Option<Micros>,
}

impl KeyRule {
    /// Describes `key`. `stored` is the limit that the store has for this key, if any.
    pub(super) fn of(rules: &Rules, key: &Key, stored: Option<u64>) -> Self {
        if key.rule() == AD_HOC {
            return KeyRule::ad_hoc(rules, key, stored);
        }
        let (rule, quota) = rules.find(key).unzip();
        let limit_source = if rule.is_some() { LimitSource::Rule } else { LimitSource::Unknown };
        KeyRule {
            limit: LimitBody {
                rule: rule.map(|rule| rule.name().to_owned()),
                limit: quota.map(|quota| quota.capacity()),
                limit_source,
                default_limit: None,
            },
            algorithm: quota.map(|quota| quota.algorithm().as_str()),
            count: quota.map(|quota| quota.count().as_str()),
            window: quota.map(|quota| quota.window()),
        }
    }

    /// Describes the key of a request that gives its own limit. Such a key contains the window, and its prefix
    /// tells whether its algorithm is a token bucket or a sliding window.
    fn ad_hoc(rules: &Rules, key: &Key, stored: Option<u64>) -> Self {
        let is_bucket = key.as_str().starts_with("ad-hoc:bucket=");
        let algorithm =
            if is_bucket { Algorithm::TokenBucket { burst: 1 } } else { Algorithm::SlidingWindow };
        let window = key.as_str().rsplit_once(":window=").map(|(_, window)| window.replace("%20", " "));
        let default = (rules.is_known() && !is_bucket).then(|| rules.ad_hoc().limit().default);
        KeyRule {
            limit: LimitBody {
                rule: Some(AD_HOC.to_owned()),
                limit: stored,
                limit_source: if stored.is_some() { LimitSource::Count } else { LimitSource::Request },
                default_limit: default,
            },
            algorithm: Some(algorithm.as_str()),
            count: Some(Count::Admitted.as_str()),
            window: window.and_then(|window| window.parse().ok()),
        }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct EntryBody {
    /// Permits of this entry.
    permits: u64,
    /// Time of the admission. For a slice, the time at which the slice ends.
    at_ms: f64,
    /// Time until the permits stop counting.
    leaves_after_ms: u64,
}

/// Result of a reset.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Reset")]
pub(super) struct ResetBody {
    /// The key.
    key: String,
    /// True if the key had a count.
    reset: bool,
}

pub(super) fn route() -> Route {
    let operation = |access, id, summary| {
        Operation::new(access, id, summary)
            .parameter(
                "path",
                "key",
                "Key, as in the responses to decisions. Slashes need not be percent-encoded.",
                json!({ "type": "string", "minLength": 1, "maxLength": MAX_KEY, "examples": ["login-per-ip:ip=1.2.3.4"] }),
            )
            .fails(&[Code::InvalidKey, Code::Timeout, Code::Unavailable])
    };
    let get = operation(Access::Api, "inspect", "Count of a key")
        .answers::<KeyBody>("200", "The count", &[
            r#"{"key":"login-per-ip:ip=1.2.3.4","at_ms":1794774215407.676,"used":1,"reset_after_ms":4321,"rule":"login-per-ip","limit":3,"limit_source":"rule","algorithm":"sliding-window","count":"admitted","window_ms":5000,"entries":[{"permits":1,"at_ms":1794774214728.676,"leaves_after_ms":4321}],"truncated":false}"#,
            r#"{"key":"ad-hoc:resource=user123:window=1s","at_ms":1794774215407.676,"used":1,"reset_after_ms":321,"rule":"ad-hoc","limit":null,"limit_source":"request","default_limit":1000,"algorithm":"sliding-window","count":"admitted","window_ms":1000,"entries":[{"permits":1,"at_ms":1794774214728.676,"leaves_after_ms":321}],"truncated":false}"#,
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
        let Some(Inspection { at, used, reset_after, entries, capacity }) = found else { continue };
        let entry = |WindowEntry { at, cost, leaves_after }: &WindowEntry| EntryBody {
            permits: *cost,
            at_ms: millis(*at),
            leaves_after_ms: leaves_after.ceil_millis(),
        };
        let KeyRule { limit, algorithm, count, window } = KeyRule::of(&app.limiter.rules(), &key, capacity);
        return Ok(Json(KeyBody {
            key: key.as_str().to_owned(),
            at_ms: millis(at),
            used,
            reset_after_ms: reset_after.ceil_millis(),
            limit,
            algorithm,
            count,
            window_ms: window.map(Micros::ceil_millis),
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
