//! Explanation as readable text.

use std::fmt::Write;

use slidegate::Micros;
use slidegate::yaml::one_line;

use crate::app::decision_body::{OutcomeBody, UsageBody};
use crate::app::explain::dto::{CountedBody, ExplanationBody, RuleBody, VerdictBody};

/// Returns several lines without control characters that a terminal would obey.
pub(super) fn text(explained: &ExplanationBody) -> String {
    let mut text = headline(explained);
    let (others, applying): (Vec<_>, Vec<_>) =
        explained.rules.iter().partition(|rule| rule.verdict == VerdictBody::DoesNotApply);
    for rule in &applying {
        let _ = write!(text, "\n\n{}", one_line(&verdict_line(rule)));
        if let Some(counted) = &rule.counted {
            write_count(&mut text, counted, explained.permits);
        }
    }
    if !others.is_empty() {
        text += "\n\ndo not apply:";
    }
    for rule in others {
        let why = rule.why.as_deref().unwrap_or("no reason given");
        let _ = write!(text, "\n  {}: {}", one_line(&rule.rule), one_line(why));
    }
    if explained.left_out > 0 {
        let _ = write!(text, "\n  and {} more rules", explained.left_out);
    }
    text
}

fn headline(explained: &ExplanationBody) -> String {
    let ExplanationBody { outcome, never, permits, .. } = explained;
    let OutcomeBody { allowed, code, denied_by, retry_after_ms, retry_after_exact } = outcome;
    let rule = one_line(denied_by.as_deref().unwrap_or("no rule"));
    if let Some(policy) = &explained.unmatched {
        let denied = format!("would be denied (code {code})");
        let what = if *allowed { "would be allowed" } else { &denied };
        return format!("{what}: no rule matches it, and `unmatched` is `{}`", one_line(policy));
    }
    match allowed {
        true if explained.rules.iter().all(|rule| rule.counted.is_none()) => {
            "would be allowed: no rule limits it".to_owned()
        }
        true => "would be allowed".to_owned(),
        false if *never => {
            format!("would be denied by {rule} (code {code}), always: its limit is below {permits} permits")
        }
        false if explained.source == "blocked" => {
            format!("would be denied by {rule} (code {code}), always: the rule blocks every request")
        }
        false => {
            let retry = bounded(*retry_after_ms, *retry_after_exact);
            format!("would be denied by {rule} (code {code}): retry in {retry}")
        }
    }
}

/// Formats a wait that may be a lower bound.
fn bounded(millis: u64, exact: Option<bool>) -> String {
    let wait = Micros::from_millis(millis);
    if exact == Some(false) { format!("at least {wait}") } else { wait.to_string() }
}

fn verdict_line(rule: &RuleBody) -> String {
    let verdict = match rule.verdict {
        VerdictBody::Allows => "allows",
        VerdictBody::Denies => "denies",
        VerdictBody::WouldDeny => "would deny",
        VerdictBody::NotEvaluated => "was not evaluated, because another rule denies",
        VerdictBody::Unlimited => "allows without counting (unlimited)",
        VerdictBody::Blocks => "blocks every request",
        VerdictBody::WouldBlock => "would block every request",
        VerdictBody::DoesNotApply => "does not apply",
    };
    let shadow = if rule.mode == "shadow" { " (shadow)" } else { "" };
    format!("{}{shadow}: {verdict}", rule.rule)
}

fn write_count(text: &mut String, counted: &CountedBody, permits: u64) {
    let CountedBody { limit, limit_now, usage, algorithm, window_ms, .. } = counted;
    let UsageBody { used, retry_after_ms, retry_after_exact, reset_after_ms, .. } = usage;
    let own = if counted.overridden { ", limit of an override" } else { "" };
    let attempts = if counted.count == "attempts" { ", counting denied attempts too" } else { "" };
    let _ = write!(
        text,
        "\n  {used} of {limit_now} used in {}, {permits} requested ({}{attempts}{own})",
        Micros::from_millis(*window_ms),
        one_line(algorithm)
    );
    let _ = write!(text, "\n  key {}", one_line(&counted.key));
    if let Some(factor) = counted.factor {
        let _ = write!(text, "\n  adaptive: {limit_now} now, {}% of the limit", (factor * 100.0).round());
    }
    if let Some(warm_up) = &counted.warm_up {
        let over = Micros::from_millis(warm_up.over_ms);
        let _ = write!(text, "\n  warm-up from {}% to {limit} over {over}: {limit_now} now", warm_up.from);
    }
    for entry in &counted.entries {
        let permits = if entry.permits == 1 { "permit" } else { "permits" };
        let [age, leaves] = [entry.age_ms, entry.leaves_after_ms].map(Micros::from_millis);
        let _ = write!(text, "\n    {} {permits}, {age} ago, expires in {leaves}", entry.permits);
    }
    if counted.more_entries > 0 {
        let _ = write!(text, "\n    and {} more", counted.more_entries);
    }
    if *retry_after_ms > 0 && permits <= *limit {
        let fits = bounded(*retry_after_ms, *retry_after_exact);
        let _ = write!(text, "\n  fits in {fits}");
    }
    if *reset_after_ms > 0 {
        let _ = write!(text, "\n  empty in {}", Micros::from_millis(*reset_after_ms));
    }
}
