//! Rate-limit headers: IETF draft 10, and optionally the older `X-RateLimit-*`.

use std::fmt;

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::{Decision, Limit, Mode};

/// Adds the headers of a decision, including `X-RateLimit-*` if `older` is true. `text` is a buffer from which the
/// values are split. Only enforced rules appear: shadows are internal. Headers that an inner service has already added
/// are not changed.
pub fn add(decision: &Decision, older: bool, text: &mut BytesMut, headers: &mut HeaderMap) {
    let mut set = |name, text: &mut BytesMut| {
        // Rule names are checked to be plain ASCII, so every value is valid.
        if let Ok(value) = HeaderValue::from_maybe_shared(text.split().freeze()) {
            headers.append(name, value);
        }
    };
    policy(text, enforced(decision));
    if !text.is_empty() {
        set(HeaderName::from_static(POLICY), text);
    }
    state(text, enforced(decision));
    if !text.is_empty() {
        set(HeaderName::from_static(STATE), text);
    }
    let mut number = |name, n| {
        write(text, itoa::Buffer::new().format(n));
        set(name, text);
    };
    if !decision.allowed() {
        number(header::RETRY_AFTER, decision.retry_after().ceil_secs());
    }
    if older && let Some(limit) = tightest(decision) {
        number(HeaderName::from_static("x-ratelimit-limit"), limit.limit());
        number(HeaderName::from_static("x-ratelimit-remaining"), limit.remaining());
        number(HeaderName::from_static("x-ratelimit-reset"), limit.reset_after().ceil_secs());
    }
}

/// Name of the header that [`policy`] writes.
pub const POLICY: &str = "ratelimit-policy";

/// Name of the header that [`state`] writes.
pub const STATE: &str = "ratelimit";

/// Writes the quotas, one item per limit.
pub fn policy<'d>(text: &mut impl fmt::Write, limits: impl Iterator<Item = Limit<'d>>) {
    for (n, limit) in limits.enumerate() {
        let window = limit.quota().window();
        item(text, n, limit.rule(), "q", limit.limit());
        if window.get() % 1_000_000 == 0 {
            parameter(text, "w", window.ceil_secs());
        }
    }
}

/// Writes the remaining permits, one item per limit.
pub fn state<'d>(text: &mut impl fmt::Write, limits: impl Iterator<Item = Limit<'d>>) {
    for (n, limit) in limits.enumerate() {
        item(text, n, limit.rule(), "r", limit.remaining());
        parameter(text, "t", limit.reset_after().ceil_secs());
    }
}

/// Returns the limits that are visible to the client.
pub fn enforced(decision: &Decision) -> impl Iterator<Item = Limit<'_>> {
    decision.limits().filter(|limit| limit.mode() == Mode::Enforce)
}

/// Returns the limit for headers that name only one: the limit that denied, or the one with the fewest permits left.
pub fn tightest(decision: &Decision) -> Option<Limit<'_>> {
    let denied = enforced(decision).find(|limit| limit.outcome().denies());
    denied.or_else(|| enforced(decision).min_by_key(|limit| limit.remaining()))
}

/// Writes the `n`-th item of a list, with its first parameter.
fn item(list: &mut impl fmt::Write, n: usize, rule: &str, name: &str, value: u64) {
    write(list, if n == 0 { "\"" } else { ", \"" });
    write(list, rule);
    write(list, "\"");
    parameter(list, name, value);
}

fn parameter(item: &mut impl fmt::Write, name: &str, n: u64) {
    write(item, ";");
    write(item, name);
    write(item, "=");
    write(item, itoa::Buffer::new().format(n));
}

/// Appends text directly: each decision does this, and formatting would take longer than the decision.
fn write(text: &mut impl fmt::Write, part: &str) {
    // Writing to a buffer cannot fail.
    let _ = text.write_str(part);
}
