//! What a recording says was decided then, beside what is decided now.

use serde::Serialize;
use slidegate::Decision;

use crate::traffic::Decided;

/// How many differences are shown.
const SHOWN: usize = 10;

/// Decisions of a server, compared.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Baseline {
    pub(crate) compared: u64,
    pub(crate) differences: u64,
    pub(crate) first: Vec<Unlike>,
}

/// One that differs.
#[derive(Debug, Serialize)]
pub(crate) struct Unlike {
    /// The request's number in the trace, from 1, bad lines aside.
    pub(crate) request: u64,
    pub(crate) then: String,
    pub(crate) now: String,
}

impl Baseline {
    /// Compares one: whether it was allowed, and if it was not, by whom.
    pub(crate) fn compare(&mut self, request: u64, then: Decided<'_>, now: &Decision) {
        self.compared += 1;
        // Who denied is not always recorded.
        let by = |denied_by: &str| now.denied_by() == Some(denied_by);
        if then.allowed == now.allowed() && (then.allowed || then.denied_by.is_none_or(by)) {
            return;
        }
        self.differences += 1;
        if self.first.len() < SHOWN {
            self.first.push(Unlike {
                request,
                then: said(then.allowed, then.denied_by),
                now: said(now.allowed(), now.denied_by()),
            });
        }
    }
}

fn said(allowed: bool, denied_by: Option<&str>) -> String {
    match (allowed, denied_by) {
        (true, _) => "allowed".to_owned(),
        (false, Some(rule)) => format!("denied by {rule}"),
        (false, None) => "denied".to_owned(),
    }
}
