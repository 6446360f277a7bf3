//! What a recording says was decided then, beside what is decided now.

use serde::Serialize;
use slidegate::Decision;

use crate::traffic::RecordedDecision;

/// How many differences are shown.
const MAX_SHOWN: usize = 10;

/// Decisions of a server, compared.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Baseline {
    pub(crate) compared: u64,
    pub(crate) differences: u64,
    pub(crate) first: Vec<Mismatch>,
}

/// One that differs.
#[derive(Debug, Serialize)]
pub(crate) struct Mismatch {
    /// The request's number in the trace, from 1, bad lines aside.
    pub(crate) request: u64,
    pub(crate) then: String,
    pub(crate) now: String,
}

impl Baseline {
    /// Compares one: whether it was allowed, and if it was not, by whom.
    pub(crate) fn compare(&mut self, request: u64, then: RecordedDecision<'_>, now: &Decision) {
        self.compared += 1;
        // Who denied is not always recorded.
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
