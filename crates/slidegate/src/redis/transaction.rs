//! `mode: transaction`: the same decisions without scripts, for servers and proxies that do not run them.
//!
//! WATCH the keys, read what is needed of them into a [`State`], let the pure algorithm judge, and write what
//! has changed in MULTI / EXEC. If another client changed a key meanwhile, EXEC writes nothing and it is all
//! done again, a bounded number of times; callers of one key in one process wait for each other instead.
//!
//! The layout is that of the scripts, so both can work on the same keys. Of a window only the oldest entries are
//! read; the others stand together at the newest instant, and if a decision depends on one of them, all are read.
//!
//! A refusal writes nothing, so it may come before an admission that is dated earlier but not yet written.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};
use smallvec::SmallVec;
use tokio::sync::MutexGuard;

use super::connection::Connections;
use super::fault::explain;
use super::held::{Held, HeldEntry};
use super::layout;
use super::options::Expiry;
use super::{Inner, bad_reply};
use crate::algorithm::{Counted, Kept};
use crate::judge::{States, judge};
use crate::quota::MAX_TOTAL;
use crate::{
    Algorithm, Ask, Encoding, Entry, Error, Fault, Key, Micros, Outcome, Quota, Reading, Readings, Receipt,
    RequestId, Settled, Settlement, State,
};

/// How often a decision is tried anew when others change its keys.
const TRIES: u32 = 100;

/// Tries that follow at once; later ones wait a little.
const EAGER: u32 = 4;

/// Members read of a window at first.
const SOME: usize = 64;

/// Connections that are kept for the next transaction.
const MAX_IDLE: usize = 64;

/// Callers of one key in one process go one after the other.
const LANES: usize = 64;

type Members = Vec<(String, f64)>;

/// What transactions need besides the store.
pub(super) struct Transactions {
    /// A transaction has a connection to itself.
    idle: Mutex<Vec<MultiplexedConnection>>,
    lanes: [tokio::sync::Mutex<()>; LANES],
}

impl Default for Transactions {
    fn default() -> Self {
        Transactions { idle: Mutex::default(), lanes: std::array::from_fn(|_| tokio::sync::Mutex::new(())) }
    }
}

/// What is tried.
#[derive(Clone, Copy)]
enum Work<'a> {
    Admit(&'a [Ask], &'a [&'a Key]),
    Settle(&'a [Settlement]),
}

/// What came of it.
enum Done {
    Admitted(Readings),
    Settled(Receipt),
}

/// Why a try did not succeed.
enum Missed {
    /// Another client was quicker.
    Conflict,
    /// All of these keys must be read.
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
    pub(super) async fn admit_watched(&self, asks: &[Ask]) -> Result<Readings, Error> {
        let checks = || asks.iter().flat_map(Ask::checks);
        if checks().any(|check| check.encoding == Encoding::Packed) {
            return Err(Error::invalid("`encoding: packed` needs scripts: not with redis.mode transaction"));
        }
        let mut keys: Vec<&Key> = Vec::new();
        for check in checks() {
            if !keys.contains(&&check.key) {
                keys.push(&check.key);
            }
        }
        match self.attempt(&keys, Work::Admit(asks, &keys)).await? {
            Done::Admitted(readings) => Ok(readings),
            Done::Settled(_) => Err(bad_reply()),
        }
    }

    pub(super) async fn settle_watched(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        let mut receipt = Receipt { at: Micros::ZERO, settled: Vec::new() };
        let mut rest = settlements;
        while !rest.is_empty() {
            // One transaction for as many as have different keys.
            let twice = (1..rest.len()).find(|&i| rest[..i].iter().any(|other| other.key == rest[i].key));
            let (now, later) = rest.split_at(twice.unwrap_or(rest.len()));
            let keys: Vec<&Key> = now.iter().map(|settlement| &settlement.key).collect();
            let Done::Settled(part) = self.attempt(&keys, Work::Settle(now)).await? else {
                return Err(bad_reply());
            };
            receipt.at = part.at;
            receipt.settled.extend(part.settled);
            rest = later;
        }
        Ok(receipt)
    }

    /// Tries until it succeeds, fails, or has been beaten too often.
    async fn attempt(&self, keys: &[&Key], work: Work<'_>) -> Result<Done, Error> {
        let _place = self.connections.place().await?;
        let _lanes = self.transactions.lanes(keys).await;
        let (mut whole, mut tried) = (Vec::new(), 0);
        while tried < TRIES {
            let mut connection = self.transactions.take(&self.connections).await?;
            let done = match work {
                Work::Admit(asks, keys) => {
                    self.try_admit(&mut connection, asks, keys, &whole).await.map(Done::Admitted)
                }
                Work::Settle(settlements) => {
                    self.try_settle(&mut connection, settlements, &whole).await.map(Done::Settled)
                }
            };
            match done {
                Ok(done) => {
                    self.transactions.give_back(connection);
                    return Ok(done);
                }
                Err(Missed::Failed(error)) => {
                    // If one is broken, so are those that have waited.
                    self.transactions.idle.lock().clear();
                    return Err(explain(&error, self.connections.address()));
                }
                Err(Missed::Wrong(error)) => return Err(error),
                // Each key is added once, so this ends.
                Err(Missed::Part(keys)) => whole.extend(keys),
                Err(Missed::Conflict) => tried += 1,
            }
            // What was watched is no concern of the next one's.
            if redis::cmd("UNWATCH").exec_async(&mut connection).await.is_ok() {
                self.transactions.give_back(connection);
            }
            if tried > EAGER {
                tokio::time::sleep(Duration::from_millis(1 + u64::from(tried) % 7)).await;
            }
        }
        Err(Error::store(
            Fault::Conflict,
            format!(
                "others changed the same keys {TRIES} times while this was decided: use scripts for hot keys"
            ),
        ))
    }

    async fn try_admit(
        &self,
        connection: &mut MultiplexedConnection,
        asks: &[Ask],
        keys: &[&Key],
        whole: &[usize],
    ) -> Result<Readings, Missed> {
        let names: Vec<String> = keys.iter().map(|key| self.names.main(key)).collect();
        let (now, mut loaded) = load(connection, &names, whole).await?;
        let places: HashMap<&Key, usize, foldhash::quality::RandomState> =
            keys.iter().enumerate().map(|(i, key)| (*key, i)).collect();
        for ask in asks {
            let Some(id) = ask.id() else { continue };
            for check in ask.checks() {
                loaded[places[&check.key]].find_id(connection, id, check.cost, &check.quota).await?;
            }
        }
        let mut slots: Vec<Option<Slot>> = loaded.iter().map(|_| None).collect();
        let mut readings = Readings::new();
        for ask in asks {
            let indices: SmallVec<[usize; 4]> = ask.checks().iter().map(|c| places[&c.key]).collect();
            let mut open: Vec<Slot> = Vec::with_capacity(indices.len());
            for (check, &i) in ask.checks().iter().zip(&indices) {
                let held = slots[i].take().filter(|slot| slot.state.suits(&check.quota));
                open.push(held.unwrap_or_else(|| Slot::open(&loaded[i], &check.quota, now)));
            }
            let reading = judge(ask, Micros::new(now), &mut Open(&mut open));
            let mut verdicts = reading.verdicts;
            for (((check, verdict), slot), &i) in
                ask.checks().iter().zip(&mut verdicts).zip(&mut open).zip(&indices)
            {
                slot.quota = check.quota;
                let recorded = slot.note_recorded();
                if verdict.outcome == Outcome::Charged {
                    verdict.entry.seq = slot.number(ask.id(), check.cost, verdict.entry, recorded);
                }
                if verdict.retry_after > Micros::ZERO && slot.reaches_lump(verdict.retry_after) {
                    return Err(Missed::Part(vec![i]));
                }
            }
            for (slot, &i) in open.into_iter().zip(&indices) {
                slots[i] = Some(slot);
            }
            readings.push(Reading { at: reading.at, verdicts });
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
            if writes.len() == before && loaded.held.is_some() {
                read_only.push((slot, loaded));
            }
        }
        // What it read is touched too, so that nobody writes there later with an earlier instant: those that
        // write are in the order of their instants, on every key they were judged by.
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
        let names: Vec<String> = settlements.iter().map(|s| self.names.main(&s.key)).collect();
        let (now, loaded) = load(connection, &names, whole).await?;
        let mut writes = Pipeline::new();
        writes.atomic();
        let mut settled = Vec::new();
        for (((i, settlement), name), loaded) in settlements.iter().enumerate().zip(&names).zip(&loaded) {
            let Some(held) = &loaded.held else {
                settled.push(Settled::Gone);
                continue;
            };
            let quota = held.quota;
            let mut slot = Slot::open(loaded, &quota, now);
            slot.state.inspect(Micros::new(now));
            let marker = note("settled:", &quota, settlement.entry.at.get(), settlement.entry.seq);
            let mut look = Pipeline::new();
            look.cmd("ZSCORE").arg(name).arg(&marker);
            let instant = settlement.entry.at.get();
            look.cmd("ZRANGEBYSCORE").arg(name).arg(instant).arg(instant).arg("LIMIT").arg(0).arg(1);
            let (noted, found): (Option<f64>, Vec<String>) = look.query_async(connection).await?;
            let outcome = if !slot.counts(held, &settlement.entry) {
                Settled::Gone
            } else if noted == Some(instant as f64) {
                Settled::Already
            } else {
                let entry = found.first().and_then(|found| HeldEntry::read(found, instant as f64));
                let below = match slot.needs_below(held, settlement) {
                    true => newest_below(connection, name, instant).await?,
                    false => 0,
                };
                if slot.amend(held, settlement, entry, below) { Settled::Done } else { Settled::Gone }
            };
            if outcome == Settled::Done {
                slot.marks.push((instant, marker));
                if settlement.permits == 0 && settlement.entry.seq >= NAMED {
                    slot.marks.push((instant, note("void:", &quota, instant, settlement.entry.seq)));
                }
            }
            settled.push(outcome);
            if !slot.write(&mut writes, loaded, self.expiry) {
                return Err(Missed::Part(vec![i]));
            }
        }
        commit(connection, writes).await?;
        Ok(Receipt { at: Micros::new(now), settled })
    }
}

/// Numbers from here on are made from request ids: see `lua/notes.lua`.
const NAMED: u64 = 1_000_000_000_000_000_000;

impl Transactions {
    async fn take(&self, connections: &Connections) -> Result<MultiplexedConnection, Error> {
        let idle = self.idle.lock().pop();
        match idle {
            Some(connection) => Ok(connection),
            None => connections.own().await,
        }
    }

    fn give_back(&self, connection: MultiplexedConnection) {
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push(connection);
        }
    }

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

/// One key, as it was read.
struct Loaded {
    name: String,
    held: Option<Held>,
    /// Whether all of it was read.
    whole: bool,
    /// The lowest score above zero: the oldest entry or note.
    oldest: Option<u64>,
    /// Admissions of the requests that are asked about: id, entry.
    ids: Vec<(RequestId, Entry)>,
    /// Requests that were refunded: when, and how often in that instant.
    void: HashMap<String, (u64, u64)>,
}

/// Watches the keys, reads the time, and what is needed of each key.
async fn load(
    connection: &mut MultiplexedConnection,
    names: &[String],
    whole: &[usize],
) -> Result<(u64, Vec<Loaded>), Missed> {
    let mut read = Pipeline::new();
    read.cmd("WATCH").arg(names).cmd("TIME");
    for (i, name) in names.iter().enumerate() {
        let last = if whole.contains(&i) { -1 } else { SOME as i64 - 1 };
        read.cmd("ZRANGE").arg(name).arg(0).arg(last).arg("WITHSCORES");
    }
    let values: Vec<Value> = read.query_async(connection).await?;
    let mut values = values.into_iter().skip(1);
    let time: Option<(u64, u64)> = values.next().and_then(|time| redis::from_redis_value(time).ok());
    let (seconds, micros) = time.ok_or_else(|| Missed::Wrong(bad_reply()))?;
    let now = seconds * 1_000_000 + micros;
    let mut loaded = Vec::with_capacity(names.len());
    let mut parts = Vec::new();
    for (i, value) in values.enumerate() {
        let members: Members = redis::from_redis_value(value).map_err(|_| Missed::Wrong(bad_reply()))?;
        let held = Held::read(&members);
        if held.is_none() && !members.is_empty() {
            return Err(Missed::Wrong(foreign()));
        }
        let all = whole.contains(&i) || members.len() < SOME;
        if let (Some(held), false) = (&held, all) {
            let at = now.max(held.last);
            let expired =
                members.last().is_some_and(|(_, score)| *score as u64 + held.quota.window().get() <= at);
            let sliced = matches!(held.quota.algorithm(), Algorithm::TimeSlice { .. });
            if expired || sliced || at == held.last {
                parts.push(i);
            }
        }
        let oldest = members.iter().find(|(_, score)| *score > 0.0).map(|(_, score)| *score as u64);
        loaded.push(Loaded {
            name: names[i].clone(),
            held,
            whole: all,
            oldest,
            ids: Vec::new(),
            void: HashMap::new(),
        });
    }
    if !parts.is_empty() {
        return Err(Missed::Part(parts));
    }
    Ok((now, loaded))
}

fn foreign() -> Error {
    Error::store(
        Fault::WrongType,
        "something else is stored under one of our keys: delete it, or set another redis.prefix",
    )
}

impl Loaded {
    /// Looks up whether a request was admitted: `known` in `lua/notes.lua`.
    async fn find_id(
        &mut self,
        connection: &mut MultiplexedConnection,
        id: &RequestId,
        cost: u64,
        quota: &Quota,
    ) -> Result<(), Missed> {
        let Some(held) = &self.held else { return Ok(()) };
        let name = layout::id_note(id, cost);
        if !same_shape(&held.quota, quota) || self.ids.iter().any(|(known, e)| known == id && e.cost == cost)
        {
            return Ok(());
        }
        let key = &self.name;
        let mut score = async |member: &str| -> Result<Option<u64>, RedisError> {
            let found: Option<f64> =
                redis::cmd("ZSCORE").arg(key).arg(member).query_async(connection).await?;
            Ok(found.map(|score| score as u64))
        };
        let Some(at) = score(&name).await? else { return Ok(()) };
        let digits = layout::digits(id, cost) * 100;
        let mut k = 0;
        while score(&note("void:", quota, at, digits + k)).await? == Some(at) {
            k += 1;
            if k > 99 || score(&format!("{name}/{k}")).await? != Some(at) {
                self.void.insert(name, (at, k.min(99)));
                return Ok(());
            }
        }
        self.ids.push((id.clone(), Entry { at: Micros::new(at), seq: digits + k, cost }));
        Ok(())
    }
}

/// Whether a key that counts by one quota goes on with the other.
fn same_shape(held: &Quota, asked: &Quota) -> bool {
    let bucket = |quota: &Quota| matches!(quota.algorithm(), Algorithm::TokenBucket { .. });
    bucket(held) && bucket(asked) || layout::shape(held) == layout::shape(asked)
}

fn note(what: &str, quota: &Quota, at: u64, seq: u64) -> String {
    format!("{what}{:x}.{seq}", at % layout::modulus(quota))
}

/// The newest entry that counts below an instant; 0 if there is none.
async fn newest_below(
    connection: &mut MultiplexedConnection,
    name: &str,
    at: u64,
) -> Result<u64, RedisError> {
    let (mut start, mut size) = (0, 16);
    loop {
        let mut command = redis::cmd("ZREVRANGEBYSCORE");
        command.arg(name).arg(format!("({at}")).arg(1).arg("WITHSCORES").arg("LIMIT").arg(start).arg(size);
        let found: Members = command.query_async(connection).await?;
        let entries = found.iter().filter_map(|(name, score)| HeldEntry::read(name, *score));
        if let Some(entry) = entries.into_iter().find(|entry| entry.cost > 0) {
            return Ok(entry.at);
        }
        if found.len() < size {
            return Ok(0);
        }
        (start, size) = (start + size, 512);
    }
}

/// Writes if nobody else has; also when there is nothing to write, to know that nobody has.
async fn commit(connection: &mut MultiplexedConnection, mut writes: Pipeline) -> Result<(), Missed> {
    if writes.is_empty() {
        writes.cmd("PING");
    }
    match writes.query_async::<Value>(connection).await? {
        Value::Nil => Err(Missed::Conflict),
        _ => Ok(()),
    }
}

/// One key while a batch is judged.
struct Slot {
    state: State,
    /// The quota it was last judged by.
    quota: Quota,
    /// Nothing that was held counts.
    fresh: bool,
    /// Permits that were not read one by one, all put at the newest instant.
    lump: Option<(u64, u64)>,
    /// What is recorded at the present instant already: its entry.
    held_entry: Option<HeldEntry>,
    /// The number of the next admission without an id.
    next: u64,
    /// What was recorded when last looked at.
    recorded: u64,
    /// From the state's own numbers to those that are given out.
    numbers: HashMap<u64, u64>,
    /// Notes to write.
    marks: Vec<(u64, String)>,
    void: HashMap<String, (u64, u64)>,
    /// The instant for this key.
    at: u64,
    /// What a settlement changed.
    amended: Option<Amended>,
}

/// What a settlement made of a key.
struct Amended {
    /// Permits in use; of a bucket, units missing.
    used: u64,
    /// The entry as it was, and what it costs now.
    entry: Option<(HeldEntry, u64)>,
    /// The newest entry that is left, if that was taken away.
    newest: Option<u64>,
}

/// The states of one ask.
struct Open<'s>(&'s mut [Slot]);

impl States for Open<'_> {
    fn state(&mut self, i: usize) -> &mut State {
        &mut self.0[i].state
    }
}

impl Slot {
    fn open(loaded: &Loaded, quota: &Quota, now: u64) -> Self {
        let held = loaded.held.as_ref().filter(|held| same_shape(&held.quota, quota));
        let Some(held) = held else {
            let next = match quota.algorithm() {
                Algorithm::SlidingWindow => 0,
                Algorithm::TimeSlice { .. } => now % quota.grain().get() * 1_000,
                _ => now,
            };
            return Slot::with(State::new(quota), *quota, true, now, next);
        };
        let at = now.max(held.last);
        let mut ids = loaded.ids.clone();
        ids.sort_by_key(|(_, entry)| entry.at);
        let mut entries: Vec<(Micros, u64)> =
            held.entries.iter().filter(|e| e.cost > 0).map(|e| (Micros::new(e.at), e.cost)).collect();
        let read: u64 = entries.iter().map(|(_, cost)| cost).sum();
        let unread = if loaded.whole { 0 } else { held.used.saturating_sub(read) };
        let lump = (unread > 0).then_some((held.newest, unread));
        entries.extend(lump.map(|(at, cost)| (Micros::new(at), cost)));
        let counted = match held.quota.algorithm() {
            Algorithm::SlidingWindow | Algorithm::TimeSlice { .. } => Counted::Entries(entries),
            Algorithm::FixedWindow => Counted::Used(held.used),
            Algorithm::TokenBucket { .. } => {
                Counted::Missing { units: held.used, gone: Micros::new(held.gone) }
            }
        };
        // A bucket is rolled by its old rate before it takes on the new one.
        let base = if let Algorithm::TokenBucket { .. } = quota.algorithm() { held.quota } else { *quota };
        let state = State::restored(&base, Kept { last: Micros::new(held.last), counted }, ids);
        let date = dated(quota, at);
        let held_entry = held.entries.iter().find(|entry| entry.at == date).cloned();
        let counts = held_entry.as_ref().map_or(0, |entry| entry.count);
        let next = match quota.algorithm() {
            // What was recorded now was refunded: its numbers must not come again.
            Algorithm::SlidingWindow if held_entry.is_none() && held.last == at => {
                now % 1_000_000_000 * 1_000
            }
            Algorithm::SlidingWindow => counts,
            Algorithm::TimeSlice { .. } => counts.max(at % quota.grain().get() * 1_000),
            _ => held.next,
        };
        let mut slot = Slot::with(state, *quota, false, at, next);
        slot.lump = lump;
        slot.held_entry = held_entry
            .filter(|_| matches!(quota.algorithm(), Algorithm::SlidingWindow | Algorithm::TimeSlice { .. }));
        slot.void = loaded.void.clone();
        slot
    }

    fn with(state: State, quota: Quota, fresh: bool, at: u64, next: u64) -> Self {
        Slot {
            state,
            quota,
            fresh,
            lump: None,
            held_entry: None,
            next,
            recorded: 0,
            numbers: HashMap::new(),
            marks: Vec::new(),
            void: HashMap::new(),
            at,
            amended: None,
        }
    }

    /// Whether the ask that was just judged was recorded here: the place of what it recorded, and the number.
    fn note_recorded(&mut self) -> Option<u64> {
        if self.state.recorded() == self.recorded {
            return None;
        }
        self.recorded = self.state.recorded();
        self.next += 1;
        Some(self.next - 1)
    }

    /// The number that is given out for an admission.
    fn number(&mut self, id: Option<&RequestId>, cost: u64, entry: Entry, place: Option<u64>) -> u64 {
        let Some(place) = place else {
            // It was admitted before, in this batch or earlier.
            return self.numbers.get(&entry.seq).copied().unwrap_or(entry.seq);
        };
        let Some(id) = id else { return place };
        let (at, note) = (entry.at.get(), layout::id_note(id, cost));
        let k = self.void.get(&note).filter(|(void, _)| *void == at).map_or(0, |(_, k)| *k);
        let number = layout::digits(id, cost) * 100 + k;
        self.numbers.insert(entry.seq, number);
        self.marks.push((at, if k == 0 { note } else { format!("{note}/{k}") }));
        number
    }

    /// Whether a wait was found at entries that were not read one by one.
    fn reaches_lump(&self, wait: Micros) -> bool {
        self.lump.is_some_and(|(at, _)| at + self.quota.window().get() == self.at + wait.get())
    }

    /// Whether an admission still counts here.
    fn counts(&self, held: &Held, entry: &Entry) -> bool {
        let window = held.quota.window().get();
        let at = entry.at.get();
        let (ahead, left) = match (held.quota.algorithm(), self.state.kept().counted) {
            (Algorithm::FixedWindow, _) => (0, (at - at % window).saturating_add(window) <= self.at),
            (_, Counted::Missing { gone, .. }) => (0, entry.at <= gone),
            (Algorithm::TimeSlice { .. }, _) => {
                (held.quota.grain().get() - 1, at.saturating_add(window) <= self.at)
            }
            _ => (0, at.saturating_add(window) <= self.at),
        };
        at <= self.at + ahead && !left
    }

    /// Whether a settlement takes away the newest entry, so that another is.
    fn needs_below(&self, held: &Held, settlement: &Settlement) -> bool {
        settlement.permits == 0 && settlement.entry.at.get() == held.newest
    }

    /// Corrects an admission; false if it was never made here, or nothing of its instant is left.
    fn amend(&mut self, held: &Held, settlement: &Settlement, found: Option<HeldEntry>, below: u64) -> bool {
        let Settlement { entry: Entry { at, seq, cost: from }, permits: to, .. } = *settlement;
        let named = seq >= NAMED;
        let now = |used: u64, most: u64| (used.saturating_sub(from) + to).min(most);
        let amended = match self.state.kept().counted {
            Counted::Entries(_) => {
                let Some(found) = found.filter(|found| found.cost > 0) else { return false };
                if let Algorithm::TimeSlice { .. } = held.quota.algorithm() {
                    let made = (at.get() + 1 + seq / 1_000).saturating_sub(held.quota.grain().get());
                    if !named && made < held.created {
                        return false;
                    }
                }
                if !named && seq >= found.count {
                    return false;
                }
                let others = self.state.used().saturating_sub(found.cost);
                let cost = now(found.cost, MAX_TOTAL - others);
                let cut = self.at.saturating_sub(held.quota.window().get());
                let newest =
                    (cost == 0 && found.at == held.newest).then_some(if below > cut { below } else { 0 });
                Amended { used: others + cost, entry: Some((found, cost)), newest }
            }
            _ if at.get() < held.created || !named && !(held.created..held.next).contains(&seq) => {
                return false;
            }
            Counted::Used(used) => Amended { used: now(used, MAX_TOTAL), entry: None, newest: None },
            Counted::Missing { units, .. } => {
                let (_, per) = held.quota.rate();
                let change = (i128::from(to) - i128::from(from)) * i128::from(per);
                let units = (i128::from(units) + change).clamp(0, i128::from(MAX_TOTAL));
                Amended { used: units.try_into().unwrap_or(MAX_TOTAL), entry: None, newest: None }
            }
        };
        self.amended = Some(amended);
        true
    }

    /// Adds what has changed; false if that cannot be said without reading all of the key.
    fn write(&self, writes: &mut Pipeline, loaded: &Loaded, expiry: Expiry) -> bool {
        let kept = self.state.kept();
        if self.fresh && self.recorded == 0 {
            return true;
        }
        match &kept.counted {
            Counted::Entries(entries) => self.write_window(writes, loaded, expiry, &kept, entries),
            Counted::Used(used) => {
                self.write_counter(writes, loaded, expiry, &kept, *used, None);
                true
            }
            Counted::Missing { units, gone } => {
                self.write_counter(writes, loaded, expiry, &kept, *units, Some(*gone));
                true
            }
        }
    }

    fn write_window(
        &self,
        writes: &mut Pipeline,
        loaded: &Loaded,
        expiry: Expiry,
        kept: &Kept,
        entries: &[(Micros, u64)],
    ) -> bool {
        let (name, quota) = (&loaded.name, &self.quota);
        let cost_at = |at: u64| {
            let found = entries.binary_search_by_key(&at, |(instant, _)| instant.get());
            found.ok().map_or(0, |i| entries[i].1)
        };
        if self.lump.is_some_and(|(at, cost)| cost_at(at) != cost) {
            return false;
        }
        let held = loaded.held.as_ref().filter(|_| !self.fresh);
        let cut = self.at.saturating_sub(quota.window().get());
        let date = dated(quota, self.at);
        let before: &[HeldEntry] = held.map_or(&[], |held| &held.entries);
        let gone = before.iter().any(|entry| entry.at <= cut && entry.cost > 0);
        let clipped: Vec<&HeldEntry> = before
            .iter()
            .filter(|entry| entry.at > cut && entry.at != date && cost_at(entry.at) < entry.cost)
            .collect();
        if self.recorded == 0 && !gone && clipped.is_empty() && self.amended.is_none() {
            return true;
        }
        let modulus = layout::modulus(quota);
        let mut add = redis::cmd("ZADD");
        add.arg(name);
        if self.fresh {
            writes.cmd("UNLINK").arg(name);
        } else if loaded.oldest.is_some_and(|oldest| oldest <= cut) {
            writes.cmd("ZREMRANGEBYSCORE").arg(name).arg(1).arg(cut);
        }
        for entry in &clipped {
            writes.cmd("ZREM").arg(name).arg(&entry.name);
            let cost = cost_at(entry.at);
            if cost > 0 {
                add.arg(entry.at).arg(HeldEntry::name(entry.at, modulus, cost, entry.count));
            }
        }
        let mut used = self.state.used();
        let mut newest = entries.last().map_or(0, |(at, _)| at.get());
        let mut new_cost = None;
        if self.recorded > 0 {
            let cost = cost_at(date);
            let new = HeldEntry::name(date, modulus, cost, self.next);
            if let Some(held) = self.held_entry.as_ref().filter(|held| held.name != new) {
                writes.cmd("ZREM").arg(name).arg(&held.name);
            }
            add.arg(date).arg(new);
            new_cost = Some(cost);
        }
        if let Some(Amended { used: amended, entry: Some((entry, cost)), newest: left }) = &self.amended {
            writes.cmd("ZREM").arg(name).arg(&entry.name);
            let sliced = matches!(quota.algorithm(), Algorithm::TimeSlice { .. });
            if *cost > 0 || entry.at == self.at || sliced {
                add.arg(entry.at).arg(HeldEntry::name(entry.at, modulus, *cost, entry.count));
            }
            (used, newest) = (*amended, left.unwrap_or(newest));
        }
        add.arg(negative(newest)).arg(layout::shape(quota));
        let last = kept.last.get();
        let sliced = matches!(quota.algorithm(), Algorithm::TimeSlice { .. });
        if last > newest || sliced || self.fresh {
            add.arg(negative(if last > newest || sliced { last } else { 0 })).arg("l");
        }
        let plain = self.marks.is_empty()
            && clipped.is_empty()
            && self.amended.is_none()
            && self.held_entry.is_none();
        let alike = match (held, new_cost) {
            _ if !plain => 0,
            (None, cost) => cost.unwrap_or(1),
            (Some(held), Some(cost)) if cost != held.alike => 0,
            (Some(held), _) => held.alike,
        };
        add.arg(negative(alike)).arg("m");
        let more = if alike == 1 { 0.0 } else { 0.25 } + if last > newest { 0.5 } else { 0.0 };
        add.arg(-(used as f64 + more)).arg("u");
        if sliced && self.fresh {
            add.arg(negative(self.at)).arg("c");
        }
        self.add_marks(&mut add);
        writes.add_command(add);
        let period = expiry.period(quota).get();
        let pushed = held.map_or(0, |held| held.newest);
        if self.recorded > 0 && (sliced || self.at - self.at % period > pushed) {
            self.expire(writes, name, expiry.life(quota).get());
        }
        true
    }

    fn write_counter(
        &self,
        writes: &mut Pipeline,
        loaded: &Loaded,
        expiry: Expiry,
        kept: &Kept,
        used: u64,
        gone: Option<Micros>,
    ) {
        let (name, quota) = (&loaded.name, &self.quota);
        let held = loaded.held.as_ref().filter(|_| !self.fresh);
        let shape = layout::shape(quota);
        let stored = held.map(|held| layout::shape(&held.quota));
        let reshaped = stored.as_ref() != Some(&shape);
        // Taking on another rate and the first one again may leave less than there was.
        let moved = held.is_some_and(|held| held.last != kept.last.get() || held.used != used);
        if self.recorded == 0 && !moved && !reshaped && self.amended.is_none() {
            return;
        }
        let used = self.amended.as_ref().map_or(used, |amended| amended.used);
        if self.fresh {
            writes.cmd("UNLINK").arg(name);
        } else if let Some(stored) = stored.filter(|_| reshaped) {
            writes.cmd("ZREM").arg(name).arg(stored);
        }
        if !self.marks.is_empty() && !self.fresh {
            let cut = gone.map_or(self.at - self.at % quota.window().get() - 1, Micros::get);
            writes.cmd("ZREMRANGEBYSCORE").arg(name).arg(1).arg(cut);
        }
        let mut add = redis::cmd("ZADD");
        let next = self.next;
        add.arg(name).arg(negative(used)).arg("u").arg(negative(kept.last.get())).arg(&shape);
        add.arg(negative(next)).arg("n");
        if self.fresh {
            add.arg(negative(self.at)).arg("c");
        }
        if let Some(gone) = gone {
            add.arg(negative(gone.get())).arg("g");
        }
        self.add_marks(&mut add);
        writes.add_command(add);
        let owed = match quota.algorithm() {
            Algorithm::TokenBucket { .. } => {
                used.div_ceil(quota.rate().0).saturating_sub(quota.horizon().get())
            }
            _ => 0,
        };
        let period = expiry.period(quota).get();
        let pushed = held.map_or(0, |held| held.last);
        if reshaped || owed > 0 || self.at - self.at % period > pushed {
            self.expire(writes, name, expiry.life(quota).get() + owed);
        }
    }

    /// Sets when a key expires that is not changed otherwise.
    fn touch(&self, writes: &mut Pipeline, loaded: &Loaded, expiry: Expiry) {
        let Some(held) = &loaded.held else { return };
        let owed = match held.quota.algorithm() {
            Algorithm::TokenBucket { .. } => held.used.div_ceil(held.quota.rate().0),
            _ => 0,
        };
        let life = expiry.life(&held.quota).max(expiry.life(&self.quota));
        self.expire(writes, &loaded.name, life.get() + owed);
    }

    fn add_marks(&self, add: &mut Cmd) {
        for (at, mark) in &self.marks {
            add.arg(*at).arg(mark);
        }
    }

    fn expire(&self, writes: &mut Pipeline, name: &str, life: u64) {
        writes.cmd("PEXPIREAT").arg(name).arg((self.at + life).div_ceil(1_000));
    }
}

/// The instant an admission is recorded under.
fn dated(quota: &Quota, at: u64) -> u64 {
    let grain = quota.grain().get();
    at - at % grain + grain - 1
}

/// A score below zero, where headers are.
fn negative(value: u64) -> String {
    format!("-{value}")
}
