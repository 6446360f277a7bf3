//! `GET` and `DELETE /v1/keys/{key}`: what is counted under a key, and to forget it.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use slidegate::{Counted, Inspection, Key};

use super::Shared;
use super::call::{Call, Who};
use super::error::{ApiError, Code};
use super::route::Route;

/// The longest key there is: a rule's name and eight digests, with room.
const MAX_KEY: usize = 2048;

/// What is counted under a key.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Key")]
pub(super) struct KeyBody {
    key: String,
    used: u64,
    reset_after_ms: u64,
    /// What is in use, and when it no longer is.
    entries: Vec<EntryBody>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct EntryBody {
    permits: u64,
    leaves_after_ms: u64,
}

/// What was forgotten.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Reset")]
pub(super) struct ResetBody {
    key: String,
    /// Whether there was anything to forget.
    reset: bool,
}

pub(super) fn route() -> Route {
    let call = |id, summary| {
        Call::new(Who::Changing, id, summary)
            .parameter(
                "path",
                "key",
                "As decisions name it; slashes may stand in it as they are.",
                json!({ "type": "string", "minLength": 1, "maxLength": MAX_KEY, "examples": ["login-per-ip:ip=1.2.3.4"] }),
            )
            .fails(&[Code::InvalidKey, Code::Timeout, Code::Unavailable])
    };
    let get = call("inspect", "What is counted under a key")
        .answers::<KeyBody>("200", "The count", &[
            r#"{"key":"login-per-ip:ip=1.2.3.4","used":1,"reset_after_ms":4321,"entries":[{"permits":1,"leaves_after_ms":4321}]}"#,
        ])
        .fails(&[Code::NoSuchKey]);
    let delete = call("reset", "Forget what is counted under a key").answers::<ResetBody>(
        "200",
        "It is forgotten",
        &[r#"{"key":"login-per-ip:ip=1.2.3.4","reset":true}"#],
    );
    Route::new("/v1/keys/{*key}").get(inspect, get).delete(reset, delete)
}

type Named = Result<Path<String>, PathRejection>;

/// The key as it stands in the address, or else as it is meant there: keys have escapes of their own, so one that was
/// copied from an answer is found as it is.
fn keys(uri: &Uri, path: Named) -> Result<[Key; 2], ApiError> {
    let Path(meant) = path.map_err(|_| ApiError::new(Code::InvalidKey, "a key is text in UTF-8"))?;
    let stands = uri.path().strip_prefix("/v1/keys/").unwrap_or_default();
    if meant.is_empty() || meant.len() > MAX_KEY {
        return Err(ApiError::new(Code::InvalidKey, format!("a key has 1 to {MAX_KEY} bytes")));
    }
    Ok([Key::printed(stands), Key::printed(&meant)])
}

async fn inspect(State(gate): State<Shared>, uri: Uri, path: Named) -> Result<Json<KeyBody>, ApiError> {
    for key in keys(&uri, path)? {
        let found = gate.limiter.inspect(&key).await?;
        let Some(Inspection { used, reset_after, entries, .. }) = found else { continue };
        let entry = |Counted { cost, leaves_after, .. }: &Counted| EntryBody {
            permits: *cost,
            leaves_after_ms: leaves_after.ceil_millis(),
        };
        let entries = entries.iter().map(entry).collect();
        let key = key.as_str().to_owned();
        return Ok(Json(KeyBody { key, used, reset_after_ms: reset_after.ceil_millis(), entries }));
    }
    Err(ApiError::new(Code::NoSuchKey, "nothing is counted under this key"))
}

async fn reset(State(gate): State<Shared>, uri: Uri, path: Named) -> Result<Json<ResetBody>, ApiError> {
    let [stands, meant] = keys(&uri, path)?;
    let reset = gate.limiter.reset(&stands).await? || gate.limiter.reset(&meant).await?;
    Ok(Json(ResetBody { key: stands.as_str().to_owned(), reset }))
}
