//! Settles admissions by a transaction.

use redis::Pipeline;
use redis::aio::MultiplexedConnection;

use super::key_state::KeyState;
use super::load::{load, newest_besides, note_name};
use super::{AttemptError, Work, commit};
use crate::store::redis::Inner;
use crate::store::redis::layout::{FIRST_ID_SEQ, id_note_of};
use crate::store::redis::topology::ShardId;
use crate::store::redis::zset_snapshot::ZsetEntry;
use crate::{Correction, Entry, Error, Key, Micros, Receipt, Settled, Settlement};

impl Inner {
    pub(in crate::store::redis) async fn settle_by_transaction(
        &self,
        shard: ShardId,
        settlements: &[Settlement],
    ) -> Result<Receipt, Error> {
        let mut receipt = Receipt { at: Micros::ZERO, settled: Vec::new() };
        let mut rest = settlements;
        while !rest.is_empty() {
            // Each transaction takes the next settlements, up to the first whose key was already taken.
            let twice = (1..rest.len()).find(|&i| rest[..i].iter().any(|other| other.key == rest[i].key));
            let (now, later) = rest.split_at(twice.unwrap_or(rest.len()));
            let keys: Vec<&Key> = now.iter().map(|settlement| &settlement.key).collect();
            let mut part = Receipt { at: Micros::ZERO, settled: Vec::new() };
            self.attempt(shard, &keys, Work::Settle(now, &mut part)).await?;
            receipt.at = part.at;
            receipt.settled.extend(part.settled);
            rest = later;
        }
        Ok(receipt)
    }

    pub(super) async fn try_settle(
        &self,
        connection: &mut MultiplexedConnection,
        settlements: &[Settlement],
        read_whole: &[usize],
    ) -> Result<Receipt, AttemptError> {
        let requests =
            settlements.iter().map(|settlement| self.load_request(&settlement.key, true)).collect();
        let (now, loaded) = load(connection, requests, read_whole).await?;
        let mut writes = Pipeline::new();
        writes.atomic();
        let mut settled = Vec::new();
        for ((i, settlement), loaded) in settlements.iter().enumerate().zip(&loaded) {
            let Some(snapshot) = &loaded.snapshot else {
                settled.push(Settled::Gone);
                continue;
            };
            let quota = snapshot.quota;
            let mut key_state = KeyState::open(loaded, &quota, now);
            key_state.state.inspect(Micros::new(now));
            let Entry { at: admitted_at, seq, cost } = settlement.entry;
            let marker = note_name("settled:", &quota, admitted_at.get(), seq);
            let moved = note_name("moved:", &quota, admitted_at.get(), seq);
            let since = match loaded.notes_key().filter(|_| quota.is_held()) {
                Some(notes) => {
                    redis::cmd("ZSCORE").arg(notes).arg(&moved).query_async::<Option<f64>>(connection).await?
                }
                None => None,
            };
            // An extended admission counts from its extension, and its number is not an ordinal at the instant of the
            // extension.
            let settlement = &match since {
                Some(since) => Settlement {
                    entry: Entry { at: Micros::new(since as u64), seq: FIRST_ID_SEQ, cost },
                    ..settlement.clone()
                },
                None => settlement.clone(),
            };
            let mut lookup = Pipeline::new();
            let (name, instant) = (&loaded.name, settlement.entry.at.get());
            // A count without notes has no notes key to look up, and its own key has no such member either.
            lookup.cmd("ZSCORE").arg(loaded.notes_key().unwrap_or(name)).arg(&marker);
            lookup.cmd("ZRANGEBYSCORE").arg(name).arg(instant).arg(instant).arg("LIMIT").arg(0).arg(64);
            // If there is no note, a request with an id was never admitted under this number.
            let id = if seq >= FIRST_ID_SEQ { id_note_of(seq) } else { String::new() };
            lookup.cmd("ZSCORE").arg(loaded.notes_key().unwrap_or(name)).arg(id);
            lookup.cmd("ZSCORE").arg(loaded.notes_key().unwrap_or(name)).arg("heal:newest");
            let (noted, found, named, healed): (Option<f64>, Vec<String>, Option<f64>, Option<f64>) =
                lookup.query_async(connection).await?;
            let is_admitted = since.is_some()
                || seq < FIRST_ID_SEQ
                || named == Some(admitted_at.get() as f64)
                || healed.is_some_and(|newest| newest >= instant as f64)
                || quota.algorithm().has_entries() && found.iter().any(|name| name.contains('-'));
            let extends = settlement.correction == Correction::Extend;
            let outcome = if admitted_at.get() > key_state.at && quota.is_held()
                || !key_state.state.still_counts(settlement.entry.at, Micros::new(key_state.at))
            {
                Settled::Gone
            } else if noted == Some(instant as f64) {
                Settled::Already
            } else if !is_admitted || extends && (!quota.is_held() || cost == 0) {
                Settled::Gone
            } else if extends && instant == key_state.at {
                Settled::Done
            } else {
                let entry = found.first().and_then(|found| ZsetEntry::read(found, instant as f64));
                let newest = match entry.as_ref().filter(|_| key_state.takes_newest(snapshot, settlement)) {
                    Some(entry) => newest_besides(connection, name, entry).await?,
                    None => 0,
                };
                if key_state.amend(snapshot, settlement, entry, newest) {
                    Settled::Done
                } else {
                    Settled::Gone
                }
            };
            settled.push(outcome);
            if key_state.amended.is_some() && extends {
                key_state.new_notes.push((key_state.at, moved));
            } else if key_state.amended.is_some() {
                key_state.new_notes.push((instant, marker));
                if settlement.correction == Correction::Cost(0) && seq >= FIRST_ID_SEQ {
                    key_state
                        .new_notes
                        .push((admitted_at.get(), note_name("void:", &quota, admitted_at.get(), seq)));
                }
            }
            if !key_state.write(&mut writes, loaded, self.expiry) {
                return Err(AttemptError::NeedsAllEntries(vec![i]));
            }
        }
        commit(connection, writes).await?;
        let done = settlements.iter().zip(&settled).filter(|(_, settled)| **settled == Settled::Done);
        let freed = done.map(|(settlement, _)| settlement).filter(|settlement| settlement.frees());
        let mut publishes = Pipeline::new();
        for settlement in freed {
            let key = settlement.key.as_str();
            publishes.cmd("PUBLISH").arg(self.names.freed_channel()).arg(key).ignore();
        }
        if !publishes.is_empty() {
            // If this user may not publish, other nodes are not notified.
            let _ = publishes.exec_async(connection).await;
        }
        Ok(Receipt { at: Micros::new(now), settled })
    }
}
