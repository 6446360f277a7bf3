//! The straight path of one decision: request, rules, store, decision.
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
    BatchVerdicts, Check, Checks, Clock, Correction, Decision, Entry, Error, Inspection, Key, MemoryStore,
    Micros, Outcome, Precision, Quota, Receipt, Request, Reservation, ReservationKeys, Settled, Source,
    Store, SystemClock, Verdict, Verdicts,
};

/// The most limits that the requests of one [`Limiter::acquire_many`] may meet in all: one for each rule that applies to a
/// request. It bounds what a small call makes a server compute and answer: an answer has about 200 bytes for each.
pub const MAX_CHECKS: usize = 10_000;

// One request may meet every rule.
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

/// Has the store judge what an unmade decision asks, and makes it. A future within a future is copied into it, and its
/// answer out of it, and copying is a good part of what a decision in memory takes; so this is no function.
macro_rules! make {
    ($limiter:expr, $decision:ident) => {{
        if let Some(reading) = decide_without_store($decision.rules(), &$decision.ask) {
            $decision.reading = reading;
            return Ok($decision);
        }
        let asks = std::slice::from_ref(&$decision.ask);
        let mut readings = match $decision.rules().have_siblings(asks) {
            false => $limiter.store.admit(asks).await?,
            true => $limiter.admit_apart($decision.rules(), asks).await?,
        };
        if readings.is_empty() {
            return Err(Error::short_answer());
        }
        $decision.reading = readings.swap_remove(0);
        Ok($decision)
    }};
}

impl Limiter {
    /// `limit` per second for each text that is asked about, counted in this process.
    pub fn per_second(limit: u64) -> Result<Self, Error> {
        Self::per_key(Quota::per_second(limit)?)
    }

    /// `limit` per minute for each text that is asked about, counted in this process.
    pub fn per_minute(limit: u64) -> Result<Self, Error> {
        Self::per_key(Quota::per_minute(limit)?)
    }

    /// `quota` for each text that is asked about, counted in this process.
    pub fn per_key(quota: Quota) -> Result<Self, Error> {
        let rule = Rule::new("per-key", quota)?.per([PLAIN_ATTRIBUTE])?;
        Ok(Limiter::new(MemoryStore::new(), Rules::new([rule])?))
    }
}

impl<S: Store> Limiter<S> {
    /// Decides by `rules` and counts in `store`.
    pub fn new(store: S, rules: Rules) -> Self {
        Limiter {
            store,
            rules: ArcSwap::from_pointee(rules),
            clock: Arc::new(SystemClock::new()),
            reservation_keys: ArcSwap::new(ReservationKeys::of_process()),
        }
    }

    /// Waits by another clock in [`Limiter::until_ready`], and measures by it in a tower layer; a store has a clock of its
    /// own.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Asks for permits, and charges them if they are granted.
    pub async fn acquire<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let mut decision = Decision::unmade(self.rules.load_full(), Checks::empty());
        decision.fill_ask(&request.into())?;
        make!(self, decision)
    }

    /// What [`Limiter::acquire`] would answer now; charges nothing.
    pub async fn peek<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, Error> {
        let rules = self.rules.load_full();
        let ask = rules.ask(&request.into())?.peek();
        self.decide(rules, ask).await
    }

    /// Decides several requests in one call to the store, each on its own, in their order, at one instant.
    ///
    /// The outer error is the store's, or says that the requests meet more than [`MAX_CHECKS`] limits; an inner one is a
    /// request that was not acceptable.
    pub async fn acquire_many(
        &self,
        requests: &[Request<'_>],
    ) -> Result<Vec<Result<Decision, Error>>, Error> {
        let rules = self.rules.load_full();
        let mut asks = Vec::with_capacity(requests.len());
        // What the store is not asked; for the others, none.
        let mut answers: Vec<Option<Result<Decision, Error>>> = Vec::with_capacity(requests.len());
        let mut checks = 0;
        for request in requests {
            answers.push(match rules.ask(request) {
                Ok(ask) => {
                    checks += ask.checks().len();
                    if checks > MAX_CHECKS {
                        return Err(Error::too_many_checks(MAX_CHECKS));
                    }
                    match decide_without_store(&rules, &ask) {
                        Some(reading) => Some(Ok(Decision::new(Arc::clone(&rules), ask, reading))),
                        None => {
                            asks.push(ask);
                            None
                        }
                    }
                }
                Err(error) => Some(Err(error)),
            });
        }
        let readings = if asks.is_empty() { Default::default() } else { self.admit(&rules, &asks).await? };
        let mut decided = asks.into_iter().zip(readings);
        let answers = answers.into_iter().map(|answer| {
            answer.unwrap_or_else(|| {
                let (ask, reading) = decided.next().ok_or_else(Error::short_answer)?;
                Ok(Decision::new(Arc::clone(&rules), ask, reading))
            })
        });
        Ok(answers.collect())
    }

    /// Asks, and if it is denied waits exactly as long as it must and asks again, until it is allowed or
    /// would not be before `deadline` has passed; then the denial is returned at once.
    ///
    /// Every try is an attempt: a rule that counts attempts counts them all.
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

    /// Corrects an admission to what it really cost; 0 is a refund. Settling twice changes nothing.
    pub async fn settle(&self, reservation: &Reservation, permits: u64) -> Result<Settled, Error> {
        if permits > MAX_LIMIT {
            return Err(too_many_permits(permits));
        }
        let Receipt { settled, .. } = self.store.settle(&reservation.settlements(permits)).await?;
        let is = |what| settled.contains(&what);
        Ok(match () {
            () if is(Settled::Done) => Settled::Done,
            () if is(Settled::Already) => Settled::Already,
            () => Settled::Gone,
        })
    }

    /// Gives back what is held of `concurrency` limits; what other rules counted stays counted. Doing it twice changes
    /// nothing.
    pub async fn release(&self, reservation: &Reservation) -> Result<Settled, Error> {
        self.correct_held(reservation, Correction::Cost(0)).await
    }

    /// Holds what is held of `concurrency` limits for another window, from now on. Unless it is done, something was not
    /// held any more: it was given back, or its time had run out and it may be somebody else's.
    pub async fn extend(&self, reservation: &Reservation) -> Result<Settled, Error> {
        self.correct_held(reservation, Correction::Extend).await
    }

    async fn correct_held(
        &self,
        reservation: &Reservation,
        correction: Correction,
    ) -> Result<Settled, Error> {
        let settlements = reservation.of_held(correction);
        if settlements.is_empty() {
            return Ok(Settled::Gone);
        }
        let Receipt { settled, .. } = self.store.settle(&settlements).await?;
        let gone = settled.iter().find(|settled| **settled != Settled::Done);
        Ok(gone.copied().unwrap_or(Settled::Done))
    }

    /// What is counted under `key`; none if nothing is.
    pub async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        self.store.inspect(key).await
    }

    /// Forgets `key`; false if there was nothing to forget.
    pub async fn reset(&self, key: &Key) -> Result<bool, Error> {
        self.store.reset(key).await
    }

    /// The rules in force.
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    /// Puts other rules in force at once. A new limit keeps the counts; a new algorithm, window or key starts
    /// them anew. A rule that follows the load goes on from where that of its name was.
    pub fn set_rules(&self, rules: impl Into<Arc<Rules>>) {
        let rules = rules.into();
        rules.adapt_as(&self.rules.load());
        self.rules.store(rules);
    }

    /// Says how long what was allowed took, and whether it went well: rules that follow the load go by it. For who has
    /// the decision there is [`Decision::report`]. How many such rules apply.
    pub fn report<'a>(
        &self,
        request: impl Into<Request<'a>>,
        latency: Duration,
        ok: bool,
    ) -> Result<usize, Error> {
        let rules = self.rules.load();
        let ask = rules.ask(&request.into().permits(0))?;
        Ok(rules.report(&ask, latency, ok))
    }

    /// The store it counts in.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// With rules that are tried out beside others. Boxed, so that the rest needs no room for it.
    fn admit_apart<'a>(
        &'a self,
        rules: &'a Rules,
        asks: &'a [Checks],
    ) -> Pin<Box<dyn Future<Output = Result<BatchVerdicts, Error>> + Send + 'a>> {
        Box::pin(shadow_evaluation::admit(&self.store, rules, asks))
    }

    async fn admit(&self, rules: &Rules, asks: &[Checks]) -> Result<BatchVerdicts, Error> {
        if rules.have_siblings(asks) {
            return self.admit_apart(rules, asks).await;
        }
        self.store.admit(asks).await
    }

    #[cfg(feature = "tower")]
    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    pub(crate) async fn decide(&self, rules: Arc<Rules>, ask: Checks) -> Result<Decision, Error> {
        let mut decision = Decision::unmade(rules, ask);
        make!(self, decision)
    }
}

/// The reading of an ask that needs no store: of a request that no counting rule applies to, or that a rule blocks. Whether
/// a request that no rule matches is allowed is up to [`Rules::unmatched`].
#[inline]
pub(crate) fn decide_without_store(rules: &Rules, ask: &Checks) -> Option<Verdicts> {
    let needless = ask.checks().is_empty() || rules.blocks(ask);
    needless.then(|| without_store(rules, ask))
}

#[cold]
fn without_store(rules: &Rules, ask: &Checks) -> Verdicts {
    let source = if ask.checks().is_empty() { Source::NoRule } else { Source::Blocked };
    let verdicts = ask.checks().iter().map(|check| blocked_or_unjudged(rules, check));
    Verdicts { at: Micros::ZERO, source, verdicts: verdicts.collect() }
}

fn blocked_or_unjudged(rules: &Rules, check: &Check) -> Verdict {
    let blocked = rules.blocks_check(check);
    Verdict {
        outcome: if blocked { Outcome::Impossible } else { Outcome::Unjudged },
        limit: 0,
        used: 0,
        retry_after: if blocked { check.quota.horizon() } else { Micros::ZERO },
        precision: Precision::Exact,
        reset_after: if blocked { check.quota.horizon() } else { Micros::ZERO },
        entry: Entry::default(),
    }
}
