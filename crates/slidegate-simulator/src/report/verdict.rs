//! The result of a simulation in one sentence, with the facts behind it.

use indicatif::HumanCount;

use super::rule::RuleReport;
use super::text::{format_percent, with_percentage};
use super::{AlgorithmReport, Difference, Report, percentage};
use crate::suggest::Suggestions;

/// Maximum number of rules to mention.
const MAX_RULES: usize = 3;

/// The result, and the facts behind it. Plain text, which is not escaped for HTML.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) headline: String,
    pub(super) facts: Vec<String>,
}

impl Verdict {
    pub(super) fn new(report: &Report, suggestions: Option<&Suggestions>) -> Self {
        match (suggestions, &report.difference) {
            (Some(suggestions), _) => suggested(suggestions),
            (None, Some(difference)) => compared(report, difference),
            (None, None) if !report.algorithms.is_empty() => by_algorithm(report, &report.algorithms),
            (None, None) => simulated(report),
        }
    }
}

fn simulated(report: &Report) -> Verdict {
    let headline = if report.unruled == report.requests {
        "No rule applies to any request".to_owned()
    } else if report.denied == 0 {
        "With these rules, no request would be denied".to_owned()
    } else {
        let (denied, requests) = (HumanCount(report.denied), HumanCount(report.requests));
        let share = format_percent(percentage(report.denied, report.requests));
        format!("With these rules, {share} of requests would be denied: {denied} of {requests}")
    };
    let mut denying: Vec<&RuleReport> = report.rules.iter().filter(|rule| rule.denied > 0).collect();
    denying.sort_by_key(|rule| std::cmp::Reverse(rule.denied));
    let mut facts: Vec<String> = denying.iter().take(MAX_RULES).map(|rule| denials_of(rule)).collect();
    if denying.len() > MAX_RULES {
        facts.push(format!("{} more rules deny requests.", denying.len() - MAX_RULES));
    }
    if report.unruled > 0 && report.unruled < report.requests {
        facts.push(format!("No rule applies to {}.", count_requests(report.unruled, report.requests)));
    }
    Verdict { headline, facts }
}

/// Describes the denials of one rule, and the keys that they concern.
fn denials_of(rule: &RuleReport) -> String {
    let (name, denied) = (&rule.rule, HumanCount(rule.denied));
    let (mode, denies) = if rule.mode == "shadow" { (" (shadow)", "would deny") } else { ("", "denies") };
    match rule.keys {
        0 | 1 => format!("Rule {name}{mode} {denies} {denied} requests."),
        keys => format!(
            "Rule {name}{mode} {denies} {denied} requests, from {} of {} keys.",
            HumanCount(rule.denied_keys),
            HumanCount(keys)
        ),
    }
}

fn compared(report: &Report, difference: &Difference) -> Verdict {
    let headline = match (difference.newly_denied, difference.newly_allowed) {
        (0, 0) => "The new rules decide every request as the old rules do".to_owned(),
        (denied, allowed) => {
            let share = |n| format_percent(percentage(n, report.requests));
            let (denied, allowed) = (share(denied), share(allowed));
            format!(
                "With the new rules, {denied} of requests would be newly denied and {allowed} newly allowed"
            )
        }
    };
    let fact = format!(
        "The old rules deny {}, the new rules {}. Keys that notice the difference: {}.",
        count_requests(difference.denied_before, report.requests),
        HumanCount(report.denied),
        HumanCount(difference.changed_keys)
    );
    Verdict { headline, facts: vec![fact] }
}

fn by_algorithm(report: &Report, algorithms: &[AlgorithmReport]) -> Verdict {
    let worst = algorithms.iter().max_by_key(|algorithm| algorithm.overshoot);
    let headline = match worst {
        Some(worst) if worst.overshoot > 0 => {
            let over = HumanCount(worst.overshoot);
            format!(
                "With {}, up to {over} permits over the limit are admitted in one window",
                worst.algorithm
            )
        }
        _ => "With these algorithms, no limit is exceeded".to_owned(),
    };
    let denied = algorithms.iter().map(|algorithm| {
        format!("{} denies {}.", algorithm.algorithm, count_requests(algorithm.denied, report.requests))
    });
    Verdict { headline, facts: denied.collect() }
}

fn suggested(suggestions: &Suggestions) -> Verdict {
    let limits: Vec<_> = suggestions
        .suggestions
        .iter()
        .filter_map(|suggestion| Some((suggestion, suggestion.limit?)))
        .collect();
    let headline = match &limits[..] {
        [] => "No limit can be suggested".to_owned(),
        [(suggestion, limit)] => format!(
            "A limit of {} per {} would deny {} of requests and {} of clients",
            HumanCount(*limit),
            suggestion.window,
            format_percent(percentage(suggestion.denied, suggestion.requests)),
            format_percent(percentage(suggestion.denied_clients, suggestion.clients))
        ),
        several => {
            let limits = several.iter().map(|(suggestion, limit)| {
                format!("{} {} per {}", suggestion.rule, HumanCount(*limit), suggestion.window)
            });
            format!("Suggested limits: {}", limits.collect::<Vec<_>>().join(", "))
        }
    };
    Verdict { headline, facts: vec![format!("Wanted: {}.", suggestions.wish)] }
}

fn count_requests(n: u64, all: u64) -> String {
    format!("{} requests", with_percentage(n, all))
}
