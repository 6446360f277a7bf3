//! JSON of a decision: written by `acquire`, `peek`, batches and `explain`, read by the command line.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use slidegate::{Decision, Limit, Limiter, Mode};

use crate::store::AnyStore;

/// Fields that every JSON of a decision begins with.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct OutcomeBody<'d> {
    pub(crate) allowed: bool,
    /// 0 if allowed, otherwise the code of the rule that denied. 429 if no rule matches and `unmatched` is
    /// `deny`.
    pub(crate) code: u32,
    /// Rule that denied; null also if no rule matches and `unmatched` is `deny`.
    pub(crate) denied_by: Option<Cow<'d, str>>,
    /// Exact time until the request could be allowed, rounded up.
    pub(crate) retry_after_ms: u64,
    /// `false` if `retry_after_ms` is a lower bound. Absent if it is exact.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) retry_after_exact: Option<bool>,
}

impl<'d> From<&'d Decision> for OutcomeBody<'d> {
    fn from(decision: &'d Decision) -> Self {
        OutcomeBody {
            allowed: decision.allowed(),
            code: decision.code(),
            denied_by: decision.denied_by().map(Cow::Borrowed),
            retry_after_ms: decision.retry_after().ceil_millis(),
            retry_after_exact: (!decision.retry_after_is_exact()).then_some(false),
        }
    }
}

/// The decision about one request.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Decision")]
pub(crate) struct DecisionBody<'d> {
    #[serde(flatten)]
    outcome: OutcomeBody<'d>,
    /// Every rule that was evaluated, in order.
    #[schemars(with = "Vec<LimitBody<'_>>")]
    limits: LimitsBody<'d>,
    /// Signed reservation for `settle`, `release` and `extend`, to be sent back unchanged.
    reservation: Option<String>,
    /// Component that decided: `store`, `no-rule`, `blocked`, `deny-cache`, `lease`, `local`, `fail-open` or
    /// `fail-closed`.
    source: &'static str,
}

impl<'d> DecisionBody<'d> {
    pub(crate) fn new(limiter: &Limiter<AnyStore>, decision: &'d Decision) -> Self {
        DecisionBody {
            outcome: decision.into(),
            limits: LimitsBody(decision),
            reservation: limiter.sign_decision(decision),
            source: decision.source().as_str(),
        }
    }
}

/// Serializes the limits of a decision without collecting them.
struct LimitsBody<'d>(&'d Decision);

impl Serialize for LimitsBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.limits().map(LimitBody::from))
    }
}

/// One rule's part in a decision.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Limit")]
pub(crate) struct LimitBody<'d> {
    pub(crate) rule: Cow<'d, str>,
    /// Key that the request is counted under; see `/v1/keys/{key}`.
    pub(crate) key: Cow<'d, str>,
    pub(crate) limit: u64,
    #[serde(flatten)]
    pub(crate) usage: UsageBody,
    /// Only for shadow rules: true if the rule would have denied.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) would_deny: Option<bool>,
}

impl<'d> From<Limit<'d>> for LimitBody<'d> {
    fn from(limit: Limit<'d>) -> Self {
        LimitBody {
            rule: limit.rule().into(),
            key: limit.key().as_str().into(),
            limit: limit.limit(),
            usage: UsageBody::from(&limit),
            would_deny: (limit.mode() == Mode::Shadow).then_some(limit.outcome().denies()),
        }
    }
}

/// Usage of a limit under one key.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct UsageBody {
    pub(crate) used: u64,
    pub(crate) remaining: u64,
    /// Time until the request fits within this limit.
    pub(crate) retry_after_ms: u64,
    /// `false` if `retry_after_ms` is a lower bound. Absent if it is exact.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) retry_after_exact: Option<bool>,
    /// Time until nothing is counted under the key any more.
    pub(crate) reset_after_ms: u64,
}

impl From<&Limit<'_>> for UsageBody {
    fn from(limit: &Limit<'_>) -> Self {
        UsageBody {
            used: limit.used(),
            remaining: limit.remaining(),
            retry_after_ms: limit.retry_after().ceil_millis(),
            retry_after_exact: (!limit.retry_after_is_exact()).then_some(false),
            reset_after_ms: limit.reset_after().ceil_millis(),
        }
    }
}

/// A decision as a client reads it.
#[derive(Debug, Deserialize)]
pub(crate) struct ReceivedDecision {
    #[serde(flatten)]
    pub(crate) outcome: OutcomeBody<'static>,
    pub(crate) limits: Vec<LimitBody<'static>>,
}

/// Body of a denial without the rule. Proxies forward it to their clients.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Denial")]
pub(crate) struct DenialBody {
    /// `false`
    allowed: bool,
    /// Code of the rule that denied.
    code: u32,
    retry_after_ms: u64,
}

impl From<&Decision> for DenialBody {
    fn from(decision: &Decision) -> Self {
        let retry_after_ms = decision.retry_after().ceil_millis();
        DenialBody { allowed: decision.allowed(), code: decision.code(), retry_after_ms }
    }
}
