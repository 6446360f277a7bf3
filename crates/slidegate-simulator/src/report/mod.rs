//! Results of a simulation: as text, as JSON, and as charts.

mod chart;
mod charts;
mod difference;
mod html;
mod rule;
mod text;
mod time_axis;
mod verdict;

use serde::Serialize;

pub(crate) use self::charts::{ReportChart, charts};
pub(crate) use self::difference::Difference;
pub(crate) use self::html::page;
pub(crate) use self::rule::{RuleReport, rule_reports};
use super::baseline::Baseline;
use super::scenarios::ScenarioRun;
use super::traffic::{Format, MappedAttribute, ParseErrors};

/// Results of one pass over the traffic. Serializes to one JSON object.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) traffic: String,
    pub(crate) format: Option<Format>,
    /// File of the rules.
    pub(crate) rules_from: String,
    /// Attributes that use a field of another name, because the trace has no field of their name.
    pub(crate) mapped: Vec<MappedAttribute>,
    pub(crate) requests: u64,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Requests that no counting rule applies to; `unmatched: deny` denies those that no rule matches.
    pub(crate) unruled: u64,
    /// Times of the first and the last request, as RFC 3339.
    pub(crate) from: Option<String>,
    pub(crate) to: Option<String>,
    pub(crate) begin_us: u64,
    pub(crate) span_us: u64,
    /// Duration of the simulation in real time, in seconds.
    pub(crate) seconds: f64,
    pub(crate) requests_per_second: f64,
    pub(crate) interrupted: bool,
    pub(crate) bad_lines: ParseErrors,
    pub(crate) late: LateRequests,
    /// Comparison with the recorded decisions, if the trace is a recording.
    pub(crate) recorded: Option<Baseline>,
    /// Results of each rule. Compared with old rules, these are the new rules. Empty in a comparison of algorithms: each
    /// algorithm has its own.
    pub(crate) rules: Vec<RuleReport>,
    /// Results of each algorithm, in a comparison of algorithms.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) algorithms: Vec<AlgorithmReport>,
    pub(crate) difference: Option<Difference>,
    pub(crate) notes: Vec<String>,
}

/// Requests with a time before the time of an earlier line.
#[derive(Debug, Serialize)]
pub(crate) struct LateRequests {
    pub(crate) requests: u64,
    pub(crate) most_us: u64,
}

/// Results of the rules with one algorithm.
#[derive(Debug, Serialize)]
pub(crate) struct AlgorithmReport {
    pub(crate) algorithm: String,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Largest number of permits admitted over a limit, in any window of any key.
    pub(crate) overshoot: u64,
    /// Requests that this algorithm denied and the exact window allowed.
    pub(crate) denied_needlessly: u64,
    /// Requests that this algorithm allowed and the exact window denied.
    pub(crate) allowed_beyond: u64,
    /// Largest memory of the counters at the times of measurement, in bytes.
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

/// Returns `n` as a percentage of `all`.
pub(crate) fn percentage(n: u64, all: u64) -> f64 {
    100.0 * n as f64 / all.max(1) as f64
}
