//! The JSON of an explanation: written by a server, read by `slidegate explain`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What would become of a request now, and what each rule makes of it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Explanation")]
pub(crate) struct ExplanationBody {
    pub(crate) allowed: bool,
    /// 0 if allowed, or that of the rule that denies.
    pub(crate) code: u32,
    /// The rule that denies.
    pub(crate) denied_by: Option<String>,
    /// Whether it asks for more permits than that rule ever has: waiting does not help.
    pub(crate) never: bool,
    /// The exact wait until it could be allowed, rounded up.
    pub(crate) retry_after_ms: u64,
    /// `false` if `retry_after_ms` is a lower bound. Absent if it is exact.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) retry_after_exact: Option<bool>,
    /// How many permits it asks for.
    pub(crate) permits: u64,
    /// Who decides: as in a decision.
    pub(crate) source: String,
    /// If no rule matches the request: `allow`, `warn` or `deny`, as the rules say for such requests.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) unmatched: Option<String>,
    /// Every rule that applies, and others, in order.
    pub(crate) rules: Vec<RuleBody>,
    /// How many more rules there are: beyond 1,000 that do not apply, or 2,000 in all.
    pub(crate) left_out: usize,
}

/// What a rule makes of a request.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "RuleExplanation")]
pub(crate) struct RuleBody {
    pub(crate) rule: String,
    pub(crate) mode: String,
    pub(crate) verdict: VerdictBody,
    /// Why it does not apply, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<ReasonBody>,
    /// The same, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    /// What is counted, of a rule that counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counted: Option<CountedBody>,
}

/// What a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "RuleVerdict")]
pub(crate) enum VerdictBody {
    /// There is room.
    Allows,
    /// There is none.
    Denies,
    /// There is none, but it only watches.
    WouldDeny,
    /// It applies, and was not judged: another rule is known to deny.
    NotJudged,
    /// It lets pass, and counts nothing.
    Unlimited,
    /// It lets nothing pass.
    Blocks,
    /// It would let nothing pass, but only watches.
    WouldBlock,
    DoesNotApply,
}

/// Why a rule does not apply: the first reason.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
#[schemars(rename = "Reason")]
pub(crate) enum ReasonBody {
    /// Its mode is `off`.
    Off,
    /// Its `match` wants another value.
    Match { attribute: String, wanted: Vec<String>, found: Option<String> },
    /// The request lacks an attribute of its `key`.
    Key { attribute: String },
    /// It is `only` for requests without this attribute.
    Only { attribute: String },
    /// Another rule of its group came first.
    Group { group: String, rule: String },
    /// Another rule that applies replaces it.
    Replaced { rule: String },
}

/// What a rule counts under the request's key.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CountExplanation")]
pub(crate) struct CountedBody {
    /// See `/v1/keys/{key}`.
    pub(crate) key: String,
    pub(crate) algorithm: String,
    /// What counts: `admitted` or `attempts`.
    pub(crate) count: String,
    /// The most that can be in use, at full height.
    pub(crate) limit: u64,
    /// What that is now: less while it climbs, another one if it follows the load.
    pub(crate) limit_now: u64,
    pub(crate) window_ms: u64,
    /// Whether this key has a limit of its own.
    pub(crate) overridden: bool,
    /// What the limit is multiplied by now, if it follows the load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) factor: Option<f64>,
    /// How the limit climbs after a cold start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) warm_up: Option<WarmUpBody>,
    pub(crate) used: u64,
    pub(crate) remaining: u64,
    /// Until the request fits here.
    pub(crate) retry_after_ms: u64,
    /// `false` if `retry_after_ms` is a lower bound. Absent if it is exact.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) retry_after_exact: Option<bool>,
    /// Until nothing of it counts any more.
    pub(crate) reset_after_ms: u64,
    /// What counts, the oldest first: a few.
    pub(crate) entries: Vec<EntryBody>,
    /// How many more there are, newer ones.
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
    /// How long ago it was admitted; of a slice that is not over, 0.
    pub(crate) age_ms: u64,
    pub(crate) leaves_after_ms: u64,
}
