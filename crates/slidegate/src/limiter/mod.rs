//! Limiter: the path of one decision from request through rules and store.
pub(crate) mod atomic_batch;
pub(crate) mod shadow_evaluation;
mod signing;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::checks::too_many_permits;
use crate::quota::MAX_LIMIT;
use crate::request::PLAIN_ATTRIBUTE;
use crate::rules::{MAX_RULES, Rule, Rules};
use crate::{
    BatchVerdicts, Check, Checks, Clock, Correction, Decision, Error, Inspection, Key, MemoryStore, Micros,
    Outcome, Quota, Receipt, Request, Reservation, ReservationKeys, Settled, Source, Store, SystemClock,
    Verdict, Verdicts,
};

/// Largest number of limits that the requests of one [`Limiter::acquire_many`] may match in total: one for each rule that
/// applies to a request. It bounds the work and the reply that a small call can cause: a reply has about 200 bytes per limit.
pub const MAX_CHECKS: usize = 10_000;

// A single request may match every rule.
const _: () = assert!(MAX_RULES <= MAX_CHECKS);

/// Decides requests by rules, and counts in a store. Share it in an `Arc`.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let limiter = slidegate::Limiter::per_minute(100)?;
/// if limiter.acquire("alice").await?.allowed() {
///     // … serve alice
/// }
/// # Ok::<(), slidegate::Error>(()) }).unwrap();
/// ```
pub struct Limiter<S: Store = MemoryStore> {
    store: S,
    rules: ArcSwap<Rules>,
    clock: Arc<dyn Clock>,
    pub(crate) reservation_keys: ArcSwap<ReservationKeys>,
}

/// Evaluates the checks of an unfinished decision and completes it. This is a macro and not an async function: the future of
/// a nested call and its result are copied, and copying is a large part of the time of a decision in memory.
macro_rules! complete {
    ($limiter:expr, $decision:ident) => {{
        if let Some(verdicts) = decide_without_store(&$decision.rules, &$decision.checks) {
            $decision.verdicts = verdicts;
            return Ok($decision);
        }
        let batch = std::slice::from_ref(&$decision.checks);
        let mut replies = match $decision.rules.has_paired_shadow(batch) {
            false => $limiter.store.admit(batch).await?,
            true => $limiter.admit_with_shadows(&$decision.rules, batch).await?,
        };
        if replies.is_empty() {
            return Err(Error::short_answer());
        }
        $decision.verdicts = replies.swap_remove(0);
        Ok($decision)
    }};
}

impl Limiter {
    /// Creates a limiter of `limit` per second for each key, counted in this process.
    pub fn per_second(limit: u64) -> Result<Self, Error> {
        Self::per_key(Quota::per_second(limit)?)
    }

    /// Creates a limiter of `limit` per minute for each key, counted in this process.
    pub fn per_minute(limit: u64) -> Result<Self, Error> {
        Self::per_key(Quota::per_minute(limit)?)
    }

    /// Creates a limiter of `quota` for each key, counted in this process.
    pub fn per_key(quota: Quota) -> Result<Self, Error> {
        let rule = Rule::new("per-key", quota)?.per([PLAIN_ATTRIBUTE])?;
        Ok(Limiter::new(MemoryStore::new(), Rules::new([rule])?))
    }
}

impl<S: Store> Limiter<S> {
    /// Creates a limiter that decides by `rules` and counts in `store`.
    pub fn new(store: S, rules: Rules) -> Self {
        Limiter {
            store,
            rules: ArcSwap::from_pointee(rules),
            clock: Arc::new(SystemClock::new()),
            reservation_keys: ArcSwap::new(ReservationKeys::of_process()),
        }
    }

    /// Sets the clock for the waits of [`Limiter::until_ready`] and the measurements of a tower layer. A store has its own
    /// clock.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Requests permits, and charges them if the request is allowed.
    pub async fn acquire<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let mut decision = Decision::without_verdicts(self.rules.load_full(), Checks::empty());
        decision.rules.fill_checks(&mut decision.checks, &request.into())?;
        complete!(self, decision)
    }

    /// Returns the decision that [`Limiter::acquire`] would make now; charges nothing.
    pub async fn peek<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let rules = self.rules.load_full();
        let checks = rules.checks_for(&request.into())?.peek();
        self.decide(rules, checks).await
    }

    /// Decides several requests in one call to the store, each independently, in their order, at one instant.
    ///
    /// The outer error comes from the store, or reports that the requests match more than [`MAX_CHECKS`] limits. An inner error
    /// reports an invalid request.
    pub async fn acquire_many(
        &self,
        requests: &[Request<'_>],
    ) -> Result<Vec<Result<Decision, Error>>, Error> {
        let rules = self.rules.load_full();
        let mut batch = Vec::with_capacity(requests.len());
        // Results that need no store call; `None` for requests that the store decides.
        let mut answers: Vec<Option<Result<Decision, Error>>> = Vec::with_capacity(requests.len());
        let mut total_checks = 0;
        for request in requests {
            answers.push(match rules.checks_for(request) {
                Ok(checks) => {
                    total_checks += checks.as_slice().len();
                    if total_checks > MAX_CHECKS {
                        return Err(Error::too_many_checks(MAX_CHECKS));
                    }
                    match decide_without_store(&rules, &checks) {
                        Some(verdicts) => Some(Ok(Decision::new(Arc::clone(&rules), checks, verdicts))),
                        None => {
                            batch.push(checks);
                            None
                        }
                    }
                }
                Err(error) => Some(Err(error)),
            });
        }
        let replies = if batch.is_empty() { Default::default() } else { self.admit(&rules, &batch).await? };
        let mut decided = batch.into_iter().zip(replies);
        let answers = answers.into_iter().map(|answer| {
            answer.unwrap_or_else(|| {
                let (checks, verdicts) = decided.next().ok_or_else(Error::short_answer)?;
                Ok(Decision::new(Arc::clone(&rules), checks, verdicts))
            })
        });
        Ok(answers.collect())
    }

    /// Acquires permits, waiting if necessary. After a denial it waits exactly as long as needed and tries again. If the
    /// request would not be allowed before `deadline` has passed, it returns the denial at once.
    ///
    /// Every try is an attempt: a rule that counts attempts counts all of them.
    pub async fn until_ready<'a>(
        &self,
        request: impl Into<Request<'a>>,
        deadline: Duration,
    ) -> Result<Decision, Error> {
        let request = request.into();
        let start = self.clock.now();
        loop {
            let decision = self.acquire(&request).await?;
            let left = Micros::from(deadline).since(self.clock.now().since(start));
            if decision.allowed() || decision.retry_after() > left {
                return Ok(decision);
            }
            self.clock.sleep(decision.retry_after()).await;
        }
    }

    /// Corrects an admission to its actual cost; 0 is a refund. Settling twice changes nothing.
    pub async fn settle(&self, reservation: &Reservation, permits: u64) -> Result<Settled, Error> {
        if permits > MAX_LIMIT {
            return Err(too_many_permits(permits));
        }
        let Receipt { settled, .. } = self.store.settle(&reservation.settlements(permits)).await?;
        let first = [Settled::Done, Settled::Already].into_iter().find(|outcome| settled.contains(outcome));
        Ok(first.unwrap_or(Settled::Gone))
    }

    /// Releases the held permits of `concurrency` limits; the counts of other rules stay. Releasing twice changes nothing.
    pub async fn release(&self, reservation: &Reservation) -> Result<Settled, Error> {
        self.correct_held(reservation, Correction::Cost(0)).await
    }

    /// Extends the held permits of `concurrency` limits by another window, from now on. Any result other than
    /// [`Settled::Done`] means that a permit was no longer held: it was released, or it expired and another request may
    /// hold it now.
    pub async fn extend(&self, reservation: &Reservation) -> Result<Settled, Error> {
        self.correct_held(reservation, Correction::Extend).await
    }

    async fn correct_held(
        &self,
        reservation: &Reservation,
        correction: Correction,
    ) -> Result<Settled, Error> {
        let settlements = reservation.held_corrections(correction);
        if settlements.is_empty() {
            return Ok(Settled::Gone);
        }
        let Receipt { settled, .. } = self.store.settle(&settlements).await?;
        let gone = settled.iter().find(|settled| **settled != Settled::Done);
        Ok(gone.copied().unwrap_or(Settled::Done))
    }

    /// Returns the stored state of `key`; `None` if nothing is counted.
    pub async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        self.store.inspect(key).await
    }

    /// Deletes the counts of `key`; returns false if there were none.
    pub async fn reset(&self, key: &Key) -> Result<bool, Error> {
        self.store.reset(key).await
    }

    /// Returns the current rules.
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    /// Replaces the rules at once. A new limit keeps the counts; a new algorithm, window or key starts new counts. An adaptive
    /// rule continues with the factor of the previous rule of the same name.
    pub fn set_rules(&self, rules: impl Into<Arc<Rules>>) {
        let rules = rules.into();
        rules.adapt_as(&self.rules.load());
        self.rules.store(rules);
    }

    /// Reports how long an allowed request took and if it succeeded. Adaptive rules use this. If the decision is
    /// available, call [`Decision::report`] instead. Returns the number of adaptive rules that apply.
    pub fn report<'a>(
        &self,
        request: impl Into<Request<'a>>,
        latency: Duration,
        ok: bool,
    ) -> Result<usize, Error> {
        let rules = self.rules.load();
        let checks = rules.checks_for(&request.into().permits(0))?;
        Ok(rules.report(&checks, latency, ok))
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Evaluates checks of rules that have shadows of other rules. The future is boxed, so that the common case needs no
    /// space for it.
    fn admit_with_shadows<'a>(
        &'a self,
        rules: &'a Rules,
        batch: &'a [Checks],
    ) -> Pin<Box<dyn Future<Output = Result<BatchVerdicts, Error>> + Send + 'a>> {
        Box::pin(shadow_evaluation::admit(&self.store, rules, batch))
    }

    async fn admit(&self, rules: &Rules, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        if rules.has_paired_shadow(batch) {
            return self.admit_with_shadows(rules, batch).await;
        }
        self.store.admit(batch).await
    }

    #[cfg(feature = "tower")]
    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    pub(crate) async fn decide(&self, rules: Arc<Rules>, checks: Checks) -> Result<Decision, Error> {
        let mut decision = Decision::without_verdicts(rules, checks);
        complete!(self, decision)
    }
}

/// Returns the verdicts for checks that need no store: no counting rule applies, or a rule blocks the request. The
/// policy [`Rules::unmatched`] decides about requests that no rule matches.
#[inline]
pub(crate) fn decide_without_store(rules: &Rules, checks: &Checks) -> Option<Verdicts> {
    let needs_no_store = checks.as_slice().is_empty() || rules.blocks(checks);
    needs_no_store.then(|| without_store(rules, checks))
}

#[cold]
fn without_store(rules: &Rules, checks: &Checks) -> Verdicts {
    let source = if checks.as_slice().is_empty() { Source::NoRule } else { Source::Blocked };
    let verdicts = checks.as_slice().iter().map(|check| blocked_or_not_evaluated(rules, check));
    Verdicts { at: Micros::ZERO, source, verdicts: verdicts.collect() }
}

fn blocked_or_not_evaluated(rules: &Rules, check: &Check) -> Verdict {
    let verdict = Verdict::not_evaluated(0);
    if !rules.blocks_check(check) {
        return verdict;
    }
    let forever = check.quota.horizon();
    Verdict { outcome: Outcome::Impossible, retry_after: forever, reset_after: forever, ..verdict }
}
