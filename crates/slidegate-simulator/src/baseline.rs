//! Compares the decisions of a recording with the decisions of the simulation.

use serde::Serialize;
use slidegate::Decision;

use crate::traffic::RecordedDecision;

/// Maximum number of mismatches to keep for the report.
const MAX_SHOWN: usize = 10;

/// Comparison with the decisions that a server recorded.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Baseline {
    pub(crate) compared: u64,
    pub(crate) differences: u64,
    pub(crate) first: Vec<Mismatch>,
}

/// A request that the simulation decides differently.
#[derive(Debug, Serialize)]
pub(crate) struct Mismatch {
    /// Number of the request in the trace, from 1. Lines that cannot be parsed are not numbered.
    pub(crate) request: u64,
    pub(crate) then: String,
    pub(crate) now: String,
}

impl Baseline {
    /// Compares one decision: allowed or denied, and for a denial also the rule that denied.
    pub(crate) fn compare(&mut self, request: u64, then: RecordedDecision<'_>, now: &Decision) {
        self.compared += 1;
        // A recording does not always name the rule that denied.
        let is_same_rule = |denied_by: &str| now.denied_by() == Some(denied_by);
        if then.allowed == now.allowed() && (then.allowed || then.denied_by.is_none_or(is_same_rule)) {
            return;
        }
        self.differences += 1;
        if self.first.len() < MAX_SHOWN {
            self.first.push(Mismatch {
                request,
                then: describe(then.allowed, then.denied_by),
                now: describe(now.allowed(), now.denied_by()),
            });
        }
    }
}

fn describe(allowed: bool, denied_by: Option<&str>) -> String {
    match (allowed, denied_by) {
        (true, _) => "allowed".to_owned(),
        (false, Some(rule)) => format!("denied by {rule}"),
        (false, None) => "denied".to_owned(),
    }
}
