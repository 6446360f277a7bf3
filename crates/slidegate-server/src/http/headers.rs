//! Rate-limit headers: IETF draft 10, and the older ones for those who ask.

use std::fmt::Write;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use slidegate::{Decision, Limit, Mode};

/// The headers of a decision. Only enforced rules show: a shadow is not the client's business.
pub(super) fn of(decision: &Decision, older: bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let (mut policy, mut state) = (String::new(), String::new());
    for limit in enforced(decision) {
        separate(&mut policy);
        separate(&mut state);
        let (rule, window) = (limit.rule(), limit.quota().window());
        // Writing to a string does not fail.
        let _ = write!(policy, "\"{rule}\";q={}", limit.limit());
        if window.get() % 1_000_000 == 0 {
            let _ = write!(policy, ";w={}", window.ceil_secs());
        }
        let _ = write!(state, "\"{rule}\";r={};t={}", limit.remaining(), limit.reset_after().ceil_secs());
    }
    if !policy.is_empty() {
        insert(&mut headers, HeaderName::from_static("ratelimit-policy"), &policy);
        insert(&mut headers, HeaderName::from_static("ratelimit"), &state);
    }
    if !decision.allowed() {
        insert(&mut headers, header::RETRY_AFTER, &decision.retry_after().ceil_secs().to_string());
    }
    if older && let Some(limit) = tightest(decision) {
        insert(&mut headers, HeaderName::from_static("x-ratelimit-limit"), &limit.limit().to_string());
        insert(
            &mut headers,
            HeaderName::from_static("x-ratelimit-remaining"),
            &limit.remaining().to_string(),
        );
        let reset = limit.reset_after().ceil_secs().to_string();
        insert(&mut headers, HeaderName::from_static("x-ratelimit-reset"), &reset);
    }
    headers
}

fn enforced(decision: &Decision) -> impl Iterator<Item = Limit<'_>> {
    decision.limits().filter(|limit| limit.mode() == Mode::Enforce)
}

/// The one limit that the older headers have room for: the one that refused, or has least left.
fn tightest(decision: &Decision) -> Option<Limit<'_>> {
    let refused = enforced(decision).find(|limit| limit.outcome().refuses());
    refused.or_else(|| enforced(decision).min_by_key(|limit| limit.remaining()))
}

fn separate(list: &mut String) {
    if !list.is_empty() {
        list.push_str(", ");
    }
}

/// Rule names are checked to be plain ASCII, so every value is acceptable.
fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
