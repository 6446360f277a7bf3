//! JSON of an explanation: written by a server, read by `slidegate explain`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app::decision_body::{OutcomeBody, UsageBody};

/// Decision that the request would get now, and the verdict of each rule.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Explanation")]
pub(crate) struct ExplanationBody {
    #[serde(flatten)]
    pub(crate) outcome: OutcomeBody<'static>,
    /// True if the request asks for more permits than a rule ever allows, so waiting does not help.
    pub(crate) never: bool,
    /// Number of permits that the request asks for.
    pub(crate) permits: u64,
    /// Component that would decide, as in a decision.
    pub(crate) source: String,
    /// Policy `unmatched` of the rules (`allow`, `warn` or `deny`), if no rule matches the request.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) unmatched: Option<String>,
    /// Rules that apply and rules that do not, in the order of the rules.
    pub(crate) rules: Vec<RuleBody>,
    /// Number of rules that are not listed. At most 1,000 rules that do not apply are listed, and at most 2,000 rules
    /// in total.
    pub(crate) left_out: usize,
}

/// Verdict of one rule on a request.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "RuleExplanation")]
pub(crate) struct RuleBody {
    /// Name of the rule.
    pub(crate) rule: String,
    /// `enforce`, `shadow` or `off`.
    pub(crate) mode: String,
    pub(crate) verdict: VerdictBody,
    /// Reason why the rule does not apply, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<ReasonBody>,
    /// Reason why the rule does not apply, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    /// Count of the rule for the key of the request. Absent if the rule does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counted: Option<CountedBody>,
}

/// Verdict of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "RuleVerdict")]
pub(crate) enum VerdictBody {
    /// The request fits.
    Allows,
    /// The request does not fit.
    Denies,
    /// The request does not fit, but the rule is a shadow rule and denies nothing.
    WouldDeny,
    /// The rule applies and was not evaluated, because another rule denies the request in any case.
    NotEvaluated,
    /// The rule is `unlimited`: it counts nothing and denies nothing.
    Unlimited,
    /// The rule is `blocked`: it denies every request.
    Blocks,
    /// The rule is `blocked`, but a shadow rule: it denies nothing.
    WouldBlock,
    /// The rule does not apply to the request.
    DoesNotApply,
}

/// First reason why a rule does not apply.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
#[schemars(rename = "Reason")]
pub(crate) enum ReasonBody {
    /// The mode of the rule is `off`.
    Off,
    /// `match` requires another value of this attribute.
    Match { attribute: String, wanted: Vec<String>, found: Option<String> },
    /// The request does not have this attribute, which is in `key`.
    Key { attribute: String },
    /// The rule has `only`, and the request has this attribute, which is neither in `match` nor in `key`.
    Only { attribute: String },
    /// Another rule of the same group applies and comes first.
    Group { group: String, rule: String },
    /// Another rule applies and replaces this rule.
    Replaced { rule: String },
}

/// Count of a rule for the key of the request.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CountExplanation")]
pub(crate) struct CountedBody {
    /// Key of the count. `/v1/keys/{key}` shows it.
    pub(crate) key: String,
    /// Algorithm of the rule.
    pub(crate) algorithm: String,
    /// Requests that the rule counts: `admitted` or `attempts`.
    pub(crate) count: String,
    /// Highest number of permits that can be in use, without warm-up and adaptive changes.
    pub(crate) limit: u64,
    /// Highest number of permits that can be in use now, after warm-up and adaptive changes.
    pub(crate) limit_now: u64,
    /// Length of the window.
    pub(crate) window_ms: u64,
    /// True if an override sets the limit of this key.
    pub(crate) overridden: bool,
    /// Factor by which the limit is multiplied now, if the rule has `adaptive`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) factor: Option<f64>,
    /// Warm-up of the limit, if the rule has `warm-up`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) warm_up: Option<WarmUpBody>,
    #[serde(flatten)]
    pub(crate) usage: UsageBody,
    /// Some of the counted entries, the oldest first.
    pub(crate) entries: Vec<EntryBody>,
    /// Number of newer entries that are not listed.
    pub(crate) more_entries: usize,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct WarmUpBody {
    /// In percent of the limit.
    pub(crate) from: u32,
    /// Duration of the warm-up.
    pub(crate) over_ms: u64,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct EntryBody {
    /// Permits of this entry.
    pub(crate) permits: u64,
    /// Time since the permits were admitted; 0 for a slice that has not ended.
    pub(crate) age_ms: u64,
    /// Time until the permits stop counting.
    pub(crate) leaves_after_ms: u64,
}
