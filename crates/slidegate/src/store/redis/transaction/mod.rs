//! `mode: transaction`: the same decisions without scripts, for servers and proxies that do not run them.
//!
//! It watches the keys with WATCH, reads what is needed of them into a [`State`](crate::State), evaluates with the
//! pure algorithm, and writes the changes in MULTI / EXEC. If another client changed a key meanwhile, EXEC writes
//! nothing and the attempt is repeated, a bounded number of times; callers of one key in one process wait for each
//! other instead.
//!
//! The layout is that of the scripts, so both can work on the same keys. Only the oldest entries of a window are
//! read; the others are summed up at the newest instant, and if a decision depends on one of them, all are read.
//!
//! A denial writes nothing, so it may come before an admission that is dated earlier but not yet written.

mod key_state;
mod load;
mod write;

use std::collections::HashMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use smallvec::SmallVec;
use tokio::sync::MutexGuard;

use self::key_state::{KeyState, KeyStates};
use self::load::{LoadRequest, load, newest_besides, note_name};
use super::epoch::Purpose;
use super::error_map::{Redirect, explain, redirect};
use super::layout::{FIRST_ID_SEQ, id_note_of};
use super::server::{self, Server};
use super::topology::ShardId;
use super::zset_snapshot::ZsetEntry;
use super::{Inner, bad_reply};
use crate::algorithm::evaluate::evaluate;
use crate::{
    BatchVerdicts, Checks, Correction, Count, Encoding, Entry, Error, Fault, Key, Micros, Outcome, Receipt,
    Settled, Settlement, Verdicts,
};

/// Most attempts of a decision when other clients change its keys.
const MAX_ATTEMPTS: u32 = 100;

/// Attempts without back-off; later ones wait a little.
const IMMEDIATE_ATTEMPTS: u32 = 4;

/// Number of locks: callers of one key in one process go one after the other.
const KEY_LOCKS: usize = 64;

/// Time that a warm-up record is kept after the limit is cold again, in milliseconds.
const WARM_BUFFER: u64 = 10_000;

/// Locks by hash of the key, so that callers of one key in one process go one after the other.
pub(super) struct Transactions {
    key_locks: [tokio::sync::Mutex<()>; KEY_LOCKS],
}

impl Default for Transactions {
    fn default() -> Self {
        Transactions { key_locks: std::array::from_fn(|_| tokio::sync::Mutex::new(())) }
    }
}

/// Work of one transaction.
#[derive(Clone, Copy)]
enum Work<'a> {
    Admit(&'a [Checks], &'a [&'a Key]),
    Settle(&'a [Settlement]),
}

/// Result of one transaction.
enum TransactionResult {
    Admitted(BatchVerdicts),
    Settled(Receipt),
}

/// Reason why an attempt did not succeed.
enum AttemptError {
    /// Another client changed a key first.
    Conflict,
    /// The decision depends on entries of these keys that were not read: all of their entries must be read.
    NeedsAllEntries(Vec<usize>),
    Failed(RedisError),
    Invalid(Error),
}

impl From<RedisError> for AttemptError {
    fn from(error: RedisError) -> Self {
        AttemptError::Failed(error)
    }
}

impl Inner {
    pub(super) async fn admit_by_transaction(
        &self,
        shard: ShardId,
        batch: &[Checks],
    ) -> Result<BatchVerdicts, Error> {
        let checks = || batch.iter().flat_map(Checks::as_slice);
        if checks().any(|check| check.encoding == Encoding::Packed) {
            return Err(Error::invalid("`encoding: packed` needs scripts: not with redis.mode transaction"));
        }
        let mut keys: Vec<&Key> = Vec::new();
        for check in checks() {
            if !keys.contains(&&check.key) {
                keys.push(&check.key);
            }
        }
        match self.attempt(shard, &keys, Work::Admit(batch, &keys)).await? {
            TransactionResult::Admitted(batch_verdicts) => Ok(batch_verdicts),
            TransactionResult::Settled(_) => Err(bad_reply()),
        }
    }

    pub(super) async fn settle_by_transaction(
        &self,
        shard: ShardId,
        settlements: &[Settlement],
    ) -> Result<Receipt, Error> {
        let mut receipt = Receipt { at: Micros::ZERO, settled: Vec::new() };
        let mut rest = settlements;
        while !rest.is_empty() {
            // One transaction for as many settlements as have different keys.
            let twice = (1..rest.len()).find(|&i| rest[..i].iter().any(|other| other.key == rest[i].key));
            let (now, later) = rest.split_at(twice.unwrap_or(rest.len()));
            let keys: Vec<&Key> = now.iter().map(|settlement| &settlement.key).collect();
            let TransactionResult::Settled(part) = self.attempt(shard, &keys, Work::Settle(now)).await?
            else {
                return Err(bad_reply());
            };
            receipt.at = part.at;
            receipt.settled.extend(part.settled);
            rest = later;
        }
        Ok(receipt)
    }

    /// Follows the keys to the server that has them.
    async fn attempt(
        &self,
        shard: ShardId,
        keys: &[&Key],
        work: Work<'_>,
    ) -> Result<TransactionResult, Error> {
        let _locks = self.transactions.lock_keys(keys).await;
        let mut route = self.topology.route(shard);
        loop {
            let server = route.server().await?;
            match self.attempt_at(&server, work).await {
                Ok(done) => return Ok(done),
                Err(error) => route.prepare_retry(error).await?,
            }
        }
    }

    /// Repeats attempts until one succeeds, fails, or there were too many conflicts.
    async fn attempt_at(
        &self,
        server: &Server,
        work: Work<'_>,
    ) -> Result<TransactionResult, server::CallError> {
        let failed = server::CallError::Failed;
        let _permit = server.connections.permit().await.map_err(failed)?;
        let (mut read_whole, mut conflicts) = (Vec::new(), 0);
        while conflicts < MAX_ATTEMPTS {
            let mut dedicated = server.take_connection(Purpose::Decide).await.map_err(failed)?;
            let done = match work {
                Work::Admit(batch, keys) => self
                    .try_admit(&mut dedicated.connection, batch, keys, &read_whole)
                    .await
                    .map(TransactionResult::Admitted),
                Work::Settle(settlements) => self
                    .try_settle(&mut dedicated.connection, settlements, &read_whole)
                    .await
                    .map(TransactionResult::Settled),
            };
            match done {
                Ok(done) => {
                    server.return_connection(dedicated);
                    return Ok(done);
                }
                Err(AttemptError::Failed(error)) => {
                    let explained = explain(&error, &dedicated.address);
                    // A slot may move away between WATCH and EXEC, which then does nothing.
                    let left = explained.fault() == Some(Fault::Cluster)
                        && error.kind() == ErrorKind::Server(ServerErrorKind::ExecAbort);
                    return Err(match redirect(&error).or_else(|| left.then_some(Redirect::Again)) {
                        // Dropping the connection ends its WATCH.
                        Some(redirect) => server::CallError::Redirected(redirect, explained),
                        None => {
                            server.drop_idle();
                            failed(explained)
                        }
                    });
                }
                Err(AttemptError::Invalid(error)) => return Err(failed(error)),
                // Each key is added once, so this ends.
                Err(AttemptError::NeedsAllEntries(keys)) => read_whole.extend(keys),
                Err(AttemptError::Conflict) => conflicts += 1,
            }
            // The next user of the connection must not inherit the WATCH.
            if redis::cmd("UNWATCH").exec_async(&mut dedicated.connection).await.is_ok() {
                server.return_connection(dedicated);
            }
            if conflicts > IMMEDIATE_ATTEMPTS {
                tokio::time::sleep(Duration::from_millis(1 + u64::from(conflicts) % 7)).await;
            }
        }
        Err(failed(Error::store(
            Fault::Conflict,
            format!(
                "others changed the same keys {MAX_ATTEMPTS} times while this was decided: use scripts for hot keys"
            ),
        )))
    }

    async fn try_admit(
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
            warm: warms_up(key).then(|| self.names.warm(key)),
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
                // A new state that recorded nothing has nothing to continue from, such as the level of another burst.
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
        // Keys that were only read are touched too, so that no other transaction writes there later with an earlier
        // instant: writing transactions are in the order of their instants, on every key they evaluated.
        if !writes.is_empty() {
            for (key_state, loaded) in read_only {
                key_state.touch(&mut writes, loaded, self.expiry);
            }
        }
        commit(connection, writes).await?;
        Ok(batch_verdicts)
    }

    async fn try_settle(
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
            // An extended admission counts from its extension, and its number is not an ordinal of that instant.
            let settlement = &match since {
                Some(since) => Settlement {
                    entry: Entry { at: Micros::new(since as u64), seq: FIRST_ID_SEQ, cost },
                    ..settlement.clone()
                },
                None => settlement.clone(),
            };
            let mut lookup = Pipeline::new();
            let (name, instant) = (&loaded.name, settlement.entry.at.get());
            // Without notes there is no such member in the key itself either.
            lookup.cmd("ZSCORE").arg(loaded.notes_key().unwrap_or(name)).arg(&marker);
            lookup.cmd("ZRANGEBYSCORE").arg(name).arg(instant).arg(instant).arg("LIMIT").arg(0).arg(64);
            // Without a note, a request with an id was never admitted under this number.
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
        self.add_publishes(&mut publishes, freed.map(|settlement| &settlement.key));
        if !publishes.is_empty() {
            // If this user may not publish, other nodes are not notified.
            let _ = publishes.exec_async(connection).await;
        }
        Ok(Receipt { at: Micros::new(now), settled })
    }

    fn load_request(&self, key: &Key, noted: bool) -> LoadRequest {
        LoadRequest { name: self.names.main(key), notes: self.names.notes(key), noted, warm: None }
    }
}

impl Transactions {
    async fn lock_keys(&self, keys: &[&Key]) -> Vec<MutexGuard<'_, ()>> {
        let mut indexes: Vec<usize> = keys.iter().map(|key| key.hash() as usize % KEY_LOCKS).collect();
        indexes.sort_unstable();
        indexes.dedup();
        let mut guards = Vec::with_capacity(indexes.len());
        for index in indexes {
            guards.push(self.key_locks[index].lock().await);
        }
        guards
    }
}

/// Commits if no other client changed a watched key; also when there is nothing to write, to find out.
async fn commit(connection: &mut MultiplexedConnection, mut writes: Pipeline) -> Result<(), AttemptError> {
    if writes.is_empty() {
        writes.cmd("PING");
    }
    match writes.query_async::<Value>(connection).await? {
        Value::Nil => Err(AttemptError::Conflict),
        _ => Ok(()),
    }
}
