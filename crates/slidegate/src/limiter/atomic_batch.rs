//! Several requests in one decision: all of them, or none.

use std::sync::Arc;

use smallvec::SmallVec;

use super::decide_without_store;
use super::shadow_evaluation::unjudged;
use crate::rules::{Part, Together, Unmatched};
use crate::{Checks, Decision, Error, Limiter, Micros, Request, Rules, Source, Store, Verdicts};

impl<S: Store> Limiter<S> {
    /// Asks for the permits of several requests as one: if an enforced rule denies any of them, none of them is
    /// charged.
    ///
    /// There is one decision for each request, with its own limits: `allowed` says that none of *these* denied, so
    /// the whole is allowed if all are. Requests that meet the same key are judged there by what they cost together;
    /// it is one charge, so settling the reservation of either settles it for both. What a rule
    /// [replaces](crate::Rule::replaces) is replaced for all. Asking for more than a limit will ever have is a denial
    /// here, not an error. With [`Unmatched::Deny`], a request that no rule matches denies the whole. The id is that of the first request, and stands for all. At most
    /// [`MAX_TOGETHER`](crate::MAX_TOGETHER) requests.
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

/// The reading of an ask that is not put to the store, because a request of it is denied.
fn not_judged(ask: &Checks) -> Verdicts {
    let verdicts = ask.checks().iter().map(|_| unjudged()).collect();
    Verdicts { at: Micros::ZERO, source: Source::NoRule, verdicts }
}

/// The decision about one of the requests.
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
