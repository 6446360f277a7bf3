//! Settlements: this node corrects its own fallback admissions, and the store corrects the others.

use std::sync::Arc;

use super::fallback::{LOCAL_SEQ, is_local};
use super::state_machine::Phase;
use super::{Inner, fallback};
use crate::settlement::NEVER_SETTLED;
use crate::store::remote::{FIRST_RESTORED_SEQ, RemoteStore};
use crate::{Correction, Entry, Error, Fault, Receipt, Settled, Settlement};

impl<R: RemoteStore> Inner<R> {
    pub(super) async fn settle(self: &Arc<Self>, settlements: &[Settlement]) -> Result<Receipt, Error> {
        let mut settled = vec![Settled::Gone; settlements.len()];
        let mut at = self.node.clock.now();
        let mut to_store = Vec::new();
        for (i, settlement) in settlements.iter().enumerate() {
            let Settlement { key, entry, correction } = settlement;
            let server = self.server_state_of(self.store.server_of(key));
            let is_local_entry = is_local(*entry);
            // Attempts cannot be settled. No caller was given a number between `FIRST_RESTORED_SEQ` and `LOCAL_SEQ`.
            if entry.seq == NEVER_SETTLED || !is_local_entry && entry.seq >= FIRST_RESTORED_SEQ {
                continue;
            }
            if is_local_entry {
                let now = server.latest_now(&self.node);
                let local = fallback::settle(&self.journal, key, *entry, *correction, now);
                if let Some((outcome @ (Settled::Already | Settled::Gone), _)) = local {
                    settled[i] = outcome;
                    continue;
                }
                let since = local.map_or(entry.at, |(_, since)| since);
                let unwritten = match correction {
                    Correction::Cost(to) => self.journal.settle_unwritten(key, since, entry.cost, *to),
                    Correction::Extend => self.journal.extend_unwritten(key, since, entry.cost, now),
                };
                if unwritten {
                    settled[i] = Settled::Done;
                    continue;
                }
            }
            if server.phase() == Phase::Away {
                let address = self.store.server_address(server.id);
                let message = format!("the server at {address} does not answer: try again later");
                return Err(Error::store(Fault::Unreachable, message));
            }
            // If this node cannot write back to the store, the store does not have the admission and cannot settle it.
            if is_local_entry && !self.store.can_restore() {
                continue;
            }
            let seq = if is_local_entry { written_back_seq(&self.node.name, *entry) } else { entry.seq };
            to_store.push((i, Settlement { entry: Entry { seq, ..*entry }, ..settlement.clone() }));
        }
        if to_store.is_empty() {
            return Ok(Receipt { at, settled });
        }
        let batch: Vec<Settlement> = to_store.iter().map(|(_, settlement)| settlement.clone()).collect();
        let receipt = self.store.settle_restored(&batch).await?;
        at = receipt.at;
        for ((i, settlement), outcome) in to_store.iter().zip(receipt.settled) {
            settled[*i] = outcome;
            if outcome == Settled::Done {
                let Settlement { key, entry, correction } = settlement;
                match correction {
                    Correction::Cost(to) => self.journal.settle(key, *entry, *to),
                    Correction::Extend => self.journal.extend(key, *entry, at),
                }
            }
        }
        Ok(Receipt { at, settled })
    }
}

/// Returns the sequence number under which an admission that was written back is settled. The store itself never
/// assigns such a number.
fn written_back_seq(node: &str, entry: Entry) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (node, entry.at, entry.seq).hash(&mut hasher);
    FIRST_RESTORED_SEQ + hasher.finish() % (LOCAL_SEQ - FIRST_RESTORED_SEQ)
}
