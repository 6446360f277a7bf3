//! Decisions on one server: by the server, by this node's fallback, or by both.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;

use super::server_state::ServerState;
use super::state_machine::Phase;
use super::{Inner, fallback, recovery_task};
use crate::store::remote::RemoteStore;
use crate::store::single;
use crate::{
    BatchVerdicts, Check, Checks, Error, Fault, Micros, OnError, Outcome, Settlement, Source, Verdict,
    Verdicts,
};

/// A call to the store that may outlive its caller.
pub(super) type Call = Pin<Box<dyn Future<Output = Result<BatchVerdicts, Error>> + Send>>;

/// Time at which a call was sent, and the epoch of the server at that time.
#[derive(Clone, Copy)]
pub(super) struct CallStamp {
    pub(super) sent: Micros,
    pub(super) epoch: u64,
}

/// State of a call at its deadline.
enum CallResult {
    Answered(BatchVerdicts),
    Failed(Error),
    /// The call is still in flight.
    Late(Call),
}

impl<R: RemoteStore> Inner<R> {
    /// Decides a batch whose keys are all on one server.
    pub(super) async fn admit_on(
        self: &Arc<Self>,
        server: &Arc<ServerState>,
        batch: &[Checks],
    ) -> Result<BatchVerdicts, Error> {
        match server.phase() {
            Phase::Direct => {}
            Phase::Away => return Ok(self.decide_locally(server, batch)),
            Phase::Joining => return self.admit_joining(server, batch).await,
        }
        let waited = batch.iter().map(|checks| checks.waited).max().unwrap_or_default();
        let mut time_left = self.node.options.deadline.saturating_sub(waited.into());
        if !server.is_identified() {
            let started = self.node.clock.now();
            if let Err(error) = self.verify_identity(server).await {
                return self.conclude(server, batch, CallResult::Failed(error), self.stamp(server));
            }
            time_left = time_left.saturating_sub(self.node.clock.now().since(started).into());
        }
        let stamp = self.stamp(server);
        if time_left.is_zero() {
            // The requests waited for a call that was not answered, and have no time left for another call.
            server.record_failure(&self.node, Fault::Timeout, 1);
            return Ok(self.decide_locally(server, batch));
        }
        let result = self.call(batch, time_left).await;
        match result {
            // A fault of one key must not fail the other requests of the batch.
            CallResult::Failed(error)
                if batch.len() > 1 && matches!(error.fault(), Some(Fault::WrongType | Fault::Trimming)) =>
            {
                self.admit_singly(server, batch, stamp.sent).await
            }
            result => self.conclude(server, batch, result, stamp),
        }
    }

    pub(super) fn stamp(&self, server: &ServerState) -> CallStamp {
        CallStamp { sent: self.node.clock.now(), epoch: server.epoch() }
    }

    /// Calls the store, and waits at most `time_left`.
    async fn call(&self, batch: &[Checks], time_left: Duration) -> CallResult {
        let Ok(permit) = Arc::clone(&self.in_flight).try_acquire_owned() else {
            self.overloaded.fetch_add(1, Ordering::Relaxed);
            let max = self.node.options.max_in_flight;
            let message = format!("{max} calls to the store are in flight: raise max-in-flight");
            return CallResult::Failed(Error::store(Fault::Overloaded, message));
        };
        let (store, batch) = (self.store.clone(), SmallVec::<[Checks; 1]>::from(batch));
        let mut call: Call = Box::pin(async move {
            let answer = store.admit(&batch).await;
            drop(permit);
            answer
        });
        match tokio::time::timeout(time_left, &mut call).await {
            Ok(Ok(batch_verdicts)) => CallResult::Answered(batch_verdicts),
            Ok(Err(error)) => CallResult::Failed(error),
            Err(_) => CallResult::Late(call),
        }
    }

    /// Returns the verdicts of the store, or decides without it if the call failed or is late.
    fn conclude(
        self: &Arc<Self>,
        server: &Arc<ServerState>,
        batch: &[Checks],
        result: CallResult,
        stamp: CallStamp,
    ) -> Result<BatchVerdicts, Error> {
        match result {
            CallResult::Answered(batch_verdicts) => {
                if let Some(first) = batch_verdicts.first() {
                    server.record_answer(&self.node, stamp.sent, self.node.clock.now(), first.at);
                }
                // Admissions of an earlier epoch are not in the server any more, so they are recorded as unwritten.
                let same_epoch = server.epoch() == stamp.epoch;
                for (checks, verdicts) in batch.iter().zip(&batch_verdicts) {
                    if !checks.is_peek() {
                        self.journal.record_verdicts(checks.as_slice(), verdicts, same_epoch);
                    }
                }
                Ok(batch_verdicts)
            }
            CallResult::Failed(error) => {
                let Some(fault) = error.fault() else { return Err(error) };
                server.record_failure(&self.node, fault, batch.len());
                let batch_verdicts = self.decide_locally(server, batch);
                server.task_wake.notify_one();
                Ok(batch_verdicts)
            }
            CallResult::Late(call) => {
                // A call that had less than the full deadline counts as one failure, even if several requests waited
                // for it.
                let had_full_deadline = batch.iter().all(|checks| checks.waited == Micros::ZERO);
                server.record_failure(
                    &self.node,
                    Fault::Timeout,
                    if had_full_deadline { batch.len() } else { 1 },
                );
                let batch_verdicts = self.decide_locally(server, batch);
                self.late.fetch_add(1, Ordering::Relaxed);
                let (inner, batch, reported) = (Arc::clone(self), batch.to_vec(), batch_verdicts.clone());
                let server = Arc::clone(server);
                tokio::spawn(async move {
                    let late = call.await;
                    // If the epoch has changed, the server has lost the late admissions, and there is nothing to
                    // reconcile.
                    if let Ok(late) = late
                        && server.epoch() == stamp.epoch
                    {
                        inner.reconcile(&batch, &reported, &late).await;
                    }
                    server.task_wake.notify_one();
                });
                Ok(batch_verdicts)
            }
        }
    }

    /// Makes the counts agree with the verdicts that were reported to the callers, after the late verdicts of the
    /// store have arrived.
    async fn reconcile(&self, batch: &[Checks], reported: &[Verdicts], late: &[Verdicts]) {
        let mut refunds = Vec::new();
        for ((checks, reported), late) in batch.iter().zip(reported).zip(late) {
            let allowed = !denies(checks, reported);
            let mut late = late.clone();
            for ((check, reported), late_verdict) in
                checks.as_slice().iter().zip(&reported.verdicts).zip(&mut late.verdicts)
            {
                // A request with an id may have been charged by an earlier call. That charge is not refunded.
                let charged_before = late_verdict.entry.at < late.at
                    || checks.id().is_some() && late_verdict.entry.at > late.at;
                if late_verdict.outcome != Outcome::Charged || charged_before {
                    continue;
                }
                // The store has counted this admission, so it need not be written back. If this node has already
                // written it back, the store counts it twice.
                let counted_twice = reported.outcome == Outcome::Charged
                    && !self.journal.settle_unwritten(&check.key, reported.entry.at, check.cost, 0);
                if !allowed || counted_twice {
                    let (key, entry) = (check.key.clone(), late_verdict.entry);
                    refunds.push(Settlement::refund(key, entry));
                    late_verdict.outcome = Outcome::Fits;
                }
            }
            if allowed {
                self.journal.record_verdicts(checks.as_slice(), &late, true);
            }
        }
        for refund in refunds {
            // If the refund fails, the admission counts until it expires. The limit is then stricter, never looser.
            let _ = self.store.settle(&[refund]).await;
        }
    }

    #[cold]
    async fn admit_singly(
        self: &Arc<Self>,
        server: &Arc<ServerState>,
        batch: &[Checks],
        started: Micros,
    ) -> Result<BatchVerdicts, Error> {
        let mut batch_verdicts = BatchVerdicts::new();
        // Keys with more expired entries than one decision may remove. The next batch continues to trim them.
        let mut trimming: Vec<&Check> = Vec::new();
        for single in batch.chunks(1) {
            let checks = || single.iter().flat_map(Checks::as_slice);
            let is_trimming = checks().any(|check| trimming.iter().any(|other| other.key == check.key));
            let time_left = self.time_left(started);
            if is_trimming || time_left.is_zero() {
                // The server has answered every call, so this local decision is not recorded as a failure of the
                // server.
                batch_verdicts.extend(self.decide_locally(server, single));
                continue;
            }
            let stamp = self.stamp(server);
            let result = self.call(single, time_left).await;
            if matches!(&result, CallResult::Failed(error) if error.fault() == Some(Fault::Trimming)) {
                trimming.extend(checks());
            }
            batch_verdicts.extend(self.conclude(server, single, result, stamp)?);
        }
        Ok(batch_verdicts)
    }

    /// Returns the rest of the deadline of a decision that started at `started`.
    fn time_left(&self, started: Micros) -> Duration {
        self.node.options.deadline.saturating_sub(self.node.clock.now().since(started).into())
    }

    #[cold]
    async fn verify_identity(&self, server: &ServerState) -> Result<(), Error> {
        let verified =
            tokio::time::timeout(self.node.options.deadline, recovery_task::verify_identity(self, server))
                .await;
        verified.map(|identity| identity.map(|_| ())).unwrap_or_else(|_| {
            let address = self.store.server_address(server.id);
            Err(Error::store(Fault::Timeout, format!("the server at {address} did not answer in time")))
        })
    }

    /// Decides while the server is back but other nodes may not have written back yet. Both the server and this
    /// node's share must allow.
    async fn admit_joining(
        self: &Arc<Self>,
        server: &Arc<ServerState>,
        batch: &[Checks],
    ) -> Result<BatchVerdicts, Error> {
        let started = self.node.clock.now();
        let mut batch_verdicts = BatchVerdicts::new();
        for checks in batch {
            // All requests of the batch share one deadline, and none waits for a server that has failed meanwhile.
            let time_left = self.time_left(started);
            batch_verdicts.push(if time_left.is_zero() || server.phase() == Phase::Away {
                self.decide_without_store(server, checks)
            } else {
                self.admit_one_joining(server, checks, time_left).await?
            });
        }
        Ok(batch_verdicts)
    }

    async fn admit_one_joining(
        self: &Arc<Self>,
        server: &Arc<ServerState>,
        checks: &Checks,
        time_left: Duration,
    ) -> Result<Verdicts, Error> {
        let outage = server.current_outage(&self.node);
        let local_checks = self.checks_with_policy(checks, OnError::Local);
        let local = fallback::decide(&self.journal, &local_checks, &outage, true);
        if denies(&local_checks, &local) {
            return Ok(self.fill_in(checks, local));
        }
        let stamp = self.stamp(server);
        let batch = std::slice::from_ref(checks);
        let result = self.call(batch, time_left).await;
        let admitted = matches!(&result, CallResult::Answered(all) if all.iter().all(|verdicts| !denies(checks, verdicts)));
        if !admitted {
            fallback::undo(&self.journal, &local_checks, &local, outage.now);
        }
        let verdicts = single(self.conclude(server, batch, result, stamp)?)?;
        if admitted {
            // The server admitted the request later than this node did, so the local counter counts it from the
            // server's instant.
            let at = verdicts.at.plus(outage.clock_uncertainty);
            fallback::postpone(&self.journal, &local_checks, &local, &outage, at);
        }
        Ok(verdicts)
    }

    fn decide_locally(&self, server: &ServerState, batch: &[Checks]) -> BatchVerdicts {
        batch.iter().map(|checks| self.decide_without_store(server, checks)).collect()
    }

    /// Decides by the fallback policy of each rule.
    fn decide_without_store(&self, server: &ServerState, checks: &Checks) -> Verdicts {
        let closed = |check: &Check| check.enforced && self.policy(check) == OnError::Closed;
        let at = server.latest_now(&self.node);
        if checks.as_slice().iter().any(closed) {
            let retry_after = server.until_probe(&self.node);
            let verdicts = checks.as_slice().iter().map(|check| match closed(check) {
                true => fail_closed(check, retry_after),
                false => Verdict::not_evaluated(check.quota.capacity()),
            });
            return Verdicts { at, source: Source::FailClosed, verdicts: verdicts.collect() };
        }
        let local_checks = self.checks_with_policy(checks, OnError::Local);
        if local_checks.as_slice().is_empty() {
            let verdicts = checks.as_slice().iter().map(fail_open);
            return Verdicts { at, source: Source::FailOpen, verdicts: verdicts.collect() };
        }
        let _local_decision = server.local_decisions.read();
        let local = fallback::decide(&self.journal, &local_checks, &server.current_outage(&self.node), false);
        self.fill_in(checks, local)
    }

    fn policy(&self, check: &Check) -> OnError {
        check.on_error.unwrap_or(self.node.options.on_error)
    }

    /// Returns the checks that have this fallback policy.
    fn checks_with_policy(&self, checks: &Checks, policy: OnError) -> Checks {
        checks.with_checks(checks.as_slice().iter().filter(|check| self.policy(check) == policy).cloned())
    }

    /// Completes the verdicts of the local checks to verdicts of all `checks`. The other checks fail open.
    fn fill_in(&self, checks: &Checks, local: Verdicts) -> Verdicts {
        let mut local_verdicts = local.verdicts.into_iter();
        let verdicts = checks.as_slice().iter().map(|check| {
            let verdict = if self.policy(check) == OnError::Local { local_verdicts.next() } else { None };
            verdict.unwrap_or_else(|| fail_open(check))
        });
        Verdicts { verdicts: verdicts.collect(), ..local }
    }
}

/// Returns the verdict for a check with `on-error: open`, which neither the store nor this node evaluated.
fn fail_open(check: &Check) -> Verdict {
    Verdict { outcome: Outcome::Fits, ..Verdict::not_evaluated(check.quota.capacity()) }
}

/// Returns the verdict for a check with `on-error: closed`. No permit remains until the store answers again.
fn fail_closed(check: &Check, retry_after: Micros) -> Verdict {
    Verdict {
        outcome: Outcome::Denied,
        used: check.quota.capacity(),
        retry_after,
        reset_after: retry_after,
        ..Verdict::not_evaluated(check.quota.capacity())
    }
}

fn denies(checks: &Checks, verdicts: &Verdicts) -> bool {
    let pairs = checks.as_slice().iter().zip(&verdicts.verdicts);
    pairs.into_iter().any(|(check, verdict)| check.enforced && verdict.outcome.denies())
}
