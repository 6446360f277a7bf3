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

use self::key_state::{Open, Slot};
use self::load::{Wanted, load, newest_besides, note};
use super::epoch::Purpose;
use super::error_map::{Redirect, explain, redirect};
use super::layout::{NAMED, id_note_of};
use super::server::{self, Server};
use super::topology::Place;
use super::zset_snapshot::{Held, HeldEntry};
use super::{Inner, bad_reply};
use crate::algorithm::evaluate::evaluate;
use crate::{
    BatchVerdicts, Checks, Correction, Count, Encoding, Entry, Error, Fault, Key, Micros, Outcome, Receipt,
    Settled, Settlement, Verdicts,
};

/// Most attempts of a decision when other clients change its keys.
const TRIES: u32 = 100;

/// Attempts without back-off; later ones wait a little.
const EAGER: u32 = 4;

/// Number of locks: callers of one key in one process go one after the other.
const LANES: usize = 64;

/// Time that a warm-up record is kept after the limit is cold again, in milliseconds.
const WARM_BUFFER: u64 = 10_000;

/// Locks by hash of the key, so that callers of one key in one process go one after the other.
pub(super) struct Transactions {
    lanes: [tokio::sync::Mutex<()>; LANES],
}

impl Default for Transactions {
    fn default() -> Self {
        Transactions { lanes: std::array::from_fn(|_| tokio::sync::Mutex::new(())) }
    }
}

/// Work of one transaction.
#[derive(Clone, Copy)]
enum Work<'a> {
    Admit(&'a [Checks], &'a [&'a Key]),
    Settle(&'a [Settlement]),
}

/// Result of one transaction.
enum Done {
    Admitted(BatchVerdicts),
    Settled(Receipt),
}

/// Reason why an attempt did not succeed.
enum Missed {
    /// Another client changed a key first.
    Conflict,
    /// The decision depends on entries of these keys that were not read: all of their entries must be read.
    Part(Vec<usize>),
    Failed(RedisError),
    Wrong(Error),
}

impl From<RedisError> for Missed {
    fn from(error: RedisError) -> Self {
        Missed::Failed(error)
    }
}

impl Inner {
    pub(super) async fn admit_watched(&self, place: Place, asks: &[Checks]) -> Result<BatchVerdicts, Error> {
        let checks = || asks.iter().flat_map(Checks::checks);
        if checks().any(|check| check.encoding == Encoding::Packed) {
            return Err(Error::invalid("`encoding: packed` needs scripts: not with redis.mode transaction"));
        }
        let mut keys: Vec<&Key> = Vec::new();
        for check in checks() {
            if !keys.contains(&&check.key) {
                keys.push(&check.key);
            }
        }
        match self.attempt(place, &keys, Work::Admit(asks, &keys)).await? {
            Done::Admitted(readings) => Ok(readings),
            Done::Settled(_) => Err(bad_reply()),
        }
    }

    pub(super) async fn settle_watched(
        &self,
        place: Place,
        settlements: &[Settlement],
    ) -> Result<Receipt, Error> {
        let mut receipt = Receipt { at: Micros::ZERO, settled: Vec::new() };
        let mut rest = settlements;
        while !rest.is_empty() {
            // One transaction for as many settlements as have different keys.
            let twice = (1..rest.len()).find(|&i| rest[..i].iter().any(|other| other.key == rest[i].key));
            let (now, later) = rest.split_at(twice.unwrap_or(rest.len()));
            let keys: Vec<&Key> = now.iter().map(|settlement| &settlement.key).collect();
            let Done::Settled(part) = self.attempt(place, &keys, Work::Settle(now)).await? else {
                return Err(bad_reply());
            };
            receipt.at = part.at;
            receipt.settled.extend(part.settled);
            rest = later;
        }
        Ok(receipt)
    }

    /// Follows the keys to the server that has them.
    async fn attempt(&self, place: Place, keys: &[&Key], work: Work<'_>) -> Result<Done, Error> {
        let _lanes = self.transactions.lanes(keys).await;
        let mut chase = self.topology.pursue(place);
        loop {
            let server = chase.server().await?;
            match self.attempt_at(&server, work).await {
                Ok(done) => return Ok(done),
                Err(missed) => chase.missed(missed).await?,
            }
        }
    }

    /// Repeats attempts until one succeeds, fails, or there were too many conflicts.
    async fn attempt_at(&self, server: &Server, work: Work<'_>) -> Result<Done, server::Missed> {
        let failed = server::Missed::Failed;
        let _place = server.connections.place().await.map_err(failed)?;
        let (mut whole, mut tried) = (Vec::new(), 0);
        while tried < TRIES {
            let mut own = server.take(Purpose::Decide).await.map_err(failed)?;
            let done = match work {
                Work::Admit(asks, keys) => {
                    self.try_admit(&mut own.connection, asks, keys, &whole).await.map(Done::Admitted)
                }
                Work::Settle(settlements) => {
                    self.try_settle(&mut own.connection, settlements, &whole).await.map(Done::Settled)
                }
            };
            match done {
                Ok(done) => {
                    server.put_back(own);
                    return Ok(done);
                }
                Err(Missed::Failed(error)) => {
                    let explained = explain(&error, &own.address);
                    // A slot may move away between WATCH and EXEC, which then does nothing.
                    let left = explained.fault() == Some(Fault::Cluster)
                        && error.kind() == ErrorKind::Server(ServerErrorKind::ExecAbort);
                    return Err(match redirect(&error).or_else(|| left.then_some(Redirect::Again)) {
                        // Dropping the connection ends its WATCH.
                        Some(redirect) => server::Missed::Redirected(redirect, explained),
                        None => {
                            server.drop_idle();
                            failed(explained)
                        }
                    });
                }
                Err(Missed::Wrong(error)) => return Err(failed(error)),
                // Each key is added once, so this ends.
                Err(Missed::Part(keys)) => whole.extend(keys),
                Err(Missed::Conflict) => tried += 1,
            }
            // The next user of the connection must not inherit the WATCH.
            if redis::cmd("UNWATCH").exec_async(&mut own.connection).await.is_ok() {
                server.put_back(own);
            }
            if tried > EAGER {
                tokio::time::sleep(Duration::from_millis(1 + u64::from(tried) % 7)).await;
            }
        }
        Err(failed(Error::store(
            Fault::Conflict,
            format!(
                "others changed the same keys {TRIES} times while this was decided: use scripts for hot keys"
            ),
        )))
    }

    async fn try_admit(
        &self,
        connection: &mut MultiplexedConnection,
        asks: &[Checks],
        keys: &[&Key],
        whole: &[usize],
    ) -> Result<BatchVerdicts, Missed> {
        let noted = |key: &Key| {
            let mut checks = asks.iter().filter(|ask| ask.id().is_some()).flat_map(Checks::checks);
            checks.any(|check| check.key == *key && Held::is_window(&check.quota))
        };
        let climbs = |key: &Key| {
            let mut checks = asks.iter().flat_map(Checks::checks);
            checks.any(|check| check.key == *key && check.quota.warm_up().is_some())
        };
        let wanted = |key: &Key| Wanted {
            warm: climbs(key).then(|| self.names.warm(key)),
            ..self.wanted(key, noted(key))
        };
        let wanted = keys.iter().map(|key| wanted(key)).collect();
        let (now, mut loaded) = load(connection, wanted, whole).await?;
        let places: HashMap<&Key, usize, foldhash::quality::RandomState> =
            keys.iter().enumerate().map(|(i, key)| (*key, i)).collect();
        for ask in asks {
            let Some(id) = ask.id() else { continue };
            for check in ask.checks() {
                loaded[places[&check.key]].find_id(connection, id, check.cost, &check.quota).await?;
            }
        }
        let mut slots: Vec<Option<Slot>> = loaded.iter().map(|_| None).collect();
        let mut readings = BatchVerdicts::new();
        for ask in asks {
            let indices: SmallVec<[usize; 4]> = ask.checks().iter().map(|c| places[&c.key]).collect();
            let mut open: Vec<Slot> = Vec::with_capacity(indices.len());
            for (check, &i) in ask.checks().iter().zip(&indices) {
                // A new state that recorded nothing has nothing to continue from, such as the level of another burst.
                let held = slots[i]
                    .take()
                    .filter(|slot| slot.state.suits(&check.quota) && !(slot.fresh && slot.recorded == 0));
                open.push(held.unwrap_or_else(|| Slot::open(&loaded[i], &check.quota, now)));
            }
            let reading = evaluate(ask, Micros::new(now), &mut Open(&mut open));
            let mut verdicts = reading.verdicts;
            for (((check, verdict), slot), &i) in
                ask.checks().iter().zip(&mut verdicts).zip(&mut open).zip(&indices)
            {
                slot.quota = check.quota;
                let recorded = slot.note_recorded();
                if verdict.outcome == Outcome::Charged {
                    let number = slot.number(ask.id(), check.cost, verdict.entry, recorded);
                    // An attempt is not settled, so it has no number.
                    if check.quota.count() == Count::Admitted {
                        verdict.entry.seq = number;
                    }
                }
                if verdict.retry_after > Micros::ZERO && slot.reaches_lump(verdict) {
                    return Err(Missed::Part(vec![i]));
                }
            }
            for (slot, &i) in open.into_iter().zip(&indices) {
                slots[i] = Some(slot);
            }
            readings.push(Verdicts { verdicts, ..reading });
        }
        let mut writes = Pipeline::new();
        writes.atomic();
        let mut read_only = Vec::new();
        for ((i, slot), loaded) in slots.iter().enumerate().zip(&loaded) {
            let Some(slot) = slot else { continue };
            let before = writes.len();
            if !slot.write(&mut writes, loaded, self.expiry) {
                return Err(Missed::Part(vec![i]));
            }
            if let (Some((climbing, until)), Some((name, _))) = (slot.climbs(loaded), &loaded.warm) {
                let ends = until.get().div_ceil(1_000) + WARM_BUFFER;
                writes.cmd("SET").arg(name).arg(climbing.write()).arg("PXAT").arg(ends);
            }
            if writes.len() == before && loaded.held.is_some() {
                read_only.push((slot, loaded));
            }
        }
        // Keys that were only read are touched too, so that no other transaction writes there later with an earlier
        // instant: writing transactions are in the order of their instants, on every key they evaluated.
        if !writes.is_empty() {
            for (slot, loaded) in read_only {
                slot.touch(&mut writes, loaded, self.expiry);
            }
        }
        commit(connection, writes).await?;
        Ok(readings)
    }

    async fn try_settle(
        &self,
        connection: &mut MultiplexedConnection,
        settlements: &[Settlement],
        whole: &[usize],
    ) -> Result<Receipt, Missed> {
        let wanted = settlements.iter().map(|settlement| self.wanted(&settlement.key, true)).collect();
        let (now, loaded) = load(connection, wanted, whole).await?;
        let mut writes = Pipeline::new();
        writes.atomic();
        let mut settled = Vec::new();
        for ((i, settlement), loaded) in settlements.iter().enumerate().zip(&loaded) {
            let Some(held) = &loaded.held else {
                settled.push(Settled::Gone);
                continue;
            };
            let quota = held.quota;
            let mut slot = Slot::open(loaded, &quota, now);
            slot.state.inspect(Micros::new(now));
            let Entry { at: made, seq, cost } = settlement.entry;
            let marker = note("settled:", &quota, made.get(), seq);
            let moved = note("moved:", &quota, made.get(), seq);
            let since = match loaded.noted_in().filter(|_| quota.is_held()) {
                Some(notes) => {
                    redis::cmd("ZSCORE").arg(notes).arg(&moved).query_async::<Option<f64>>(connection).await?
                }
                None => None,
            };
            // An extended admission counts from its extension, and its number is not an ordinal of that instant.
            let settlement = &match since {
                Some(since) => Settlement {
                    entry: Entry { at: Micros::new(since as u64), seq: NAMED, cost },
                    ..settlement.clone()
                },
                None => settlement.clone(),
            };
            let mut look = Pipeline::new();
            let (name, instant) = (&loaded.name, settlement.entry.at.get());
            // Without notes there is no such member in the key itself either.
            look.cmd("ZSCORE").arg(loaded.noted_in().unwrap_or(name)).arg(&marker);
            look.cmd("ZRANGEBYSCORE").arg(name).arg(instant).arg(instant).arg("LIMIT").arg(0).arg(64);
            // Without a note, a request with an id was never admitted under this number.
            let id = if seq >= NAMED { id_note_of(seq) } else { String::new() };
            look.cmd("ZSCORE").arg(loaded.noted_in().unwrap_or(name)).arg(id);
            look.cmd("ZSCORE").arg(loaded.noted_in().unwrap_or(name)).arg("heal:newest");
            let (noted, found, named, healed): (Option<f64>, Vec<String>, Option<f64>, Option<f64>) =
                look.query_async(connection).await?;
            let is_made = since.is_some()
                || seq < NAMED
                || named == Some(made.get() as f64)
                || healed.is_some_and(|newest| newest >= instant as f64)
                || Held::is_window(&quota) && found.iter().any(|name| name.contains('-'));
            let extends = settlement.correction == Correction::Extend;
            let outcome = if made.get() > slot.at && quota.is_held() || !slot.counts(held, &settlement.entry)
            {
                Settled::Gone
            } else if noted == Some(instant as f64) {
                Settled::Already
            } else if !is_made || extends && (!quota.is_held() || cost == 0) {
                Settled::Gone
            } else if extends && instant == slot.at {
                Settled::Done
            } else {
                let entry = found.first().and_then(|found| HeldEntry::read(found, instant as f64));
                let newest = match entry.as_ref().filter(|_| slot.takes_newest(held, settlement)) {
                    Some(entry) => newest_besides(connection, name, entry).await?,
                    None => 0,
                };
                if slot.amend(held, settlement, entry, newest) { Settled::Done } else { Settled::Gone }
            };
            settled.push(outcome);
            if slot.amended.is_some() && extends {
                slot.marks.push((slot.at, moved));
            } else if slot.amended.is_some() {
                slot.marks.push((instant, marker));
                if settlement.correction == Correction::Cost(0) && seq >= NAMED {
                    slot.marks.push((made.get(), note("void:", &quota, made.get(), seq)));
                }
            }
            if !slot.write(&mut writes, loaded, self.expiry) {
                return Err(Missed::Part(vec![i]));
            }
        }
        commit(connection, writes).await?;
        let done = settlements.iter().zip(&settled).filter(|(_, settled)| **settled == Settled::Done);
        let freed = done.map(|(settlement, _)| settlement).filter(|settlement| settlement.frees());
        let mut told = Pipeline::new();
        self.add_freed(&mut told, freed.map(|settlement| &settlement.key));
        if !told.is_empty() {
            // If this user may not publish, other nodes are not notified.
            let _ = told.exec_async(connection).await;
        }
        Ok(Receipt { at: Micros::new(now), settled })
    }

    fn wanted(&self, key: &Key, noted: bool) -> Wanted {
        Wanted { name: self.names.main(key), notes: self.names.notes(key), noted, warm: None }
    }
}

impl Transactions {
    async fn lanes(&self, keys: &[&Key]) -> Vec<MutexGuard<'_, ()>> {
        let mut lanes: Vec<usize> = keys.iter().map(|key| key.hash() as usize % LANES).collect();
        lanes.sort_unstable();
        lanes.dedup();
        let mut held = Vec::with_capacity(lanes.len());
        for lane in lanes {
            held.push(self.lanes[lane].lock().await);
        }
        held
    }
}

/// Commits if no other client changed a watched key; also when there is nothing to write, to find out.
async fn commit(connection: &mut MultiplexedConnection, mut writes: Pipeline) -> Result<(), Missed> {
    if writes.is_empty() {
        writes.cmd("PING");
    }
    match writes.query_async::<Value>(connection).await? {
        Value::Nil => Err(Missed::Conflict),
        _ => Ok(()),
    }
}
