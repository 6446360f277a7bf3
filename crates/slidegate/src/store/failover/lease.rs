//! Permits that are taken in advance, for a lease, and given back.

use std::sync::Arc;

use super::Inner;
use super::admit::Call;
use super::server_state::ServerState;
use super::state_machine::Phase;
use crate::store::remote::RemoteStore;
use crate::{BatchVerdicts, Checks, Entry, Error, Fault, Key, Outcome, Verdicts};

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
                    // The server does not decide alone any more, and this node's fallback does not know these permits.
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
                    // If the epoch has changed, the server has lost these permits. If they cannot be given back, they
                    // count until they expire. The limit is then stricter, never looser.
                    if same_epoch(&server) {
                        let _ = store.give_back(&key, &charged_entries(&late)).await;
                    }
                });
                Err(Error::store(Fault::Timeout, "the store did not answer in time"))
            }
        }
    }

    /// Gives back permits that were taken in advance. They were taken from the server, so they are given back to it.
    pub(super) async fn give_back(&self, key: &Key, entries: &[Entry]) -> Result<(), Error> {
        self.store.give_back(key, entries).await?;
        for entry in entries {
            self.journal.settle(key, *entry, 0);
        }
        Ok(())
    }
}

/// Returns the entries of all charged verdicts.
fn charged_entries(batch_verdicts: &[Verdicts]) -> Vec<Entry> {
    let verdicts = batch_verdicts.iter().flat_map(|verdicts| &verdicts.verdicts);
    verdicts.filter(|verdict| verdict.outcome == Outcome::Charged).map(|verdict| verdict.entry).collect()
}
