//! Admits a batch by a transaction: evaluates with the pure algorithm, and writes the changes.

use std::collections::HashMap;

use redis::Pipeline;
use redis::aio::MultiplexedConnection;
use smallvec::SmallVec;

use super::key_state::{KeyState, KeyStates};
use super::load::{LoadRequest, load};
use super::{AttemptError, Work, commit};
use crate::algorithm::evaluate::evaluate;
use crate::store::redis::Inner;
use crate::store::redis::layout::KeyPart;
use crate::store::redis::topology::ShardId;
use crate::{BatchVerdicts, Checks, Count, Encoding, Error, Key, Micros, Outcome, Verdicts};

/// Time that a warm-up record is kept after the limit is cold again, in milliseconds.
const WARM_BUFFER: u64 = 10_000;

impl Inner {
    pub(in crate::store::redis) async fn admit_by_transaction(
        &self,
        shard: ShardId,
        batch: &[Checks],
    ) -> Result<BatchVerdicts, Error> {
        let checks = || batch.iter().flat_map(Checks::as_slice);
        if checks().any(|check| check.encoding == Encoding::Packed) {
            return Err(Error::invalid("`encoding: packed` cannot be combined with redis.mode: transaction"));
        }
        let mut keys: Vec<&Key> = Vec::new();
        for check in checks() {
            if !keys.contains(&&check.key) {
                keys.push(&check.key);
            }
        }
        let mut batch_verdicts = BatchVerdicts::new();
        self.attempt(shard, &keys, Work::Admit(batch, &keys, &mut batch_verdicts)).await?;
        Ok(batch_verdicts)
    }

    pub(super) async fn try_admit(
        &self,
        connection: &mut MultiplexedConnection,
        batch: &[Checks],
        keys: &[&Key],
        read_whole: &[usize],
    ) -> Result<BatchVerdicts, AttemptError> {
        let noted = |key: &Key| {
            let mut checks = batch.iter().filter(|checks| checks.id().is_some()).flat_map(Checks::as_slice);
            checks.any(|check| check.key == *key && check.quota.algorithm().has_entries())
        };
        let warms_up = |key: &Key| {
            let mut checks = batch.iter().flat_map(Checks::as_slice);
            checks.any(|check| check.key == *key && check.quota.warm_up().is_some())
        };
        let request = |key: &Key| LoadRequest {
            warm: warms_up(key).then(|| self.names.name(key, KeyPart::Warm)),
            ..self.load_request(key, noted(key))
        };
        let requests = keys.iter().map(|key| request(key)).collect();
        let (now, mut loaded) = load(connection, requests, read_whole).await?;
        let indexes: HashMap<&Key, usize, foldhash::quality::RandomState> =
            keys.iter().enumerate().map(|(i, key)| (*key, i)).collect();
        for checks in batch {
            let Some(id) = checks.id() else { continue };
            for check in checks.as_slice() {
                loaded[indexes[&check.key]].find_id(connection, id, check.cost, &check.quota).await?;
            }
        }
        let mut key_states: Vec<Option<KeyState>> = loaded.iter().map(|_| None).collect();
        let mut batch_verdicts = BatchVerdicts::new();
        for checks in batch {
            let indices: SmallVec<[usize; 4]> = checks.as_slice().iter().map(|c| indexes[&c.key]).collect();
            let mut open: Vec<KeyState> = Vec::with_capacity(indices.len());
            for (check, &i) in checks.as_slice().iter().zip(&indices) {
                // A new state that has recorded nothing is created again for this quota. It counts nothing yet, but a
                // bucket would otherwise start with the burst of the earlier quota.
                let current = key_states[i].take().filter(|key_state| {
                    key_state.state.suits(&check.quota) && !(key_state.fresh && key_state.recorded == 0)
                });
                open.push(current.unwrap_or_else(|| KeyState::open(&loaded[i], &check.quota, now)));
            }
            let evaluation = evaluate(checks, Micros::new(now), &mut KeyStates(&mut open));
            let mut verdicts = evaluation.verdicts;
            for (((check, verdict), key_state), &i) in
                checks.as_slice().iter().zip(&mut verdicts).zip(&mut open).zip(&indices)
            {
                key_state.quota = check.quota;
                let recorded = key_state.note_recorded();
                if verdict.outcome == Outcome::Charged {
                    let number = key_state.number(checks.id(), check.cost, verdict.entry, recorded);
                    // An attempt is not settled, so it has no number.
                    if check.quota.count() == Count::Admitted {
                        verdict.entry.seq = number;
                    }
                }
                if verdict.retry_after > Micros::ZERO && key_state.reaches_unread(verdict) {
                    return Err(AttemptError::NeedsAllEntries(vec![i]));
                }
            }
            for (key_state, &i) in open.into_iter().zip(&indices) {
                key_states[i] = Some(key_state);
            }
            batch_verdicts.push(Verdicts { verdicts, ..evaluation });
        }
        let mut writes = Pipeline::new();
        writes.atomic();
        let mut read_only = Vec::new();
        for ((i, key_state), loaded) in key_states.iter().enumerate().zip(&loaded) {
            let Some(key_state) = key_state else { continue };
            let before = writes.len();
            if !key_state.write(&mut writes, loaded, self.expiry) {
                return Err(AttemptError::NeedsAllEntries(vec![i]));
            }
            if let (Some((record, until)), Some((name, _))) = (key_state.warm_up_change(loaded), &loaded.warm)
            {
                let ends = until.get().div_ceil(1_000) + WARM_BUFFER;
                writes.cmd("SET").arg(name).arg(record.write()).arg("PXAT").arg(ends);
            }
            if writes.len() == before && loaded.snapshot.is_some() {
                read_only.push((key_state, loaded));
            }
        }
        // Keys that were only read are touched too. This makes a transaction with an earlier instant fail if it has
        // watched such a key: writing transactions are in the order of their instants, on every key that they
        // evaluated.
        if !writes.is_empty() {
            for (key_state, loaded) in read_only {
                key_state.touch(&mut writes, loaded, self.expiry);
            }
        }
        commit(connection, writes).await?;
        Ok(batch_verdicts)
    }
}
