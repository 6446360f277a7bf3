//! Several requests in one decision: all of them, or none.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::limiter::unasked;
use crate::rules::Together;
use crate::{Ask, Decision, Error, Limiter, Micros, Reading, Request, Rules, Source, Store};

impl<S: Store> Limiter<S> {
    /// Asks for the permits of several requests as one: if an enforced rule refuses any of them, none of them is
    /// charged.
    ///
    /// There is one decision for each request, with its own limits: `allowed` says that none of *these* refused, so
    /// the whole is allowed if all are. Requests that meet the same key are judged there by what they cost together;
    /// it is one charge, so settling the reservation of either settles it for both. What a rule
    /// [replaces](crate::Rule::replaces) is replaced for all. Asking for more than a limit will ever have is a refusal
    /// here, not an error. The id is that of the first request, and stands for all. At most
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
        let Together { ask, places } = rules.ask_together(requests)?;
        let reading = match unasked(&rules, &ask) {
            Some(reading) => reading,
            None => {
                let readings = self.store().admit(std::slice::from_ref(&ask)).await?;
                readings.into_iter().next().ok_or_else(Error::short_answer)?
            }
        };
        Ok(places.iter().map(|places| part(&rules, &ask, &reading, places)).collect())
    }
}

/// The part of the answer that is about the checks at `places`.
fn part(rules: &Arc<Rules>, ask: &Ask, reading: &Reading, places: &[usize]) -> Decision {
    let checks = places.iter().filter_map(|place| ask.checks().get(*place)).cloned();
    let verdicts: SmallVec<_> =
        places.iter().filter_map(|place| reading.verdicts.get(*place)).copied().collect();
    let (at, source) =
        if places.is_empty() { (Micros::ZERO, Source::NoRule) } else { (reading.at, reading.source) };
    let reading = Reading { at, source, verdicts };
    Decision::new(Arc::clone(rules), Ask::distinct(checks), reading)
}
