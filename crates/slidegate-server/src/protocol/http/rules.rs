//! `GET` and `PUT /v1/rules`: the rules in force, as a file has them, and others in their place.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use slidegate::{AdHocFile, Rule, RuleFile, Rules, UnmatchedFile};

use super::Shared;
use super::error::{ApiError, Code};
use super::operation::{Call, Who};
use super::route::Route;
use crate::app::rule_manager::{Edition, RulesBody, hash};
use crate::app::state::AppState;
use crate::config::{Config, MAX_RULES_BODY};
use crate::telemetry::stats::Shadow;

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
pub(crate) struct EditionBody {
    /// Counts the editions; 0 while the rules are not known.
    version: u64,
    /// The same on every node that has the same rules.
    hash: String,
    /// Where it came from, for people.
    source: String,
    /// Why newer ones are not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<FailureBody>,
    /// What its rules that only watch have seen since it came into force here: the first 1,000.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shadows: Vec<ShadowBody>,
}

/// A rule that only watches.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Shadow")]
struct ShadowBody {
    rule: String,
    /// The rule that it would replace.
    #[serde(skip_serializing_if = "Option::is_none")]
    shadow_of: Option<String>,
    /// Decisions that it looked at.
    decisions: u64,
    would_deny: u64,
    /// Requests that were allowed and that it would have denied.
    newly_denied: u64,
    /// Requests that nobody but the rule it would replace denied, and that it would have allowed.
    newly_allowed: u64,
}

impl From<Shadow> for ShadowBody {
    fn from(Shadow { rule, shadow_of, counts }: Shadow) -> Self {
        ShadowBody {
            rule,
            shadow_of,
            decisions: counts.decisions,
            would_deny: counts.would_deny,
            newly_denied: counts.newly_denied,
            newly_allowed: counts.newly_allowed,
        }
    }
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
    /// What becomes of a request that no rule matches. `warn`, unless given.
    unmatched: Option<UnmatchedFile>,
    /// In the order in which they are judged.
    rules: Vec<RuleFile>,
}

const YAML: &str = "application/yaml";

/// How the rules are shown.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    #[serde(default)]
    format: Format,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Format {
    #[default]
    Json,
    Yaml,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct QueryParams {
    #[serde(default)]
    dry_run: bool,
}

/// What is answered to other rules.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[expect(dead_code, reason = "only its schema is used")]
enum Replaced {
    InForce(RulesAnswer),
    Preview(Preview),
}

const EXAMPLE: &str = r#"{"rules":[{"name":"login-per-ip","match":{"api":"/login"},"key":["ip"],"limit":3,"window":"5s","count":"attempts","code":10007}]}"#;

const SHOWN: &str = r#"{"edition":{"version":1,"hash":"9a3c5d0f11e2b746","source":"rules.yaml"},"ad-hoc":{"limit":{"default":1000,"min":1,"max":100000},"window":{"default":"1m","min":"1s","max":"1h"}},"unmatched":"warn","rules":[{"name":"login-per-ip","match":{"api":["/login"]},"key":["ip"],"limit":3,"window":"5s","algorithm":"sliding-window","count":"attempts","code":10007,"mode":"enforce","encoding":"zset"}]}"#;

pub(super) fn route() -> Route {
    let get = Call::new(Who::Asking, "rules", "The rules in force")
        .parameter("query", "format", "`yaml`: as a file has them.", json!({ "enum": ["json", "yaml"] }))
        .answers::<RulesAnswer>("200", "The rules", &[SHOWN])
        .or_as::<RulesBody>(&[YAML])
        .fails(&[Code::InvalidRequest]);
    let put = Call::new(Who::Changing, "replace-rules", "Put other rules in force, at once and whole")
        .parameter("query", "dry-run", "`true`: only says what would change.", json!({ "type": "boolean" }))
        .takes_any_of::<RulesTaken>(&["application/json", "application/yaml"], &[EXAMPLE])
        .answers::<Replaced>("200", "The rules, which are in force; or what would change", &[SHOWN])
        .fails(&[Code::InvalidRequest, Code::InvalidRules, Code::Timeout, Code::TooLarge, Code::Unavailable]);
    Route::new("/v1/rules").get(show, get).put(replace, put).up_to(MAX_RULES_BODY)
}

async fn show(
    State(gate): State<Shared>,
    query: Result<Query<Shape>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(Shape { format }) = query.map_err(not_understood)?;
    let edition = gate.rules.current();
    match format {
        Format::Json => Ok(body(&gate, &edition).into_response()),
        Format::Yaml => {
            let text = serde_saphyr::to_string(&RulesBody::from(&*edition.rules))
                .map_err(|_| ApiError::new(Code::Unavailable, "the rules cannot be written as YAML"))?;
            Ok(([(header::CONTENT_TYPE, YAML)], text).into_response())
        }
    }
}

fn not_understood(rejection: QueryRejection) -> ApiError {
    ApiError::new(Code::InvalidRequest, rejection.body_text())
}

/// What other rules would change.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RulesPreview")]
struct Preview {
    /// Whether they are others than those in force.
    changed: bool,
    /// Names of rules.
    added: Vec<String>,
    removed: Vec<String>,
    altered: Vec<String>,
    #[serde(flatten)]
    rules: RulesBody,
}

impl Preview {
    fn new(before: &Rules, after: &Rules) -> Self {
        let names = |rules: &Rules, keep: &dyn Fn(&Rule) -> bool| -> Vec<String> {
            rules.iter().filter(|rule| keep(rule)).map(|rule| rule.name().to_owned()).collect()
        };
        let among = |rules: &Rules, name: &str| rules.iter().find(|rule| rule.name() == name).cloned();
        Preview {
            changed: hash(before) != hash(after),
            added: names(after, &|rule| among(before, rule.name()).is_none()),
            removed: names(before, &|rule| among(after, rule.name()).is_none()),
            altered: names(after, &|rule| among(before, rule.name()).is_some_and(|old| old != *rule)),
            rules: RulesBody::from(after),
        }
    }
}

fn body(gate: &AppState, edition: &Edition) -> Json<RulesAnswer> {
    Json(RulesAnswer { edition: EditionBody::of(gate, edition), rules: RulesBody::from(&*edition.rules) })
}

impl EditionBody {
    pub(crate) fn of(gate: &AppState, edition: &Edition) -> Self {
        let Edition { version, hash, source, .. } = edition;
        let failure = gate
            .rules
            .failure()
            .map(|failure| FailureBody { source: failure.source.clone(), message: failure.message.clone() });
        let shadows = gate.stats.shadows().into_iter().map(ShadowBody::from).collect();
        EditionBody { version: *version, hash: hash.clone(), source: source.clone(), failure, shadows }
    }
}

/// In force when it is answered; what is not right changes nothing.
async fn replace(
    State(gate): State<Shared>,
    query: Result<Query<QueryParams>, QueryRejection>,
    text: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let Query(QueryParams { dry_run }) = query.map_err(not_understood)?;
    let text = text.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            ApiError::new(Code::TooLarge, format!("the rules are too large: {MAX_RULES_BODY} bytes at most"))
        }
        _ => ApiError::new(Code::InvalidRules, "the rules did not arrive whole"),
    })?;
    let text = str::from_utf8(&text)
        .map_err(|_| ApiError::new(Code::InvalidRules, "the rules must be text: YAML or JSON in UTF-8"))?;
    let rules = Config::parse_rules(text, &gate.settings.redis)
        .map_err(|error| ApiError::new(Code::InvalidRules, error.to_string()))?;
    if dry_run {
        return Ok(Json(Preview::new(
            &gate.limiter.rules(),
            &gate.settings.authorize.normalize_paths(rules),
        ))
        .into_response());
    }
    let edition = gate.replace_rules(rules, "PUT /v1/rules").await?;
    Ok(body(&gate, &edition).into_response())
}
