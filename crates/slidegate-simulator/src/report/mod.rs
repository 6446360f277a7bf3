//! What a run says in the end: figures that are printed, drawn, or written for machines.

mod chart;
mod charts;
mod difference;
mod html;
mod rule;
mod text;

use serde::Serialize;

pub(super) use self::charts::{Picture, pictures};
pub(super) use self::difference::Difference;
pub(super) use self::html::page;
pub(super) use self::rule::{RuleReport, rule_reports};
use super::baseline::Baseline;
use super::scenarios::Counted;
use super::traffic::{Format, ParseErrors};

/// The figures of one run; as JSON, one object.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) traffic: String,
    pub(super) format: Option<Format>,
    /// Where the rules are from.
    pub(super) rules_from: String,
    pub(super) requests: u64,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    /// Requests that no counting rule applies to; `unmatched: deny` denies those that no rule matches.
    pub(super) unruled: u64,
    /// When the first and the last request were.
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    pub(super) begin_us: u64,
    pub(super) span_us: u64,
    /// How long it took to simulate.
    pub(super) seconds: f64,
    pub(super) requests_per_second: f64,
    pub(super) interrupted: bool,
    pub(super) bad_lines: ParseErrors,
    pub(super) late: Late,
    /// What a recording says was decided then, if it is one.
    pub(super) recorded: Option<Baseline>,
    /// What each rule did; of different ones, the new. In a comparison each algorithm has its own.
    pub(super) rules: Vec<RuleReport>,
    /// One algorithm after the other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) algorithms: Vec<AlgorithmReport>,
    pub(super) difference: Option<Difference>,
    pub(super) notes: Vec<String>,
}

/// Requests whose time lies before that of an earlier line.
#[derive(Debug, Serialize)]
pub(super) struct Late {
    pub(super) requests: u64,
    pub(super) most_us: u64,
}

/// The same rules, counted in one way.
#[derive(Debug, Serialize)]
pub(super) struct AlgorithmReport {
    pub(super) algorithm: String,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    /// The most that was admitted over a limit in any window of any key.
    pub(super) overshoot: u64,
    /// Denied here, while the exact window allowed it.
    pub(super) denied_needlessly: u64,
    /// Allowed here, while the exact window denied it.
    pub(super) allowed_beyond: u64,
    /// The most bytes that the counts took, of those looked at.
    pub(super) bytes: usize,
    pub(super) rules: Vec<RuleReport>,
}

impl AlgorithmReport {
    pub(super) fn new(counted: &Counted, top: usize) -> Self {
        let worst = counted.tally.rows.iter().filter_map(|row| row.worst.as_ref());
        AlgorithmReport {
            algorithm: counted.name.clone(),
            allowed: counted.tally.allowed,
            denied: counted.tally.denied,
            overshoot: worst.map(|worst| worst.over()).max().unwrap_or_default(),
            denied_needlessly: counted.only_denied,
            allowed_beyond: counted.only_allowed,
            bytes: counted.lane.bytes(),
            rules: rule_reports(&counted.tally, top),
        }
    }
}

/// So much of all, in percent.
pub(super) fn share(n: u64, all: u64) -> f64 {
    100.0 * n as f64 / all.max(1) as f64
}
