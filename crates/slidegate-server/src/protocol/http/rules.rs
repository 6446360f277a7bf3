//! `GET` and `PUT /v1/rules`: reads and replaces the rules in force.

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use slidegate::{
    Rule, Rules, Unmatched,
    rules::{AdHocFile, RuleFile},
};

use super::authz::authorize_change;
use super::error::{ApiError, Code};
use super::forward_auth::Peer;
use super::operation::{Access, Operation};
use super::query::QueryParams;
use super::route::Route;
use super::{Role, Shared};
use crate::app::rule_manager::{Edition, RulesBody, hash};
use crate::app::state::AppState;
use crate::config::{Config, MAX_RULES_BODY};
use crate::telemetry::stats::Shadow;

/// The rules in force, and their edition.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RulesInForce")]
struct RulesResponse {
    edition: EditionBody,
    #[serde(flatten)]
    rules: RulesBody,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Edition")]
pub(crate) struct EditionBody {
    /// Number of the edition on this node. 0 while the rules are not known.
    version: u64,
    /// Hash of the rules. It is the same on every node that has the same rules.
    hash: String,
    /// Source of the rules, such as the name of the file.
    source: String,
    /// Reason why newer rules are not in force, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<FailureBody>,
    /// Statistics of the first 1,000 shadow rules, since this edition came into force on this node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shadows: Vec<Shadow>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct FailureBody {
    /// Source of the newer rules.
    source: String,
    /// Mistakes in the newer rules.
    message: String,
}

/// Rules in the format of the rules file or of the response of `GET /v1/rules`.
#[derive(JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "NewRules")]
#[expect(dead_code, reason = "only its schema is used: mistakes in rules are reported with their lines")]
struct RulesInput {
    /// Ignored.
    edition: Option<Value>,
    /// Default and bounds for requests that give their own limit and window.
    ad_hoc: Option<AdHocFile>,
    /// Decision about a request that no rule matches. Default: `warn`.
    unmatched: Option<Unmatched>,
    /// Rules, in the order in which they are evaluated.
    rules: Vec<RuleFile>,
}

const YAML: &str = "application/yaml";

/// Format of the response to `GET`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Yaml,
    Source,
}

const FORMATS: [(&str, Format); 3] =
    [("json", Format::Json), ("yaml", Format::Yaml), ("source", Format::Source)];

/// Response to `PUT`.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[expect(dead_code, reason = "only its schema is used")]
enum ReplaceResponse {
    InForce(RulesResponse),
    Preview(Preview),
}

const NEW_RULES_EXAMPLE: &str = r#"{"rules":[{"name":"login-per-ip","match":{"api":"/login"},"key":["ip"],"limit":3,"window":"5s","count":"attempts","code":10007}]}"#;

const RULES_EXAMPLE: &str = r#"{"edition":{"version":1,"hash":"9a3c5d0f11e2b746","source":"rules.yaml"},"ad-hoc":{"limit":{"default":1000,"min":1,"max":100000},"window":{"default":"1m","min":"1s","max":"1h"}},"unmatched":"warn","rules":[{"name":"login-per-ip","match":{"api":["/login"]},"key":["ip"],"limit":3,"window":"5s","algorithm":"sliding-window","count":"attempts","code":10007,"mode":"enforce","encoding":"zset"}]}"#;

pub(super) fn route() -> Route {
    let get = Operation::new(Access::Api, "rules", "The rules in force")
        .parameter(
            "query",
            "format",
            "Format of the response. `yaml`: the rules as YAML. `source`: the text that the author of the rules wrote, with its comments, \
             if the client may change the rules and the server has this text; otherwise the same as `yaml`. Default: `json`.",
            json!({ "enum": ["json", "yaml", "source"] }),
        )
        .answers::<RulesResponse>("200", "The rules", &[RULES_EXAMPLE])
        .with_headers(&["ETag"])
        .or_as::<RulesInput>(&[YAML])
        .fails(&[Code::InvalidRequest]);
    let put = Operation::new(Access::Admin, "replace-rules", "Replace all rules at once")
        .parameter("query", "dry-run", "With `true`, the server returns the changes and does not apply them.", json!({ "type": "boolean" }))
        .text_parameter(
            "header",
            "if-match",
            "`ETag` of the rules that this request replaces. If other rules are in force, the server changes nothing.",
        )
        .takes_any_of::<RulesInput>(&["application/json", "application/yaml"], &[NEW_RULES_EXAMPLE])
        .answers::<ReplaceResponse>(
            "200",
            "The rules in force, or the changes of a dry run",
            &[RULES_EXAMPLE],
        )
        .with_headers(&["ETag"])
        .fails(&[
            Code::InvalidRequest,
            Code::InvalidRules,
            Code::EditionMismatch,
            Code::Timeout,
            Code::TooLarge,
            Code::Unavailable,
        ]);
    Route::new("/v1/rules").get(show, get).put(replace, put).up_to(MAX_RULES_BODY)
}

async fn show(
    State(app): State<Shared>,
    Extension(role): Extension<Role>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, ApiError> {
    let format = QueryParams::read(&uri, &["format"])?.choice("format", &FORMATS)?.unwrap_or(Format::Json);
    let edition = app.rules.current();
    if format == Format::Json {
        return Ok(rules_response(&app, &edition));
    }
    // Only the authors of the rules get the original text, because it contains their comments.
    let is_author =
        format == Format::Source && authorize_change(role, &app.settings.access, &headers).is_ok();
    let text = match app.rules.text().filter(|_| is_author) {
        Some(text) => text.to_string(),
        None => serde_saphyr::to_string(&RulesBody::from(&*edition.rules))
            .map_err(|_| ApiError::new(Code::Unavailable, "the rules cannot be written as YAML"))?,
    };
    let headers = [(header::CONTENT_TYPE, YAML.to_owned()), (header::ETAG, etag(&edition))];
    Ok((headers, text).into_response())
}

/// Difference between two rules of the same name.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RuleChange")]
struct RuleChange {
    /// Name of the rule.
    rule: String,
    /// Name of the field that differs.
    field: String,
    /// Value in the rules in force. Null if the field is absent.
    before: Value,
    /// Value in the new rules. Null if the field is absent.
    after: Value,
}

/// Changes that new rules would make.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RulesPreview")]
struct Preview {
    /// True if the new rules differ from the rules in force.
    changed: bool,
    /// Names of the rules that would be added.
    added: Vec<String>,
    /// Names of the rules that would be removed.
    removed: Vec<String>,
    /// Names of the rules that would be changed.
    altered: Vec<String>,
    /// Changed fields of these rules, with their values before and after.
    changes: Vec<RuleChange>,
    #[serde(flatten)]
    rules: RulesBody,
}

impl Preview {
    fn new(before: &Rules, after: &Rules) -> Self {
        let names = |rules: &Rules, keep: &dyn Fn(&Rule) -> bool| -> Vec<String> {
            rules.iter().filter(|rule| keep(rule)).map(|rule| rule.name().to_owned()).collect()
        };
        let find_by_name = |rules: &Rules, name: &str| rules.iter().find(|rule| rule.name() == name).cloned();
        Preview {
            changed: hash(before) != hash(after),
            added: names(after, &|rule| find_by_name(before, rule.name()).is_none()),
            removed: names(before, &|rule| find_by_name(after, rule.name()).is_none()),
            altered: names(after, &|rule| find_by_name(before, rule.name()).is_some_and(|old| old != *rule)),
            changes: after
                .iter()
                .filter_map(|rule| Some((find_by_name(before, rule.name())?, rule)))
                .flat_map(|(old, new)| changed_fields(&old, new))
                .collect(),
            rules: RulesBody::from(after),
        }
    }
}

fn rules_response(app: &AppState, edition: &Edition) -> Response {
    let body =
        RulesResponse { edition: EditionBody::of(app, edition), rules: RulesBody::from(&*edition.rules) };
    ([(header::ETAG, etag(edition))], Json(body)).into_response()
}

/// Returns the `ETag` of an edition: its hash, in quotes.
fn etag(edition: &Edition) -> String {
    format!("\"{}\"", edition.hash)
}

/// Checks that the edition in force is one of those that the request may replace.
fn check_if_match(headers: &HeaderMap, edition: &Edition) -> Result<(), ApiError> {
    let etag = etag(edition);
    let mut expected = headers.get_all(header::IF_MATCH).iter().peekable();
    if expected.peek().is_none() {
        return Ok(());
    }
    let mut tags =
        expected.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    if tags.any(|tag| tag == b"*" || tag == etag.as_bytes()) {
        return Ok(());
    }
    let message = format!("the rules in force have the ETag {etag}: read them again, and repeat the change");
    Err(ApiError::new(Code::EditionMismatch, message))
}

/// Returns the fields that differ between two rules of the same name.
fn changed_fields(before: &Rule, after: &Rule) -> Vec<RuleChange> {
    let fields = |rule: &Rule| match serde_json::to_value(RuleFile::from(rule)) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let rule = after.name();
    let (before, mut after) = (fields(before), fields(after));
    let mut changes = Vec::new();
    let mut add = |field, before, after| {
        changes.push(RuleChange { rule: rule.to_owned(), field, before, after });
    };
    for (field, old) in before {
        let new = after.remove(&field).unwrap_or_default();
        if old != new {
            add(field, old, new);
        }
    }
    after.into_iter().for_each(|(field, new)| add(field, Value::Null, new));
    changes
}

impl EditionBody {
    pub(crate) fn of(app: &AppState, edition: &Edition) -> Self {
        let Edition { version, hash, source, .. } = edition;
        let failure = app
            .rules
            .failure()
            .map(|failure| FailureBody { source: failure.source.clone(), message: failure.message.clone() });
        let (hash, source, shadows) = (hash.clone(), source.clone(), app.stats.shadows());
        EditionBody { version: *version, hash, source, failure, shadows }
    }
}

/// Replaces the rules. They are in force when the response is sent; invalid rules change nothing.
async fn replace(
    State(app): State<Shared>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    uri: Uri,
    text: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let query = QueryParams::read(&uri, &["dry-run"])?;
    let dry_run = query.choice("dry-run", &[("true", true), ("false", false)])?.unwrap_or(false);
    let text = text.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            ApiError::new(Code::TooLarge, format!("the rules are too large: {MAX_RULES_BODY} bytes at most"))
        }
        _ => ApiError::new(Code::InvalidRules, "the rules are incomplete"),
    })?;
    let text = str::from_utf8(&text)
        .map_err(|_| ApiError::new(Code::InvalidRules, "the rules must be text: YAML or JSON in UTF-8"))?;
    let rules = Config::parse_rules(text, &app.settings.redis)
        .map_err(|error| ApiError::new(Code::InvalidRules, error.to_string()))?;
    if dry_run {
        return Ok(Json(Preview::new(&app.limiter.rules(), &app.settings.authorize.normalize_paths(rules)))
            .into_response());
    }
    let _one_at_a_time = app.rules.replacing.lock().await;
    check_if_match(&headers, &app.rules.current())?;
    let edition = app.replace_rules(rules, &format!("PUT /v1/rules of {}", peer.ip().to_canonical())).await?;
    app.set_rules_text(text);
    Ok(rules_response(&app, &edition))
}
