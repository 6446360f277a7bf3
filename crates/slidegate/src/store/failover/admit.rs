//! Decisions on one server: by the server, by this node's fallback, or by both.

use std::sync::Arc;
use std::time::Duration;

use super::calls::CallResult;
use super::server_state::ServerState;
use super::state_machine::Phase;
use super::{Inner, fallback, recovery_task};
use crate::store::remote::RemoteStore;
use crate::store::single;
use crate::{
    BatchVerdicts, Check, Checks, Error, Fault, Micros, OnError, Outcome, Source, Verdict, Verdicts,
};

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
            // The requests waited for a call that was not answered, and have no time left for another.
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
                // The server has answered every call, so this does not count as a failure of it.
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
            // The batch has one deadline, and does not wait for a server that has failed meanwhile.
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
            // The server admitted the request later than this node did. The admission counts from the server's
            // instant.
            let at = verdicts.at.plus(outage.clock_uncertainty);
            fallback::postpone(&self.journal, &local_checks, &local, &outage, at);
        }
        Ok(verdicts)
    }

    pub(super) fn decide_locally(&self, server: &ServerState, batch: &[Checks]) -> BatchVerdicts {
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

/// Returns the verdict for a check with `on-error: closed`. Nothing remains until the store answers again.
fn fail_closed(check: &Check, retry_after: Micros) -> Verdict {
    Verdict {
        outcome: Outcome::Denied,
        used: check.quota.capacity(),
        retry_after,
        reset_after: retry_after,
        ..Verdict::not_evaluated(check.quota.capacity())
    }
}

pub(super) fn denies(checks: &Checks, verdicts: &Verdicts) -> bool {
    let pairs = checks.as_slice().iter().zip(&verdicts.verdicts);
    pairs.into_iter().any(|(check, verdict)| check.enforced && verdict.outcome.denies())
}
