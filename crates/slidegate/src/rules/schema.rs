//! Serializable form of the rules: the content of `GET /v1/rules`, and the source of `slidegate schema`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

pub use super::schema_adaptive::{AdaptiveFile, LatencyFile, ThresholdsFile};
use super::selection::Kind;
use super::{AdHoc, Bounds, Mode, Pattern, Rule, Unmatched};
use crate::{Algorithm, Count, Encoding, OnError, RampShape, WarmUp};

/// A rule: its conditions, its key and its limit.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Rule", extend("oneOf" = [
    { "required": ["limit", "window"] },
    { "required": ["unlimited"], "properties": { "unlimited": { "const": true } } },
    { "required": ["blocked"], "properties": { "blocked": { "const": true } } }
]))]
pub struct RuleFile {
    /// Letters, digits, `.`, `_`, `/` and `-`; unique among the rules.
    #[schemars(length(min = 1, max = 64), pattern(r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"))]
    pub name: String,
    /// Attributes and their required values: a value, a list of values, or a prefix that ends in `*`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub r#match: BTreeMap<String, PatternsFile>,
    /// The attributes that separate the counts; without a key all requests are counted together.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub key: Vec<String>,
    /// Applies only to requests without attributes other than those in `match` and `key`.
    #[serde(skip_serializing_if = "is_false", default)]
    pub only: bool,
    /// Only the first applicable rule of a group is evaluated.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(length(min = 1, max = 64), pattern(r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"))]
    pub group: Option<String>,
    /// Other rules, which are not evaluated if this one applies.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub replaces: Vec<String>,
    /// Instead of `limit` and `window`: counts nothing and denies nothing.
    #[serde(skip_serializing_if = "is_false", default)]
    pub unlimited: bool,
    /// Instead of `limit` and `window`: counts nothing and denies everything.
    #[serde(skip_serializing_if = "is_false", default)]
    pub blocked: bool,
    /// One of `key`: all rules with this tag store the counts of one value in one slot of a cluster, on one server.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tag: Option<String>,
    /// Permits per window; the refill of a token bucket.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub limit: Option<u64>,
    /// A length of time such as `250ms`, `5s` or `1h`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub window: Option<String>,
    /// The counting algorithm. Default: `sliding-window`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub algorithm: Option<AlgorithmFile>,
    /// `token-bucket` only: the capacity of the bucket. Default: the limit.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub burst: Option<u64>,
    /// `time-slice` only: the number of slices in the window. Default: 10.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 2, max = 10_000))]
    pub slices: Option<u32>,
    /// Counts admitted requests only, or denied requests too. Default: `admitted`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub count: Option<CountFile>,
    /// The code of a denial. Default: 429.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1))]
    pub code: Option<u32>,
    /// Enforces the limit, only observes, or is off. Default: `enforce`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mode: Option<ModeFile>,
    /// Another rule, which this one is tested to replace: requests that would be decided differently are counted. `mode` is then
    /// `shadow`, unless it is `off`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub shadow_of: Option<String>,
    /// Storage format in Redis: `packed` for `sliding-window` only. Default: `zset`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub encoding: Option<EncodingFile>,
    /// Behaviour while Redis cannot decide. Default: the setting in `guard`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub on_error: Option<OnErrorFile>,
    /// Lets each node take permits in advance: for `sliding-window`, which is then counted in slices, or `time-slice`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lease: Option<LeaseFile>,
    /// Raises the limit gradually after a cold start; not with `token-bucket`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub warm_up: Option<WarmUpFile>,
    /// Lets the limit follow the load; not with `lease`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub adaptive: Option<AdaptiveFile>,
    /// Other limits for single keys.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub overrides: Vec<OverrideFile>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl RuleFile {
    /// Removes the fields that equal their defaults.
    #[must_use]
    pub fn brief(mut self) -> Self {
        fn drop_default<T: PartialEq>(field: &mut Option<T>, default_value: T) {
            *field = field.take().filter(|value| *value != default_value);
        }
        drop_default(&mut self.algorithm, AlgorithmFile::default());
        drop_default(&mut self.count, CountFile::default());
        drop_default(&mut self.code, super::DEFAULT_CODE.get());
        drop_default(&mut self.mode, ModeFile::default());
        drop_default(&mut self.encoding, EncodingFile::default());
        self.adaptive = self.adaptive.map(AdaptiveFile::brief);
        self
    }
}

/// Permits that a node may take in advance.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Lease")]
pub struct LeaseFile {
    /// The most permits that one node takes at once.
    #[schemars(range(min = 2, max = 10_000))]
    pub permits: u32,
    /// Time for which a node may keep them; must divide the window evenly.
    pub ttl: String,
}

/// Gradual rise of a limit after a cold start.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "WarmUp")]
pub struct WarmUpFile {
    /// Start of the rise: a share of the limit such as `20%`.
    #[schemars(pattern(r"^[1-9][0-9]?(\.0{1,2})? *%$"))]
    pub from: String,
    /// Time until the full limit: up to a day.
    pub over: String,
    /// Time without any admission after which the limit is cold again: at least the window. Default: a minute, or the window if
    /// that is longer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub idle: Option<String>,
    /// Shape of the rise. Default: `linear`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub shape: Option<ClimbFile>,
}

/// Shape of the rise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Climb")]
pub enum ClimbFile {
    /// A steady rise.
    Linear,
    /// Four steps: from 20 % that is 20, 50, 80 and 100 %.
    Steps,
}

impl From<WarmUp> for WarmUpFile {
    fn from(warm_up: WarmUp) -> Self {
        WarmUpFile {
            from: format!("{}%", warm_up.from()),
            over: warm_up.over().to_string(),
            idle: Some(warm_up.idle_for().to_string()),
            shape: Some(match warm_up.shape() {
                RampShape::Linear => ClimbFile::Linear,
                RampShape::Steps => ClimbFile::Steps,
            }),
        }
    }
}

/// One value or prefix, or several.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Patterns")]
pub enum PatternsFile {
    /// One pattern.
    One(String),
    /// A list of patterns, any of which may match.
    Any(#[schemars(length(min = 1))] Vec<String>),
}

/// Name of the counting algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AlgorithmFile(&'static str);

impl Default for AlgorithmFile {
    fn default() -> Self {
        AlgorithmFile(Algorithm::default().as_str())
    }
}

impl JsonSchema for AlgorithmFile {
    fn schema_name() -> Cow<'static, str> {
        "Algorithm".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let algorithms = Algorithm::all(1).map(|algorithm| {
            json_schema!({ "description": algorithm.summary(), "type": "string", "const": algorithm.as_str() })
        });
        json_schema!({ "description": "The counting algorithm.", "oneOf": algorithms })
    }
}

/// The events that a rule counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Count")]
pub enum CountFile {
    /// Admitted requests only.
    #[default]
    Admitted,
    /// Denied requests too.
    Attempts,
}

/// Enforcement of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Mode")]
pub enum ModeFile {
    /// The rule denies requests over its limit.
    #[default]
    Enforce,
    /// The rule counts and reports, but denies nothing.
    Shadow,
    /// The rule is not evaluated.
    Off,
}

/// Storage format of a sliding window in Redis. The decisions are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Encoding")]
pub enum EncodingFile {
    /// A sorted set, which people can read.
    #[default]
    Zset,
    /// A packed log: at most ten bytes per event.
    Packed,
}

/// Behaviour while Redis cannot decide.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "OnError")]
pub enum OnErrorFile {
    /// Decide in this process, with this node's share of the limit.
    Local,
    /// Allow.
    Open,
    /// Deny.
    Closed,
}

impl From<OnError> for OnErrorFile {
    fn from(on_error: OnError) -> Self {
        match on_error {
            OnError::Local => OnErrorFile::Local,
            OnError::Open => OnErrorFile::Open,
            OnError::Closed => OnErrorFile::Closed,
        }
    }
}

/// Another limit for one key.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Override")]
pub struct OverrideFile {
    /// The value of each key attribute of the rule.
    pub key: BTreeMap<String, String>,
    /// The limit of this key. Default: that of the rule.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub limit: Option<u64>,
    /// The burst of this key. Default: that of the rule.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub burst: Option<u64>,
}

/// Policy for a request that no rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Unmatched")]
pub enum UnmatchedFile {
    /// The request is allowed.
    Allow,
    /// The request is allowed; the names of its attributes are logged, at most once a minute.
    Warn,
    /// The request is denied, with code 429.
    Deny,
}

impl From<Unmatched> for UnmatchedFile {
    fn from(unmatched: Unmatched) -> Self {
        match unmatched {
            Unmatched::Allow => UnmatchedFile::Allow,
            Unmatched::Warn => UnmatchedFile::Warn,
            Unmatched::Deny => UnmatchedFile::Deny,
        }
    }
}

/// Bounds for requests that give their own limit.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "AdHoc")]
pub struct AdHocFile {
    /// Limits. Defaults: 1,000 if a request gives none, between 1 and 100,000.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub limit: Option<BoundsFile<u64>>,
    /// Windows. Defaults: 60s if a request gives none, between 1s and 1h.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub window: Option<BoundsFile<String>>,
}

/// A default and its bounds.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Bounds_of_{T}")]
pub struct BoundsFile<T> {
    /// Used if a request gives none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub default: Option<T>,
    /// The lowest value a request may give.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub min: Option<T>,
    /// The highest value a request may give.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max: Option<T>,
}

impl From<&Rule> for RuleFile {
    fn from(rule: &Rule) -> Self {
        let (quota, limited) = (rule.quota, rule.is_limited());
        RuleFile {
            name: rule.name.clone(),
            r#match: rule.conditions.iter().map(|(name, any)| (name.clone(), patterns(any))).collect(),
            key: rule.key.clone(),
            only: rule.only,
            group: rule.group.clone(),
            replaces: rule.replaces.clone(),
            unlimited: rule.kind == Kind::Unlimited,
            blocked: rule.kind == Kind::Blocked,
            tag: rule.tagged_by().map(str::to_owned),
            limit: limited.then_some(quota.limit()),
            window: limited.then(|| quota.window().to_string()),
            algorithm: limited.then_some(AlgorithmFile(quota.algorithm().as_str())),
            burst: quota.algorithm().burst(),
            slices: quota.algorithm().slices(),
            count: limited.then_some(match quota.count() {
                Count::Admitted => CountFile::Admitted,
                Count::Attempts => CountFile::Attempts,
            }),
            code: (rule.kind != Kind::Unlimited).then_some(rule.code.get()),
            mode: Some(match rule.mode {
                Mode::Enforce => ModeFile::Enforce,
                Mode::Shadow => ModeFile::Shadow,
                Mode::Off => ModeFile::Off,
            }),
            shadow_of: rule.shadow_of.clone(),
            encoding: limited.then_some(match rule.encoding {
                Encoding::Zset => EncodingFile::Zset,
                Encoding::Packed => EncodingFile::Packed,
            }),
            on_error: rule.on_error.map(Into::into).filter(|_| limited),
            lease: rule
                .leased()
                .map(|(permits, ttl)| LeaseFile { permits: permits.get(), ttl: ttl.to_string() }),
            warm_up: quota.warm_up().map(Into::into),
            adaptive: rule.adapts_by().map(Into::into),
            overrides: overrides(rule),
        }
    }
}

impl From<&AdHoc> for AdHocFile {
    fn from(ad_hoc: &AdHoc) -> Self {
        let Bounds { default, min, max } = ad_hoc.limit();
        let window = ad_hoc.window();
        AdHocFile {
            limit: Some(BoundsFile { default: Some(default), min: Some(min), max: Some(max) }),
            window: Some(BoundsFile {
                default: Some(window.default.to_string()),
                min: Some(window.min.to_string()),
                max: Some(window.max.to_string()),
            }),
        }
    }
}

fn patterns(any: &[Pattern]) -> PatternsFile {
    match any {
        [one] => PatternsFile::One(one.to_string()),
        several => PatternsFile::Any(several.iter().map(Pattern::to_string).collect()),
    }
}

fn overrides(rule: &Rule) -> Vec<OverrideFile> {
    let mut overrides: Vec<OverrideFile> = rule
        .overrides
        .iter()
        .map(|(values, quota)| OverrideFile {
            key: rule.key.iter().cloned().zip(values.iter().cloned()).collect(),
            limit: Some(quota.limit()),
            burst: quota.algorithm().burst(),
        })
        .collect();
    overrides.sort_by(|a, b| a.key.cmp(&b.key));
    overrides
}
