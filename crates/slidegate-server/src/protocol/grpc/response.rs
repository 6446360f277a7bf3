//! Encodes decisions for Envoy: a status for each descriptor, and headers for the client.

use prost_types::Duration;
use slidegate::http::headers;
use slidegate::{Decision, Limit, Micros};

use super::descriptor::{LimitOverride, UNITS};
use super::messages::{Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitResponse, Unit};

/// Outcome of one descriptor.
pub(super) enum DescriptorOutcome<'a> {
    Decided(&'a Decision),
    /// The descriptor overrides the limit with 0, so it is always denied.
    ZeroLimit(&'a LimitOverride),
    /// The descriptor requests more permits than its limit ever allows, and another descriptor of the request
    /// has a limit of 0.
    ExceedsLimit,
}

impl<'a> DescriptorOutcome<'a> {
    fn allowed(&self) -> bool {
        matches!(self, DescriptorOutcome::Decided(decision) if decision.allowed())
    }

    fn decision(&self) -> Option<&'a Decision> {
        match self {
            DescriptorOutcome::Decided(decision) => Some(decision),
            _ => None,
        }
    }

    fn status(&self) -> DescriptorStatus {
        let mut status = DescriptorStatus { code: code(self.allowed()), ..DescriptorStatus::default() };
        match self {
            DescriptorOutcome::Decided(decision) => {
                if let Some(limit) = headers::tightest(decision) {
                    let wait = if decision.allowed() { limit.reset_after() } else { decision.retry_after() };
                    status.current_limit = Some(current_limit(&limit));
                    status.limit_remaining = saturated(limit.remaining());
                    status.duration_until_reset = Some(seconds(wait));
                }
            }
            DescriptorOutcome::ZeroLimit(limit_override) => {
                let unit = limit_override.unit as i32;
                status.current_limit = Some(RateLimit { unit, ..RateLimit::default() });
            }
            DescriptorOutcome::ExceedsLimit => {}
        }
        status
    }
}

pub(super) fn rate_limit_response(outcomes: &[DescriptorOutcome<'_>]) -> RateLimitResponse {
    RateLimitResponse {
        overall_code: code(outcomes.iter().all(DescriptorOutcome::allowed)),
        statuses: outcomes.iter().map(DescriptorOutcome::status).collect(),
        response_headers_to_add: client_headers(outcomes),
    }
}

fn code(allowed: bool) -> i32 {
    if allowed { Code::Ok as i32 } else { Code::OverLimit as i32 }
}

fn current_limit(limit: &Limit<'_>) -> RateLimit {
    RateLimit {
        name: limit.rule().to_owned(),
        requests_per_unit: saturated(limit.limit()),
        unit: unit(limit.quota().window()) as i32,
    }
}

/// Returns Envoy's name for the length of this window, or `Unknown` if Envoy has no name for it.
fn unit(window: Micros) -> Unit {
    let known = UNITS.iter().find(|(_, seconds)| Micros::from_secs(*seconds) == window);
    known.map_or(Unit::Unknown, |(unit, _)| *unit)
}

/// Rounds up to whole seconds: Envoy reports only whole seconds to its client, and would round down.
fn seconds(wait: Micros) -> Duration {
    Duration { seconds: i64::try_from(wait.ceil_secs()).unwrap_or(i64::MAX), nanos: 0 }
}

fn saturated(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Returns the same rate limit headers as the HTTP API, for all decisions together.
fn client_headers(outcomes: &[DescriptorOutcome<'_>]) -> Vec<HeaderValue> {
    let limits = limits_by_rule(outcomes);
    let mut headers = Vec::with_capacity(3);
    let mut add = |key: &str, value: String| {
        headers.push(HeaderValue { key: key.to_owned(), value });
    };
    if !limits.is_empty() {
        let buffer = || String::with_capacity(48 * limits.len());
        let (mut policy, mut state) = (buffer(), buffer());
        headers::policy(&mut policy, limits.iter().copied());
        headers::state(&mut state, limits.iter().copied());
        add(headers::POLICY, policy);
        add(headers::STATE, state);
    }
    let denied =
        outcomes.iter().filter_map(DescriptorOutcome::decision).filter(|decision| !decision.allowed());
    if let Some(wait) = denied.map(|decision| decision.retry_after()).max() {
        add("retry-after", wait.ceil_secs().to_string());
    }
    headers
}

/// Returns one limit per rule. If several descriptors matched a rule, it is the limit with the fewest permits
/// left.
fn limits_by_rule<'d>(outcomes: &[DescriptorOutcome<'d>]) -> Vec<Limit<'d>> {
    let mut limits: Vec<Limit<'d>> = Vec::new();
    for limit in outcomes.iter().filter_map(DescriptorOutcome::decision).flat_map(headers::enforced) {
        match limits.iter_mut().find(|existing| existing.rule() == limit.rule()) {
            Some(existing) if limit.remaining() < existing.remaining() => *existing = limit,
            Some(_) => {}
            None => limits.push(limit),
        }
    }
    limits
}
