//! Atomic acquisition for several requests: all are charged, or none.

use std::sync::Arc;

use smallvec::SmallVec;

use super::decide_without_store;
use super::shadow_evaluation::unjudged;
use crate::rules::{Part, Together, Unmatched};
use crate::{Checks, Decision, Error, Limiter, Micros, Request, Rules, Source, Store, Verdicts};

impl<S: Store> Limiter<S> {
    /// Acquires the permits of several requests atomically: if an enforced rule denies any of them, none is charged.
    ///
    /// Returns one decision per request, each with its own limits. `allowed` refers to the limits of that request only, so the
    /// batch is allowed if all decisions are. Requests with the same key are evaluated with the sum of their costs; the sum
    /// is one charge, so settling the reservation of one request settles it for all of them. A rule that
    /// [replaces](crate::Rule::replaces) another replaces it for the whole batch. A cost above a limit is a denial here, not
    /// an error. With [`Unmatched::Deny`], a request that no rule matches denies the batch. The id of the first request
    /// identifies the batch. At most [`MAX_TOGETHER`](crate::MAX_TOGETHER) requests.
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
        let Together { ask, parts } = rules.ask_together(requests)?;
        let denied = rules.unmatched() == Unmatched::Deny && parts.iter().any(|part| part.unmatched);
        let reading = match decide_without_store(&rules, &ask) {
            Some(reading) => reading,
            None if denied => not_judged(&ask),
            None => {
                let readings = self.store().admit(std::slice::from_ref(&ask)).await?;
                readings.into_iter().next().ok_or_else(Error::short_answer)?
            }
        };
        Ok(parts.iter().map(|part| decision(&rules, &ask, &reading, part)).collect())
    }
}

/// Verdicts for a batch that is not sent to the store, because one of its requests is denied.
fn not_judged(ask: &Checks) -> Verdicts {
    let verdicts = ask.checks().iter().map(|_| unjudged()).collect();
    Verdicts { at: Micros::ZERO, source: Source::NoRule, verdicts }
}

/// Builds the decision about one request of the batch.
fn decision(rules: &Arc<Rules>, ask: &Checks, reading: &Verdicts, part: &Part) -> Decision {
    let Part { places, unmatched } = part;
    let checks = places.iter().filter_map(|place| ask.checks().get(*place)).cloned();
    let verdicts: SmallVec<_> =
        places.iter().filter_map(|place| reading.verdicts.get(*place)).copied().collect();
    let (at, source) =
        if places.is_empty() { (Micros::ZERO, Source::NoRule) } else { (reading.at, reading.source) };
    let reading = Verdicts { at, source, verdicts };
    let mut ask = Checks::distinct(checks);
    ask.set_unmatched(*unmatched);
    Decision::new(Arc::clone(rules), ask, reading)
}
