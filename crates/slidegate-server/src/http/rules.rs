//! `GET` and `PUT /v1/rules`: the rules in force, as a file has them, and others in their place.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use slidegate::{AdHocFile, RuleFile};

use super::call::{Call, Who};
use super::error::{ApiError, Code};
use super::route::Route;
use super::{MAX_RULES_BODY, Shared};
use crate::config::Config;
use crate::rulebook::{Edition, RulesBody};

/// The rules, and which edition they are.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RulesInForce")]
struct RulesAnswer {
    edition: EditionBody,
    #[serde(flatten)]
    rules: RulesBody,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Edition")]
struct EditionBody {
    /// Counts the editions; 0 while the rules are not known.
    version: u64,
    /// The same on every node that has the same rules.
    hash: String,
    /// Where it came from, for people.
    source: String,
    /// Why newer ones are not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<FailureBody>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct FailureBody {
    source: String,
    message: String,
}

/// Rules, as a file has them or as `GET` shows them.
#[derive(JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "NewRules")]
#[expect(dead_code, reason = "only its schema is used: mistakes in rules are told with their lines")]
struct RulesTaken {
    /// Not looked at.
    edition: Option<Value>,
    ad_hoc: Option<AdHocFile>,
    /// In the order in which they are judged.
    rules: Vec<RuleFile>,
}

const EXAMPLE: &str = r#"{"rules":[{"name":"login-per-ip","match":{"api":"/login"},"key":["ip"],"limit":3,"window":"5s","count":"attempts","code":10007}]}"#;

const SHOWN: &str = r#"{"edition":{"version":1,"hash":"9a3c5d0f11e2b746","source":"rules.yaml"},"ad-hoc":{"limit":{"default":1000,"min":1,"max":100000},"window":{"default":"1m","min":"1s","max":"1h"}},"rules":[{"name":"login-per-ip","match":{"api":["/login"]},"key":["ip"],"limit":3,"window":"5s","algorithm":"sliding-window","count":"attempts","code":10007,"mode":"enforce","encoding":"zset"}]}"#;

pub(super) fn route() -> Route {
    let get = Call::new(Who::Asking, "rules", "The rules in force").answers::<RulesAnswer>(
        "200",
        "The rules",
        &[SHOWN],
    );
    let put = Call::new(Who::Changing, "replace-rules", "Put other rules in force, at once and whole")
        .takes_any_of::<RulesTaken>(&["application/json", "application/yaml"], &[EXAMPLE])
        .answers::<RulesAnswer>("200", "The rules, which are in force", &[SHOWN])
        .fails(&[Code::InvalidRules, Code::Timeout, Code::TooLarge, Code::Unavailable]);
    Route::new("/v1/rules").get(show, get).put(replace, put).up_to(MAX_RULES_BODY)
}

async fn show(State(gate): State<Shared>) -> Json<RulesAnswer> {
    body(&gate, &gate.rules.current())
}

fn body(gate: &Shared, edition: &Edition) -> Json<RulesAnswer> {
    let Edition { rules, version, hash, source } = edition;
    let failure = gate
        .rules
        .failure()
        .map(|failure| FailureBody { source: failure.source.clone(), message: failure.message.clone() });
    let edition = EditionBody { version: *version, hash: hash.clone(), source: source.clone(), failure };
    Json(RulesAnswer { edition, rules: RulesBody::from(&**rules) })
}

/// In force when it is answered; what is not right changes nothing.
async fn replace(
    State(gate): State<Shared>,
    text: Result<Bytes, BytesRejection>,
) -> Result<Json<RulesAnswer>, ApiError> {
    let text = text.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            ApiError::new(Code::TooLarge, format!("the rules are too large: {MAX_RULES_BODY} bytes at most"))
        }
        _ => ApiError::new(Code::InvalidRules, "the rules did not arrive whole"),
    })?;
    let text = str::from_utf8(&text)
        .map_err(|_| ApiError::new(Code::InvalidRules, "the rules must be text: YAML or JSON in UTF-8"))?;
    let rules = Config::parse_rules(text, &gate.redis)
        .map_err(|error| ApiError::new(Code::InvalidRules, error.to_string()))?;
    let edition = gate.replace_rules(rules, "PUT /v1/rules").await?;
    Ok(body(&gate, &edition))
}
