//! Calls to a server with a deadline, and the correction of counts after a late answer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::OwnedSemaphorePermit;

use super::Inner;
use super::admit::denies;
use super::server_state::ServerState;
use super::state_machine::Phase;
use crate::store::remote::RemoteStore;
use crate::{BatchVerdicts, Checks, Entry, Error, Fault, Micros, Outcome, Settlement, Verdicts};

/// A call to the store that may outlive its caller.
pub(super) type Call = Pin<Box<dyn Future<Output = Result<BatchVerdicts, Error>> + Send>>;

/// Time at which a call was sent, and the epoch of the server at that time.
#[derive(Clone, Copy)]
pub(super) struct CallStamp {
    pub(super) sent: Micros,
    epoch: u64,
}

/// State of a call at its deadline.
pub(super) enum CallResult {
    Answered(BatchVerdicts),
    Failed(Error),
    /// The call is still in flight.
    Late(Call),
}

impl<R: RemoteStore> Inner<R> {
    /// Takes permits in advance, for a lease: from the server or not at all. Permits that arrive after the deadline
    /// are given back.
    pub(super) async fn admit_run(
        self: &Arc<Self>,
        checks: &Checks,
        times: usize,
    ) -> Result<BatchVerdicts, Error> {
        let away = || Error::store(Fault::Unreachable, "no lease is taken while the store is away");
        let [check] = checks.as_slice() else { return Err(away()) };
        self.ensure_discovered().await;
        let server = self.server_state_of(self.store.server_of(&check.key));
        if server.phase() != Phase::Direct || !server.is_identified() {
            return Err(away());
        }
        let stamp = self.stamp(&server);
        let same_epoch = move |server: &ServerState| server.epoch() == stamp.epoch;
        let (store, owned) = (self.store.clone(), checks.clone());
        let mut call: Call = Box::pin(async move { store.admit_run(&owned, times).await });
        match tokio::time::timeout(self.node.options.deadline, &mut call).await {
            Ok(Ok(batch_verdicts)) => {
                let direct = {
                    let _local_decision = server.local_decisions.read();
                    let direct = server.phase() == Phase::Direct && same_epoch(&server);
                    if direct {
                        self.journal.record_run(check, &batch_verdicts, true);
                    }
                    direct
                };
                if !direct {
                    // This node decides by itself meanwhile, and its fallback does not know of these permits.
                    if same_epoch(&server) {
                        let _ = self.store.give_back(&check.key, &charged_entries(&batch_verdicts)).await;
                    }
                    return Err(away());
                }
                if let Some(first) = batch_verdicts.first() {
                    server.record_answer(&self.node, stamp.sent, self.node.clock.now(), first.at);
                }
                Ok(batch_verdicts)
            }
            Ok(Err(error)) => {
                if let Some(fault) = error.fault() {
                    server.record_failure(&self.node, fault, 1);
                    server.task_wake.notify_one();
                }
                Err(error)
            }
            Err(_) => {
                server.record_failure(&self.node, Fault::Timeout, 1);
                let (store, key) = (self.store.clone(), check.key.clone());
                tokio::spawn(async move {
                    let late = call.await.unwrap_or_default();
                    // Admissions of an earlier epoch are lost with it. Permits that cannot be given back count until
                    // they expire: stricter, never looser.
                    if same_epoch(&server) {
                        let _ = store.give_back(&key, &charged_entries(&late)).await;
                    }
                });
                Err(Error::store(Fault::Timeout, "the store did not answer in time"))
            }
        }
    }

    pub(super) fn stamp(&self, server: &ServerState) -> CallStamp {
        CallStamp { sent: self.node.clock.now(), epoch: server.epoch() }
    }

    /// Returns the verdicts of the store, or decides without it if the call failed or is late.
    pub(super) fn conclude(
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
                    // Admissions of an earlier epoch are lost with it.
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

    /// Returns the rest of the deadline of a decision that started at `started`.
    pub(super) fn time_left(&self, started: Micros) -> Duration {
        self.node.options.deadline.saturating_sub(self.node.clock.now().since(started).into())
    }

    /// Calls the store, and waits at most `time_left`.
    pub(super) async fn call(&self, batch: &[Checks], time_left: Duration) -> CallResult {
        let Ok(permit) = Arc::clone(&self.in_flight).try_acquire_owned() else {
            self.overloaded.fetch_add(1, Ordering::Relaxed);
            let max = self.node.options.max_in_flight;
            let message = format!("{max} calls to the store are in flight: raise max-in-flight");
            return CallResult::Failed(Error::store(Fault::Overloaded, message));
        };
        let mut call: Call = Box::pin(admit(self.store.clone(), batch.into(), permit));
        match tokio::time::timeout(time_left, &mut call).await {
            Ok(Ok(batch_verdicts)) => CallResult::Answered(batch_verdicts),
            Ok(Err(error)) => CallResult::Failed(error),
            Err(_) => CallResult::Late(call),
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
                // The store has counted this admission, so it need not be written back. If it was written back
                // already, it counts twice.
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
            // A refund that fails leaves the admission counted until it expires: stricter, never looser.
            let _ = self.store.settle(&[refund]).await;
        }
    }
}

async fn admit<R: RemoteStore>(
    store: R,
    batch: SmallVec<[Checks; 1]>,
    _permit: OwnedSemaphorePermit,
) -> Result<BatchVerdicts, Error> {
    store.admit(&batch).await
}

/// Returns the entries of all charged verdicts.
fn charged_entries(batch_verdicts: &[Verdicts]) -> Vec<Entry> {
    let verdicts = batch_verdicts.iter().flat_map(|verdicts| &verdicts.verdicts);
    verdicts.filter(|verdict| verdict.outcome == Outcome::Charged).map(|verdict| verdict.entry).collect()
}
