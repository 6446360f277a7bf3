//! Several requests as one batch, with a single check per key.

use std::collections::HashMap;

use smallvec::{SmallVec, smallvec};

use super::Rules;
use super::selection::{CheckList, Replaced};
use crate::checks::too_many_permits;
use crate::key::Digests;
use crate::quota::MAX_LIMIT;
use crate::request::{Subject, check_attributes};
use crate::{Check, Checks, Error, Key, Request};

/// Largest number of requests in one atomic batch.
pub const MAX_TOGETHER: usize = 64;

/// Largest number of checks in one atomic batch.
const MAX_CHECKS: usize = 1024;

/// Requests that are evaluated and charged atomically.
pub(crate) struct Together {
    pub ask: Checks,
    /// The part of the batch that belongs to each request.
    pub parts: Vec<Part>,
}

/// One request of the batch.
pub(crate) struct Part {
    /// Indexes of its checks in the batch.
    pub places: SmallVec<[usize; 2]>,
    /// True if no rule matches the request.
    pub unmatched: bool,
}

impl Rules {
    /// Builds the checks for all requests. A cost above a limit is not an error here: the store denies it.
    pub(crate) fn ask_together(&self, requests: &[Request<'_>]) -> Result<Together, Error> {
        self.check_known()?;
        if requests.len() > MAX_TOGETHER {
            let n = requests.len();
            return Err(Error::invalid(format!("{MAX_TOGETHER} requests can be asked together, not {n}")));
        }
        let mut replaced = Replaced::new();
        let met: Vec<(CheckList, bool)> =
            requests.iter().map(|request| self.meet(request, &mut replaced)).collect::<Result<_, _>>()?;
        let mut checks = CheckList::new();
        let mut known: HashMap<Key, usize> = HashMap::new();
        let mut parts = Vec::with_capacity(met.len());
        for (met, matched) in met {
            let mut own = SmallVec::new();
            for check in met.into_iter().filter(|check| !replaced.contains(&check.rule)) {
                let place = *known.entry(check.key.clone()).or_insert(checks.len());
                match checks.get_mut(place) {
                    Some(first) => merge(first, &check)?,
                    None => checks.push(check),
                }
                own.push(place);
            }
            parts.push(Part { places: own, unmatched: !matched });
        }
        if checks.len() > MAX_CHECKS {
            let n = checks.len();
            return Err(Error::invalid(format!("requests together may meet {MAX_CHECKS} limits, not {n}")));
        }
        let mut ask = Checks::distinct(checks.into_iter());
        if let Some(id) = requests.first().and_then(|request| request.known_as().cloned()) {
            ask = ask.with_id(id);
        }
        Ok(Together { ask, parts })
    }

    /// Returns the checks of one request, and true if any rule matches it.
    fn meet(&self, request: &Request<'_>, replaced: &mut Replaced) -> Result<(CheckList, bool), Error> {
        let permits = request.permits;
        if permits > MAX_LIMIT {
            return Err(too_many_permits(permits));
        }
        match &request.subject {
            Subject::Attributes(attributes) => {
                check_attributes(attributes)?;
                let digests = Digests::default();
                Ok(match &self.choice {
                    None => {
                        let numbered = self.rules.iter().zip(0u32..);
                        let checks: CheckList = numbered
                            .filter_map(|(rule, i)| rule.check(attributes, permits, i, &digests))
                            .collect();
                        let matched = !checks.is_empty();
                        (checks, matched)
                    }
                    Some(choice) => choice.checks(&self.rules, attributes, permits, &digests, replaced),
                })
            }
            Subject::Resource { name, own } => Ok((smallvec![self.ad_hoc.check(name, *own, permits)?], true)),
        }
    }
}

/// Adds the cost of a second request with the same key. Only requests that give their own limit can have different limits;
/// the lower limit then applies.
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
