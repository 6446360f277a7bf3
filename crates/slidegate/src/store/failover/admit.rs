//! One decision: by the server, by this node, or by both.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::OwnedSemaphorePermit;

use super::server_state::{Phase, ServerState};
use super::{Inner, fallback, recovery_task};
use crate::{
    BatchVerdicts, Check, Checks, Entry, Error, Fault, Micros, OnError, Outcome, Precision, RedisStore,
    Settlement, Source, Store, Verdict, Verdicts,
};

/// A call to the store that outlives its caller.
type Call = Pin<Box<dyn Future<Output = Result<BatchVerdicts, Error>> + Send>>;

/// When a call was sent, and to which life of its server.
#[derive(Clone, Copy)]
struct Asked {
    sent: Micros,
    life: u64,
}

/// What became of a call by its deadline.
enum Answer {
    BatchVerdicts(BatchVerdicts),
    Failed(Error),
    /// It goes on.
    Late(Call),
}

impl Inner {
    /// Asks on one server.
    pub(super) async fn admit_on(
        self: &Arc<Self>,
        server: &Arc<ServerState>,
        asks: &[Checks],
    ) -> Result<BatchVerdicts, Error> {
        match server.phase() {
            Phase::Direct => {}
            Phase::Away => return Ok(asks.iter().map(|ask| self.without_store(server, ask)).collect()),
            Phase::Joining => return self.with_both(server, asks).await,
        }
        let waited = asks.iter().map(Checks::waited).max().unwrap_or_default();
        let mut left = self.options.deadline.saturating_sub(waited.into());
        if !server.is_met() {
            let begun = self.clock.now();
            if let Err(error) = self.introduce(server).await {
                return self.conclude(server, asks, Answer::Failed(error), self.asked(server));
            }
            left = left.saturating_sub(self.clock.now().since(begun).into());
        }
        let asked = self.asked(server);
        if left.is_zero() {
            // They waited for a call that was not answered, and have no time left for another.
            server.failed(self, Fault::Timeout, 1);
            return Ok(asks.iter().map(|ask| self.without_store(server, ask)).collect());
        }
        let answer = self.call(asks, left).await;
        match answer {
            // What is wrong with the key of one is not the others' affair.
            Answer::Failed(error)
                if asks.len() > 1 && matches!(error.fault(), Some(Fault::WrongType | Fault::Trimming)) =>
            {
                self.one_by_one(server, asks, asked.sent).await
            }
            answer => self.conclude(server, asks, answer, asked),
        }
    }

    #[cold]
    async fn one_by_one(
        self: &Arc<Self>,
        server: &Arc<ServerState>,
        asks: &[Checks],
        begun: Micros,
    ) -> Result<BatchVerdicts, Error> {
        let mut readings = BatchVerdicts::new();
        // Keys with more expired entries than a decision may remove: the next batch goes on with them.
        let mut trimming: Vec<&Check> = Vec::new();
        for ask in asks.chunks(1) {
            let checks = || ask.iter().flat_map(Checks::checks);
            let known = checks().any(|check| trimming.iter().any(|other| other.key == check.key));
            let left = self.left(begun);
            if known || left.is_zero() {
                // The server has answered every call, so this is no failure of it.
                readings.extend(ask.iter().map(|ask| self.without_store(server, ask)));
                continue;
            }
            let asked = self.asked(server);
            let answer = self.call(ask, left).await;
            if matches!(&answer, Answer::Failed(error) if error.fault() == Some(Fault::Trimming)) {
                trimming.extend(checks());
            }
            readings.extend(self.conclude(server, ask, answer, asked)?);
        }
        Ok(readings)
    }

    /// Permits in advance: by the server or not at all. What comes too late is given back.
    pub(super) async fn admit_run(
        self: &Arc<Self>,
        ask: &Checks,
        times: usize,
    ) -> Result<BatchVerdicts, Error> {
        let away = || Error::store(Fault::Unreachable, "nothing is taken in advance while Redis is away");
        let [check] = ask.checks() else { return Err(away()) };
        self.find_once().await;
        let server = self.watched(self.store.server_of(&check.key));
        if server.phase() != Phase::Direct || !server.is_met() {
            return Err(away());
        }
        let asked = self.asked(&server);
        let is_there = move |server: &ServerState| server.life.load(Ordering::Acquire) == asked.life;
        let (store, owned) = (self.store.clone(), ask.clone());
        let mut call: Call = Box::pin(async move { store.admit_run(&owned, times).await });
        match tokio::time::timeout(self.options.deadline, &mut call).await {
            Ok(Ok(readings)) => {
                let direct = {
                    let _deciding = server.deciding.read();
                    let direct = server.phase() == Phase::Direct && is_there(&server);
                    if direct {
                        self.mirror.took(check, &readings, true);
                    }
                    direct
                };
                if !direct {
                    // Meanwhile this node decides by itself, and does not count on these.
                    if is_there(&server) {
                        let _ = self.store.give_back(&check.key, &charged(&readings)).await;
                    }
                    return Err(away());
                }
                if let Some(first) = readings.first() {
                    server.answered(asked.sent, self.clock.now(), first.at);
                }
                Ok(readings)
            }
            Ok(Err(error)) => {
                if let Some(fault) = error.fault() {
                    server.failed(self, fault, 1);
                    server.changed.notify_one();
                }
                Err(error)
            }
            Err(_) => {
                server.failed(self, Fault::Timeout, 1);
                let (store, key) = (self.store.clone(), check.key.clone());
                tokio::spawn(async move {
                    let late = call.await.unwrap_or_default();
                    // What another life has admitted is gone with it. If it cannot be given back it counts until it leaves:
                    // stricter, never looser.
                    if is_there(&server) {
                        let _ = store.give_back(&key, &charged(&late)).await;
                    }
                });
                Err(Error::store(Fault::Timeout, "Redis did not answer in time"))
            }
        }
    }

    fn asked(&self, server: &ServerState) -> Asked {
        Asked { sent: self.clock.now(), life: server.life.load(Ordering::Acquire) }
    }

    #[cold]
    async fn introduce(&self, server: &ServerState) -> Result<(), Error> {
        let introduced =
            tokio::time::timeout(self.options.deadline, recovery_task::introduce(self, server)).await;
        introduced.map(|met| met.map(|_| ())).unwrap_or_else(|_| {
            let address = self.store.server_address(server.id);
            Err(Error::store(Fault::Timeout, format!("Redis at {address} did not answer in time")))
        })
    }

    /// Takes the store's answer, or makes one without it.
    fn conclude(
        self: &Arc<Self>,
        server: &Arc<ServerState>,
        asks: &[Checks],
        answer: Answer,
        asked: Asked,
    ) -> Result<BatchVerdicts, Error> {
        match answer {
            Answer::BatchVerdicts(readings) => {
                if let Some(first) = readings.first() {
                    server.answered(asked.sent, self.clock.now(), first.at);
                }
                // What another life has admitted, this one does not have.
                let there = server.life.load(Ordering::Acquire) == asked.life;
                for (ask, reading) in asks.iter().zip(&readings) {
                    if !ask.is_peek() {
                        self.mirror.answered(ask.checks(), reading, there);
                    }
                }
                Ok(readings)
            }
            Answer::Failed(error) => {
                let Some(fault) = error.fault() else { return Err(error) };
                server.failed(self, fault, asks.len());
                let readings = asks.iter().map(|ask| self.without_store(server, ask)).collect();
                server.changed.notify_one();
                Ok(readings)
            }
            Answer::Late(call) => {
                // A server that was given less than its time has failed once, however many waited.
                let in_full = asks.iter().all(|ask| ask.waited() == Micros::ZERO);
                server.failed(self, Fault::Timeout, if in_full { asks.len() } else { 1 });
                let readings: BatchVerdicts =
                    asks.iter().map(|ask| self.without_store(server, ask)).collect();
                self.late.fetch_add(1, Ordering::Relaxed);
                let (inner, asks, told) = (Arc::clone(self), asks.to_vec(), readings.clone());
                let server = Arc::clone(server);
                tokio::spawn(async move {
                    let late = call.await;
                    // What another life has admitted is gone with it.
                    if let Ok(late) = late
                        && server.life.load(Ordering::Acquire) == asked.life
                    {
                        inner.reconcile(&asks, &told, &late).await;
                    }
                    server.changed.notify_one();
                });
                Ok(readings)
            }
        }
    }

    /// What is left of the deadline of a decision that was asked for then.
    fn left(&self, begun: Micros) -> Duration {
        self.options.deadline.saturating_sub(self.clock.now().since(begun).into())
    }

    /// Asks the store, and waits for it no longer than `left`.
    async fn call(&self, asks: &[Checks], left: Duration) -> Answer {
        let Ok(place) = Arc::clone(&self.in_flight).try_acquire_owned() else {
            self.overloaded.fetch_add(1, Ordering::Relaxed);
            let message =
                format!("{} calls to Redis are in flight: raise max-in-flight", self.options.max_in_flight);
            return Answer::Failed(Error::store(Fault::Overloaded, message));
        };
        let mut call: Call = Box::pin(admit(self.store.clone(), asks.into(), place));
        match tokio::time::timeout(left, &mut call).await {
            Ok(Ok(readings)) => Answer::BatchVerdicts(readings),
            Ok(Err(error)) => Answer::Failed(error),
            Err(_) => Answer::Late(call),
        }
    }

    /// The answer came after the caller was told something else: what was told must be what is counted.
    async fn reconcile(&self, asks: &[Checks], told: &[Verdicts], late: &[Verdicts]) {
        let mut refunds = Vec::new();
        for ((ask, told), late) in asks.iter().zip(told).zip(late) {
            let allowed = !denies(ask, told);
            let mut late = late.clone();
            for ((check, told), late_verdict) in
                ask.checks().iter().zip(&told.verdicts).zip(&mut late.verdicts)
            {
                // With an id it may be what was charged before: that is not to be given back.
                let found =
                    late_verdict.entry.at < late.at || ask.id().is_some() && late_verdict.entry.at > late.at;
                if late_verdict.outcome != Outcome::Charged || found {
                    continue;
                }
                // It is counted in the store, so it need not be written there; unless it was already.
                let twice = told.outcome == Outcome::Charged
                    && !self.mirror.settled_unwritten(&check.key, told.entry.at, check.cost, 0);
                if !allowed || twice {
                    let (key, entry) = (check.key.clone(), late_verdict.entry);
                    refunds.push(Settlement::refund(key, entry));
                    late_verdict.outcome = Outcome::Fits;
                }
            }
            if allowed {
                self.mirror.answered(ask.checks(), &late, true);
            }
        }
        for refund in refunds {
            // If it cannot be given back it counts until it leaves: stricter, never looser.
            let _ = self.store.settle(&[refund]).await;
        }
    }

    /// The server is back, but others may not have written to it yet: both it and this node's share must allow.
    async fn with_both(
        self: &Arc<Self>,
        server: &Arc<ServerState>,
        asks: &[Checks],
    ) -> Result<BatchVerdicts, Error> {
        let begun = self.clock.now();
        let mut readings = BatchVerdicts::new();
        for ask in asks {
            // All of them have one deadline, and nobody waits for a server that failed meanwhile.
            let left = self.left(begun);
            readings.push(if left.is_zero() || server.phase() == Phase::Away {
                self.without_store(server, ask)
            } else {
                self.with_both_one(server, ask, left).await?
            });
        }
        Ok(readings)
    }

    async fn with_both_one(
        self: &Arc<Self>,
        server: &Arc<ServerState>,
        ask: &Checks,
        left: Duration,
    ) -> Result<Verdicts, Error> {
        let outage = server.outage(self);
        let here = fallback::decide(&self.mirror, &self.only(ask, OnError::Local), &outage, true);
        if denies(&self.only(ask, OnError::Local), &here) {
            return Ok(self.fill(ask, here));
        }
        let asked = self.asked(server);
        let asks = std::slice::from_ref(ask);
        let answer = self.call(asks, left).await;
        let admitted =
            matches!(&answer, Answer::BatchVerdicts(all) if all.iter().all(|reading| !denies(ask, reading)));
        if !admitted {
            fallback::undo(&self.mirror, &self.only(ask, OnError::Local), &here, outage.now);
        }
        let readings = self.conclude(server, asks, answer, asked)?;
        let reading = readings.into_iter().next().ok_or_else(Error::short_answer)?;
        if admitted {
            // The server admitted it later than this node did, and from then on it counts.
            let at = reading.at.plus(outage.spread);
            fallback::postpone(&self.mirror, &self.only(ask, OnError::Local), &here, &outage, at);
        }
        Ok(reading)
    }

    /// Answers by what each rule wants while its server does not.
    fn without_store(self: &Arc<Self>, server: &Arc<ServerState>, ask: &Checks) -> Verdicts {
        let closed = |check: &Check| check.enforced && self.policy(check) == OnError::Closed;
        let at = server.now(self);
        if ask.checks().iter().any(closed) {
            let retry_after = server.until_probe(self);
            let verdicts = ask.checks().iter().map(|check| match closed(check) {
                true => fail_closed(check, retry_after),
                false => unjudged(check, Outcome::Unjudged),
            });
            return Verdicts { at, source: Source::FailClosed, verdicts: verdicts.collect() };
        }
        let local = self.only(ask, OnError::Local);
        if local.checks().is_empty() {
            let verdicts = ask.checks().iter().map(|check| unjudged(check, Outcome::Fits));
            return Verdicts { at, source: Source::FailOpen, verdicts: verdicts.collect() };
        }
        let _deciding = server.deciding.read();
        let here = fallback::decide(&self.mirror, &local, &server.outage(self), false);
        self.fill(ask, here)
    }

    fn policy(&self, check: &Check) -> OnError {
        check.on_error.unwrap_or(self.options.on_error)
    }

    /// The checks of an ask with this policy.
    fn only(&self, ask: &Checks, policy: OnError) -> Checks {
        ask.with_checks(ask.checks().iter().filter(|check| self.policy(check) == policy).cloned())
    }

    /// The reading of `ask` from that of its checks that were judged here.
    fn fill(&self, ask: &Checks, here: Verdicts) -> Verdicts {
        let mut judged = here.verdicts.into_iter();
        let verdicts = ask.checks().iter().map(|check| {
            let verdict = if self.policy(check) == OnError::Local { judged.next() } else { None };
            verdict.unwrap_or_else(|| unjudged(check, Outcome::Fits))
        });
        Verdicts { verdicts: verdicts.collect(), ..here }
    }
}

async fn admit(
    store: RedisStore,
    asks: SmallVec<[Checks; 1]>,
    _place: OwnedSemaphorePermit,
) -> Result<BatchVerdicts, Error> {
    store.admit(&asks).await
}

/// What was charged of them.
fn charged(readings: &[Verdicts]) -> Vec<Entry> {
    let verdicts = readings.iter().flat_map(|reading| &reading.verdicts);
    verdicts.filter(|verdict| verdict.outcome == Outcome::Charged).map(|verdict| verdict.entry).collect()
}

/// The verdict on a check that neither the store nor this node judged.
fn unjudged(check: &Check, outcome: Outcome) -> Verdict {
    Verdict {
        outcome,
        limit: check.quota.capacity(),
        used: 0,
        retry_after: Micros::ZERO,
        precision: Precision::Exact,
        reset_after: Micros::ZERO,
        entry: Entry::default(),
    }
}

/// The verdict on a check with `on-error: closed`: nothing is left until the store answers again.
fn fail_closed(check: &Check, retry_after: Micros) -> Verdict {
    Verdict {
        outcome: Outcome::Denied,
        used: check.quota.capacity(),
        retry_after,
        reset_after: retry_after,
        ..unjudged(check, Outcome::Denied)
    }
}

fn denies(ask: &Checks, reading: &Verdicts) -> bool {
    let pairs = ask.checks().iter().zip(&reading.verdicts);
    pairs.into_iter().any(|(check, verdict)| check.enforced && verdict.outcome.denies())
}
