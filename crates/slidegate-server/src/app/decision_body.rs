//! JSON of a decision: written by `acquire`, `peek`, batches and `explain`, read by the command line.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use slidegate::{Decision, Limit, Limiter, Mode};

use crate::store::AnyStore;

// Examples of the API description. They are here so that a renamed field is renamed in one file.
pub(crate) const ALLOWED_EXAMPLE: &str = r#"{"allowed":true,"code":0,"denied_by":null,"retry_after_ms":0,"limits":[{"rule":"login-per-ip","key":"login-per-ip:ip=1.2.3.4","limit":3,"used":1,"remaining":2,"retry_after_ms":0,"reset_after_ms":5000},{"rule":"login-per-user","key":"login-per-user:user=alice","limit":5,"used":1,"remaining":4,"retry_after_ms":0,"reset_after_ms":60000}],"reservation":null,"source":"store"}"#;
pub(crate) const DENIED_EXAMPLE: &str = r#"{"allowed":false,"code":10007,"denied_by":"login-per-ip","retry_after_ms":4986,"limits":[{"rule":"login-per-ip","key":"login-per-ip:ip=1.2.3.4","limit":3,"used":3,"remaining":0,"retry_after_ms":4986,"reset_after_ms":5000},{"rule":"login-per-user","key":"login-per-user:user=alice","limit":5,"used":3,"remaining":2,"retry_after_ms":0,"reset_after_ms":59993}],"reservation":null,"source":"store"}"#;
pub(crate) const AD_HOC_ALLOWED_EXAMPLE: &str = r#"{"allowed":true,"code":0,"denied_by":null,"retry_after_ms":0,"limits":[{"rule":"ad-hoc","key":"ad-hoc:resource=user123:window=1s","limit":10,"used":3,"remaining":7,"retry_after_ms":0,"reset_after_ms":1000}],"reservation":"1794774215407676.0.3.33.ad-hoc:resource=user123:window=1s.5f0c7ab4d1e6938207cd45be91f3a86e","source":"store"}"#;

/// Fields that every JSON of a decision begins with.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct OutcomeBody<'d> {
    /// True if the request is allowed.
    pub(crate) allowed: bool,
    /// 0 if the request is allowed, otherwise the `code` of the rule that denied. 429 if the request is denied
    /// because no rule matches.
    pub(crate) code: u32,
    /// Name of the rule that denied. Null if the request is allowed, or denied because no rule matches.
    pub(crate) denied_by: Option<Cow<'d, str>>,
    /// Time until the same request could be allowed if no other request arrives, rounded up. 0 if the request is
    /// allowed.
    pub(crate) retry_after_ms: u64,
    /// `false` if `retry_after_ms` is a lower bound or an estimate, otherwise absent.
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
    /// Limits of all rules that were evaluated, in the order of the rules.
    #[schemars(with = "Vec<LimitBody<'_>>")]
    limits: LimitsBody<'d>,
    /// Signed text for `settle`, `release` and `extend`, which must be sent back unchanged. Null if nothing was
    /// charged that can be settled.
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

/// Result of one rule in a decision.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Limit")]
pub(crate) struct LimitBody<'d> {
    /// Name of the rule.
    pub(crate) rule: Cow<'d, str>,
    /// Key of the count. `/v1/keys/{key}` shows it.
    pub(crate) key: Cow<'d, str>,
    /// Highest number of permits that can be in use now.
    pub(crate) limit: u64,
    #[serde(flatten)]
    pub(crate) usage: UsageBody,
    /// Only for shadow rules: true if the rule would have denied the request.
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
    /// Permits in use, including those of this request if it was charged.
    pub(crate) used: u64,
    /// Permits that are still available.
    pub(crate) remaining: u64,
    /// Time until the request fits within this limit if no other request arrives.
    pub(crate) retry_after_ms: u64,
    /// `false` if `retry_after_ms` is a lower bound or an estimate, otherwise absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) retry_after_exact: Option<bool>,
    /// Time until the count of the key is zero if no other request arrives.
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

/// Body of a denial for proxies, which forward it to their clients. It does not name the rule.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Denial")]
pub(crate) struct DenialBody {
    /// `false`
    allowed: bool,
    /// `code` of the rule that denied.
    code: u32,
    /// Time until the same request could be allowed if no other request arrives, rounded up.
    retry_after_ms: u64,
}

impl From<&Decision> for DenialBody {
    fn from(decision: &Decision) -> Self {
        let retry_after_ms = decision.retry_after().ceil_millis();
        DenialBody { allowed: decision.allowed(), code: decision.code(), retry_after_ms }
    }
}
