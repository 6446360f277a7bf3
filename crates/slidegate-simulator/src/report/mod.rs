//! What a run says in the end: figures that are printed, drawn, or written for machines.

mod chart;
mod charts;
mod difference;
mod html;
mod rule;
mod text;

use serde::Serialize;

pub(crate) use self::charts::{ReportChart, charts};
pub(crate) use self::difference::Difference;
pub(crate) use self::html::page;
pub(crate) use self::rule::{RuleReport, rule_reports};
use super::baseline::Baseline;
use super::scenarios::ScenarioRun;
use super::traffic::{Format, ParseErrors};

/// The figures of one run; as JSON, one object.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) traffic: String,
    pub(crate) format: Option<Format>,
    /// Where the rules are from.
    pub(crate) rules_from: String,
    pub(crate) requests: u64,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Requests that no counting rule applies to; `unmatched: deny` denies those that no rule matches.
    pub(crate) unruled: u64,
    /// When the first and the last request were.
    pub(crate) from: Option<String>,
    pub(crate) to: Option<String>,
    pub(crate) begin_us: u64,
    pub(crate) span_us: u64,
    /// How long it took to simulate.
    pub(crate) seconds: f64,
    pub(crate) requests_per_second: f64,
    pub(crate) interrupted: bool,
    pub(crate) bad_lines: ParseErrors,
    pub(crate) late: LateRequests,
    /// What a recording says was decided then, if it is one.
    pub(crate) recorded: Option<Baseline>,
    /// What each rule did; of different ones, the new. In a comparison each algorithm has its own.
    pub(crate) rules: Vec<RuleReport>,
    /// One algorithm after the other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) algorithms: Vec<AlgorithmReport>,
    pub(crate) difference: Option<Difference>,
    pub(crate) notes: Vec<String>,
}

/// Requests whose time lies before that of an earlier line.
#[derive(Debug, Serialize)]
pub(crate) struct LateRequests {
    pub(crate) requests: u64,
    pub(crate) most_us: u64,
}

/// The same rules, counted in one way.
#[derive(Debug, Serialize)]
pub(crate) struct AlgorithmReport {
    pub(crate) algorithm: String,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// The most that was admitted over a limit in any window of any key.
    pub(crate) overshoot: u64,
    /// Denied here, while the exact window allowed it.
    pub(crate) denied_needlessly: u64,
    /// Allowed here, while the exact window denied it.
    pub(crate) allowed_beyond: u64,
    /// The most bytes that the counts took, of those looked at.
    pub(crate) bytes: usize,
    pub(crate) rules: Vec<RuleReport>,
}

impl AlgorithmReport {
    pub(crate) fn new(run: &ScenarioRun, top: usize) -> Self {
        let worst = run.stats.rules.iter().filter_map(|rule| rule.worst.as_ref());
        AlgorithmReport {
            algorithm: run.name.clone(),
            allowed: run.stats.allowed,
            denied: run.stats.denied,
            overshoot: worst.map(|worst| worst.over()).max().unwrap_or_default(),
            denied_needlessly: run.only_denied,
            allowed_beyond: run.only_allowed,
            bytes: run.scenario.max_bytes(),
            rules: rule_reports(&run.stats, top),
        }
    }
}

/// So much of all, in percent.
pub(crate) fn percentage(n: u64, all: u64) -> f64 {
    100.0 * n as f64 / all.max(1) as f64
}
