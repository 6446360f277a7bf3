//! JSON of an explanation: written by a server, read by `slidegate explain`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app::decision_body::{OutcomeBody, UsageBody};

/// Decision that a request would get now, and the verdict of each rule.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Explanation")]
pub(crate) struct ExplanationBody {
    #[serde(flatten)]
    pub(crate) outcome: OutcomeBody<'static>,
    /// True if the request asks for more permits than the denying rule ever has: waiting does not help.
    pub(crate) never: bool,
    /// Number of permits that the request asks for.
    pub(crate) permits: u64,
    /// Component that decides, as in a decision.
    pub(crate) source: String,
    /// If no rule matches the request: `allow`, `warn` or `deny`, as the rules say for such requests.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) unmatched: Option<String>,
    /// Every rule that applies, and rules that do not, in order.
    pub(crate) rules: Vec<RuleBody>,
    /// Number of rules that are not listed. At most 1,000 rules that do not apply are listed, and at most 2,000 rules
    /// in total.
    pub(crate) left_out: usize,
}

/// Verdict of one rule on a request.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "RuleExplanation")]
pub(crate) struct RuleBody {
    pub(crate) rule: String,
    pub(crate) mode: String,
    pub(crate) verdict: VerdictBody,
    /// Reason why the rule does not apply, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<ReasonBody>,
    /// The same reason as text, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    /// Count under the request's key, if the rule counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counted: Option<CountedBody>,
}

/// Verdict of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "RuleVerdict")]
pub(crate) enum VerdictBody {
    /// There is room.
    Allows,
    /// There is no room.
    Denies,
    /// There is no room, but the rule is a shadow rule and does not deny.
    WouldDeny,
    /// The rule applies, and was not evaluated: another rule is known to deny.
    NotEvaluated,
    /// The rule allows every request, and counts nothing.
    Unlimited,
    /// The rule denies every request.
    Blocks,
    /// The rule would deny every request, but is a shadow rule.
    WouldBlock,
    DoesNotApply,
}

/// First reason why a rule does not apply.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
#[schemars(rename = "Reason")]
pub(crate) enum ReasonBody {
    /// Its mode is `off`.
    Off,
    /// Its `match` requires another value.
    Match { attribute: String, wanted: Vec<String>, found: Option<String> },
    /// The request lacks an attribute of its `key`.
    Key { attribute: String },
    /// The rule has `only`, and the request has this additional attribute.
    Only { attribute: String },
    /// Another rule of its group comes first.
    Group { group: String, rule: String },
    /// Another rule that applies replaces it.
    Replaced { rule: String },
}

/// Count of a rule under the request's key.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CountExplanation")]
pub(crate) struct CountedBody {
    /// See `/v1/keys/{key}`.
    pub(crate) key: String,
    pub(crate) algorithm: String,
    /// Requests that are counted: `admitted` or `attempts`.
    pub(crate) count: String,
    /// Highest number of permits that can be in use, after any warm-up.
    pub(crate) limit: u64,
    /// Limit at this moment: lower during a warm-up, different if the rule follows the load.
    pub(crate) limit_now: u64,
    pub(crate) window_ms: u64,
    /// True if an override sets the limit of this key.
    pub(crate) overridden: bool,
    /// Factor by which the limit is multiplied now, if the rule follows the load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) factor: Option<f64>,
    /// Warm-up of the limit after a cold start.
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
    pub(crate) over_ms: u64,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct EntryBody {
    pub(crate) permits: u64,
    /// Time since the permits were admitted; 0 for a slice that has not ended.
    pub(crate) age_ms: u64,
    pub(crate) leaves_after_ms: u64,
}
