//! Corrections: of what this node admitted by itself, here; of the rest, in the store.

use std::sync::Arc;

use super::fallback::{MADE_HERE, is_made_here};
use super::server_state::Phase;
use super::{Inner, fallback};
use crate::settlement::NEVER_SETTLED;
use crate::store::redis::FIRST_RESTORED_SEQ;
use crate::{Clock, Correction, Entry, Error, Fault, Key, Receipt, Settled, Settlement, Store};

impl Inner {
    pub(super) async fn settle(self: &Arc<Self>, settlements: &[Settlement]) -> Result<Receipt, Error> {
        let mut settled = vec![Settled::Gone; settlements.len()];
        let mut at = self.clock.now();
        let mut to_store = Vec::new();
        for (i, settlement) in settlements.iter().enumerate() {
            let Settlement { key, entry, correction } = settlement;
            let server = self.watched(self.store.server_of(key));
            let made_here = is_made_here(*entry);
            // An attempt, or a number that nobody was given.
            if entry.seq == NEVER_SETTLED || !made_here && entry.seq >= FIRST_RESTORED_SEQ {
                continue;
            }
            if made_here {
                let now = server.now(self);
                let here = fallback::settle(&self.mirror, key, *entry, *correction, now);
                if let Some((outcome @ (Settled::Already | Settled::Gone), _)) = here {
                    settled[i] = outcome;
                    continue;
                }
                let since = here.map_or(entry.at, |(_, since)| since);
                let unwritten = match correction {
                    Correction::Cost(to) => self.mirror.settled_unwritten(key, since, entry.cost, *to),
                    Correction::Extend => self.mirror.extended_unwritten(key, since, entry.cost, now),
                };
                if unwritten {
                    settled[i] = Settled::Done;
                    continue;
                }
            }
            if server.phase() == Phase::Away {
                return Err(Error::store(
                    Fault::Unreachable,
                    format!(
                        "Redis at {} does not answer: settle again when it does",
                        self.store.server_address(server.id)
                    ),
                ));
            }
            // Where nothing is written back, there is nothing to settle.
            if made_here && !self.store.can_restore() {
                continue;
            }
            let seq = if made_here { number_of(&self.name, *entry) } else { entry.seq };
            to_store.push((i, Settlement { entry: Entry { seq, ..*entry }, ..settlement.clone() }));
        }
        if to_store.is_empty() {
            return Ok(Receipt { at, settled });
        }
        let asked: Vec<Settlement> = to_store.iter().map(|(_, settlement)| settlement.clone()).collect();
        let receipt = self.store.settle_checked(&asked).await?;
        at = receipt.at;
        for ((i, settlement), outcome) in to_store.iter().zip(receipt.settled) {
            settled[*i] = outcome;
            if outcome == Settled::Done {
                let Settlement { key, entry, correction } = settlement;
                match correction {
                    Correction::Cost(to) => self.mirror.settled(key, *entry, *to),
                    Correction::Extend => self.mirror.extended(key, *entry, at),
                }
            }
        }
        Ok(Receipt { at, settled })
    }

    /// What was taken in advance was taken from a server, so it is given back to one.
    pub(super) async fn give_back(&self, key: &Key, entries: &[Entry]) -> Result<(), Error> {
        self.store.give_back(key, entries).await?;
        for entry in entries {
            self.mirror.settled(key, *entry, 0);
        }
        Ok(())
    }
}

/// As what an admission that was written back is settled: a number that the store gives to nothing else.
fn number_of(node: &str, entry: Entry) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (node, entry.at, entry.seq).hash(&mut hasher);
    FIRST_RESTORED_SEQ + hasher.finish() % (MADE_HERE - FIRST_RESTORED_SEQ)
}
