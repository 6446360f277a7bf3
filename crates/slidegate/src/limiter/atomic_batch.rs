//! Atomic acquisition for several requests: all are charged, or none.

use std::sync::Arc;

use smallvec::SmallVec;

use super::decide_without_store;
use crate::rules::{CombinedChecks, RequestPart, Unmatched};
use crate::store::single;
use crate::{Checks, Decision, Error, Limiter, Micros, Request, Rules, Source, Store, Verdict, Verdicts};

impl<S: Store> Limiter<S> {
    /// Acquires the permits of several requests atomically: if an enforced rule denies any of them, none is charged.
    ///
    /// Returns one decision per request, each with its own limits. `allowed` refers to the limits of that request only, so the
    /// batch is allowed if all decisions are. Requests with the same key are evaluated with the sum of their costs; the sum
    /// is one charge, so settling the reservation of one request settles it for all of them. A rule that
    /// [replaces](crate::Rule::replaces) another replaces it for the whole batch. A cost above a limit is a denial here, not
    /// an error. With [`Unmatched::Deny`], a request that no rule matches denies the batch. The id of the first request
    /// identifies the batch. At most [`MAX_TOGETHER`](crate::bounds::MAX_TOGETHER) requests.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use slidegate::{Limiter, Request};
    /// let limiter = Limiter::per_minute(1)?;
    /// let both = [Request::from("alice"), Request::from("bob")];
    /// assert!(limiter.acquire_together(&both).await?.iter().all(|decision| decision.allowed()));
    /// let both = [Request::from("carol"), Request::from("bob")];
    /// assert!(!limiter.acquire_together(&both).await?[1].allowed());
    /// assert!(limiter.acquire("carol").await?.allowed(), "she was not charged");
    /// # Ok::<(), slidegate::Error>(()) }).unwrap();
    /// ```
    pub async fn acquire_together(&self, requests: &[Request<'_>]) -> Result<Vec<Decision>, Error> {
        let rules = self.rules();
        let CombinedChecks { checks, parts } = rules.combine_checks(requests)?;
        let denied = rules.unmatched() == Unmatched::Deny && parts.iter().any(|part| part.unmatched);
        let verdicts = match decide_without_store(&rules, &checks) {
            Some(verdicts) => verdicts,
            None if denied => not_evaluated(&checks),
            None => single(self.store().admit(std::slice::from_ref(&checks)).await?)?,
        };
        Ok(parts.iter().map(|part| decision(&rules, &checks, &verdicts, part)).collect())
    }
}

/// Verdicts for checks that are not sent to the store, because one of the requests is denied.
fn not_evaluated(checks: &Checks) -> Verdicts {
    let verdicts = checks.as_slice().iter().map(|_| Verdict::not_evaluated(0)).collect();
    Verdicts { at: Micros::ZERO, source: Source::NoRule, verdicts }
}

/// Builds the decision about one of the requests from the combined checks and verdicts.
fn decision(rules: &Arc<Rules>, combined: &Checks, reply: &Verdicts, part: &RequestPart) -> Decision {
    let RequestPart { indexes, unmatched } = part;
    let checks = indexes.iter().filter_map(|index| combined.as_slice().get(*index)).cloned();
    let verdicts: SmallVec<_> =
        indexes.iter().filter_map(|index| reply.verdicts.get(*index)).copied().collect();
    let (at, source) =
        if indexes.is_empty() { (Micros::ZERO, Source::NoRule) } else { (reply.at, reply.source) };
    let mut checks = Checks::distinct(checks);
    checks.unmatched = *unmatched;
    Decision::new(Arc::clone(rules), checks, Verdicts { at, source, verdicts })
}
