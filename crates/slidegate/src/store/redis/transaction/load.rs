//! Reading of watched keys.

use std::collections::HashMap;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, Value};

use super::Missed;
use crate::store::redis::error_map::NOT_OURS;
use crate::store::redis::zset_snapshot::{Held, HeldEntry};
use crate::store::redis::{bad_reply, layout};
use crate::{Algorithm, Entry, Error, Fault, Micros, Quota, RequestId};

/// Members that are first read of a window.
const SOME: usize = 64;

/// Members that one command reads of a key that is read whole. It takes Redis a few milliseconds at most.
const PAGE: usize = 4_000;

type Members = Vec<(String, f64)>;

/// One key, as it was read.
pub(super) struct Loaded {
    pub(super) name: String,
    /// Name of the key with the notes of a window.
    pub(super) notes: String,
    pub(super) held: Option<Held>,
    /// True if all of it was read.
    pub(super) whole: bool,
    /// Lowest score above zero: the oldest entry, or note of a counter.
    pub(super) oldest: Option<u64>,
    /// Earlier admissions of the requests in the batch: id, entry.
    pub(super) ids: Vec<(RequestId, Entry)>,
    /// Requests that were refunded: when, and how often in that instant.
    pub(super) void: HashMap<String, (u64, u64)>,
    /// Name and contents of the warm-up record, if its limit warms up.
    pub(super) warm: Option<(String, Option<Climbing>)>,
}

/// Warm-up record of a key: see `lua/warm.lua`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Climbing {
    pub(super) since: Micros,
    pub(super) last: Micros,
    pub(super) shape: String,
}

impl Climbing {
    fn read(text: &str) -> Option<Self> {
        let mut words = text.splitn(3, ' ');
        let mut instant = || words.next()?.parse().ok().map(Micros::new);
        let (since, last) = (instant()?, instant()?);
        Some(Climbing { since, last, shape: words.next()?.to_owned() })
    }

    pub(super) fn write(&self) -> String {
        format!("{} {} {}", self.since.get(), self.last.get(), self.shape)
    }
}

/// Parts to read of one key.
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) notes: String,
    /// True if its notes are needed.
    pub(super) noted: bool,
    /// Name of the warm-up record, if its limit warms up.
    pub(super) warm: Option<String>,
}

/// Watches the keys, and reads the time and what is needed of each key.
pub(super) async fn load(
    connection: &mut MultiplexedConnection,
    wanted: Vec<Wanted>,
    whole: &[usize],
) -> Result<(u64, Vec<Loaded>), Missed> {
    let mut read = Pipeline::new();
    read.cmd("WATCH");
    for Wanted { name, notes, noted, warm } in &wanted {
        read.arg(name).arg(noted.then_some(notes)).arg(warm);
    }
    read.cmd("TIME");
    for (i, Wanted { name, .. }) in wanted.iter().enumerate() {
        let page = if whole.contains(&i) { PAGE } else { SOME };
        read.cmd("ZRANGE").arg(name).arg(0).arg(page - 1).arg("WITHSCORES");
    }
    for warm in wanted.iter().filter_map(|wanted| wanted.warm.as_ref()) {
        read.cmd("GET").arg(warm);
    }
    let values: Vec<Value> = read.query_async(connection).await?;
    let mut values = values.into_iter().skip(1);
    let time: Option<(u64, u64)> = values.next().and_then(|time| redis::from_redis_value(time).ok());
    let (seconds, micros) = time.ok_or_else(|| Missed::Wrong(bad_reply()))?;
    let now = seconds.saturating_mul(1_000_000).saturating_add(micros);
    let mut loaded = Vec::with_capacity(wanted.len());
    let mut parts = Vec::new();
    let counts: Vec<Value> = values.by_ref().take(wanted.len()).collect();
    for ((i, wanted), value) in wanted.into_iter().enumerate().zip(counts) {
        let mut members: Members = redis::from_redis_value(value).map_err(|_| Missed::Wrong(bad_reply()))?;
        if whole.contains(&i) {
            read_rest(connection, &wanted.name, &mut members).await?;
        }
        let held = Held::read(&members);
        if held.is_none() && !members.is_empty() {
            return Err(Missed::Wrong(Error::store(Fault::WrongType, NOT_OURS)));
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
        let warm = match wanted.warm {
            Some(warm) => {
                let text: Option<String> = values.next().and_then(|text| redis::from_redis_value(text).ok());
                Some((warm, text.and_then(|text| Climbing::read(&text))))
            }
            None => None,
        };
        loaded.push(Loaded {
            warm,
            name: wanted.name,
            notes: wanted.notes,
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

/// Reads the pages after the first. If another client changes the key meanwhile, EXEC writes nothing.
async fn read_rest(
    connection: &mut MultiplexedConnection,
    name: &str,
    members: &mut Members,
) -> Result<(), RedisError> {
    while members.len().is_multiple_of(PAGE) && !members.is_empty() {
        let start = members.len();
        let mut command = redis::cmd("ZRANGE");
        command.arg(name).arg(start).arg(start + PAGE - 1).arg("WITHSCORES");
        let page: Members = command.query_async(connection).await?;
        if page.is_empty() {
            break;
        }
        members.extend(page);
    }
    Ok(())
}

impl Loaded {
    /// Returns the key with the notes on the stored count; none if it has no notes.
    pub(super) fn noted_in(&self) -> Option<&str> {
        let held = self.held.as_ref()?;
        match Held::is_window(&held.quota) {
            true => held.has_notes.then_some(&self.notes),
            false => Some(&self.name),
        }
    }

    /// Looks up whether a request was admitted: `find_admission` in `lua/notes.lua`.
    pub(super) async fn find_id(
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
        let Some(key) = self.noted_in() else { return Ok(()) };
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

/// Returns true if a key that counts by one quota continues with the other.
pub(super) fn same_shape(held: &Quota, asked: &Quota) -> bool {
    let bucket = |quota: &Quota| matches!(quota.algorithm(), Algorithm::TokenBucket { .. });
    bucket(held) && bucket(asked) || layout::shape(held) == layout::shape(asked)
}

pub(super) fn note(what: &str, quota: &Quota, at: u64, seq: u64) -> String {
    format!("{what}{:x}.{seq}", at % layout::modulus(quota))
}

/// Returns the instant of the newest entry that counts, besides this one; 0 if there is none.
pub(super) async fn newest_besides(
    connection: &mut MultiplexedConnection,
    name: &str,
    entry: &HeldEntry,
) -> Result<u64, RedisError> {
    let (mut start, mut size) = (0, 2);
    loop {
        let mut command = redis::cmd("ZREVRANGEBYSCORE");
        command.arg(name).arg("+inf").arg(1).arg("WITHSCORES").arg("LIMIT").arg(start).arg(size);
        let found: Members = command.query_async(connection).await?;
        let mut entries = found.iter().filter_map(|(name, score)| HeldEntry::read(name, *score));
        if let Some(other) = entries.find(|other| other.cost > 0 && other.name != entry.name) {
            return Ok(other.at);
        }
        if found.len() < size {
            return Ok(0);
        }
        (start, size) = (start + size, 64);
    }
}
