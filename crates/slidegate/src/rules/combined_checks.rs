//! Combined checks of several requests, with a single check per key.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::Rules;
use super::selection::{CheckList, Replaced};
use crate::checks::too_many_permits;
use crate::quota::MAX_LIMIT;
use crate::{Check, Checks, Error, Key, Request};

/// Largest number of requests in one atomic batch.
pub const MAX_TOGETHER: usize = 64;

/// Largest number of checks in one atomic batch.
const MAX_CHECKS: usize = 1024;

/// Requests that are evaluated and charged atomically.
pub(crate) struct CombinedChecks {
    pub checks: Checks,
    /// Part of each request, in the order of the requests.
    pub parts: Vec<RequestPart>,
}

/// Part of the combined checks that belongs to one request.
pub(crate) struct RequestPart {
    /// Indexes of its checks in the combined checks.
    pub indexes: SmallVec<[usize; 2]>,
    /// True if no rule matches the request.
    pub unmatched: bool,
}

impl Rules {
    /// Builds the checks for all requests. A cost above a limit is not an error here: the store denies it.
    pub(crate) fn combine_checks(&self, requests: &[Request<'_>]) -> Result<CombinedChecks, Error> {
        self.check_known()?;
        let n = requests.len();
        ensure!(n <= MAX_TOGETHER, "at most {MAX_TOGETHER} requests can be decided together, not {n}");
        let mut replaced = Replaced::new();
        let mut lists = Vec::with_capacity(requests.len());
        for request in requests {
            let mut list = CheckList::new();
            let matched = self.visit_checks(request, &mut replaced, |check| list.push(check))?;
            lists.push((list, matched));
        }
        let mut checks = CheckList::new();
        let mut index_by_key: HashMap<Key, usize> = HashMap::new();
        let mut parts = Vec::with_capacity(lists.len());
        for (list, matched) in lists {
            let mut indexes = SmallVec::new();
            for check in list.into_iter().filter(|check| !replaced.contains(&check.rule)) {
                let index = *index_by_key.entry(check.key.clone()).or_insert(checks.len());
                match checks.get_mut(index) {
                    Some(first) => merge(first, &check)?,
                    None => checks.push(check),
                }
                indexes.push(index);
            }
            parts.push(RequestPart { indexes, unmatched: !matched });
        }
        ensure!(
            checks.len() <= MAX_CHECKS,
            "requests that are decided together may have at most {MAX_CHECKS} checks, not {}",
            checks.len()
        );
        let mut combined = Checks::distinct(checks.into_iter());
        combined.id = requests.first().and_then(|request| request.request_id().cloned());
        Ok(CombinedChecks { checks: combined, parts })
    }
}

/// Adds the cost of a second request with the same key. Only requests that give their own limit can have different
/// limits for one key; the lower limit then applies.
fn merge(first: &mut Check, second: &Check) -> Result<(), Error> {
    let cost = first.cost + second.cost;
    if cost > MAX_LIMIT {
        return Err(too_many_permits(cost));
    }
    first.cost = cost;
    if second.quota.limit() < first.quota.limit() {
        first.quota = second.quota;
    }
    Ok(())
}
