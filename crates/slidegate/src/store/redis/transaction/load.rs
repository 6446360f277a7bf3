//! Reading of watched keys.

use std::collections::HashMap;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, Value};

use super::AttemptError;
use crate::store::redis::error_map::NOT_OURS;
use crate::store::redis::zset_snapshot::{ZsetEntry, ZsetSnapshot};
use crate::store::redis::{bad_reply, layout};
use crate::{Entry, Error, Fault, Micros, Quota, RequestId};

/// Number of members in the first read of a window.
const FIRST_PAGE: usize = 64;

/// Number of members that one command reads if the whole key is read. The command takes Redis a few milliseconds at
/// most.
const PAGE: usize = 4_000;

type Members = Vec<(String, f64)>;

/// One key, as it was read.
pub(super) struct LoadedKey {
    pub(super) name: String,
    /// Name of the key with the notes of a window.
    pub(super) notes: String,
    pub(super) snapshot: Option<ZsetSnapshot>,
    /// True if the whole key was read.
    pub(super) read_whole: bool,
    /// Lowest score above zero: the instant of the oldest entry, or of the oldest note of a counter.
    pub(super) oldest: Option<u64>,
    /// Earlier admissions of the requests in the batch: id, entry.
    pub(super) ids: Vec<(RequestId, Entry)>,
    /// Refunded requests by note: the instant of the admission, and how often the request was refunded at that instant.
    pub(super) refunded: HashMap<String, (u64, u64)>,
    /// Name and contents of the warm-up record, if its limit warms up.
    pub(super) warm: Option<(String, Option<WarmUpRecord>)>,
}

/// Warm-up record of a key: see `lua/warm.lua`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WarmUpRecord {
    pub(super) since: Micros,
    pub(super) last: Micros,
    pub(super) quota_tag: String,
}

impl WarmUpRecord {
    fn read(text: &str) -> Option<Self> {
        let mut words = text.splitn(3, ' ');
        let mut instant = || words.next()?.parse().ok().map(Micros::new);
        let (since, last) = (instant()?, instant()?);
        Some(WarmUpRecord { since, last, quota_tag: words.next()?.to_owned() })
    }

    pub(super) fn write(&self) -> String {
        format!("{} {} {}", self.since.get(), self.last.get(), self.quota_tag)
    }
}

/// Parts to read of one key.
pub(super) struct LoadRequest {
    pub(super) name: String,
    pub(super) notes: String,
    /// True if its notes are needed.
    pub(super) noted: bool,
    /// Name of the warm-up record, if its limit warms up.
    pub(super) warm: Option<String>,
}

/// Watches the keys, and reads the time and the requested parts of each key.
pub(super) async fn load(
    connection: &mut MultiplexedConnection,
    requests: Vec<LoadRequest>,
    read_whole: &[usize],
) -> Result<(u64, Vec<LoadedKey>), AttemptError> {
    let mut read = Pipeline::new();
    read.cmd("WATCH");
    for LoadRequest { name, notes, noted, warm } in &requests {
        read.arg(name).arg(noted.then_some(notes)).arg(warm);
    }
    read.cmd("TIME");
    for (i, LoadRequest { name, .. }) in requests.iter().enumerate() {
        let page = if read_whole.contains(&i) { PAGE } else { FIRST_PAGE };
        read.cmd("ZRANGE").arg(name).arg(0).arg(page - 1).arg("WITHSCORES");
    }
    for warm in requests.iter().filter_map(|request| request.warm.as_ref()) {
        read.cmd("GET").arg(warm);
    }
    let values: Vec<Value> = read.query_async(connection).await?;
    let mut values = values.into_iter().skip(1);
    let time: Option<(u64, u64)> = values.next().and_then(|time| redis::from_redis_value(time).ok());
    let (seconds, micros) = time.ok_or_else(|| AttemptError::Invalid(bad_reply()))?;
    let now = seconds.saturating_mul(1_000_000).saturating_add(micros);
    let mut loaded = Vec::with_capacity(requests.len());
    let mut incomplete = Vec::new();
    let counts: Vec<Value> = values.by_ref().take(requests.len()).collect();
    for ((i, request), value) in requests.into_iter().enumerate().zip(counts) {
        let mut members: Members =
            redis::from_redis_value(value).map_err(|_| AttemptError::Invalid(bad_reply()))?;
        if read_whole.contains(&i) {
            read_rest(connection, &request.name, &mut members).await?;
        }
        let snapshot = ZsetSnapshot::read(&members);
        if snapshot.is_none() && !members.is_empty() {
            return Err(AttemptError::Invalid(Error::store(Fault::WrongType, NOT_OURS)));
        }
        let all = read_whole.contains(&i) || members.len() < FIRST_PAGE;
        if let (Some(snapshot), false) = (&snapshot, all) {
            let at = now.max(snapshot.last);
            let expired =
                members.last().is_some_and(|(_, score)| *score as u64 + snapshot.quota.window().get() <= at);
            let sliced = snapshot.quota.algorithm().is_sliced();
            if expired || sliced || at == snapshot.last {
                incomplete.push(i);
            }
        }
        let oldest = members.iter().find(|(_, score)| *score > 0.0).map(|(_, score)| *score as u64);
        let warm = request.warm.map(|warm| {
            let text: Option<String> = values.next().and_then(|text| redis::from_redis_value(text).ok());
            (warm, text.and_then(|text| WarmUpRecord::read(&text)))
        });
        loaded.push(LoadedKey {
            warm,
            name: request.name,
            notes: request.notes,
            snapshot,
            read_whole: all,
            oldest,
            ids: Vec::new(),
            refunded: HashMap::new(),
        });
    }
    if !incomplete.is_empty() {
        return Err(AttemptError::NeedsAllEntries(incomplete));
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

impl LoadedKey {
    /// Returns the key with the notes on the stored count; none if it has no notes.
    pub(super) fn notes_key(&self) -> Option<&str> {
        let snapshot = self.snapshot.as_ref()?;
        match snapshot.quota.algorithm().has_entries() {
            true => snapshot.has_notes.then_some(&self.notes),
            false => Some(&self.name),
        }
    }

    /// Looks up whether a request was admitted, as `find_admission` in `lua/notes.lua` does.
    pub(super) async fn find_id(
        &mut self,
        connection: &mut MultiplexedConnection,
        id: &RequestId,
        cost: u64,
        quota: &Quota,
    ) -> Result<(), AttemptError> {
        let Some(snapshot) = &self.snapshot else { return Ok(()) };
        let name = layout::id_note(id, cost);
        if !same_counter(&snapshot.quota, quota)
            || self.ids.iter().any(|(known, e)| known == id && e.cost == cost)
        {
            return Ok(());
        }
        let Some(key) = self.notes_key() else { return Ok(()) };
        let mut score = async |member: &str| -> Result<Option<u64>, RedisError> {
            let found: Option<f64> =
                redis::cmd("ZSCORE").arg(key).arg(member).query_async(connection).await?;
            Ok(found.map(|score| score as u64))
        };
        let Some(at) = score(&name).await? else { return Ok(()) };
        let digits = layout::id_digits(id, cost) * 100;
        let mut k = 0;
        while score(&note_name("void:", quota, at, digits + k)).await? == Some(at) {
            k += 1;
            if k > 99 || score(&format!("{name}/{k}")).await? != Some(at) {
                self.refunded.insert(name, (at, k.min(99)));
                return Ok(());
            }
        }
        self.ids.push((id.clone(), Entry { at: Micros::new(at), seq: digits + k, cost }));
        Ok(())
    }
}

/// Returns true if a count that is stored with one quota continues with the requested quota, and does not start anew.
pub(super) fn same_counter(stored: &Quota, requested: &Quota) -> bool {
    stored.algorithm().refills() && requested.algorithm().refills()
        || layout::quota_tag(stored) == layout::quota_tag(requested)
}

pub(super) fn note_name(what: &str, quota: &Quota, at: u64, seq: u64) -> String {
    format!("{what}{:x}.{seq}", at % layout::modulus(quota))
}

/// Returns the instant of the newest entry that counts, besides `entry`; 0 if there is no other entry.
pub(super) async fn newest_besides(
    connection: &mut MultiplexedConnection,
    name: &str,
    entry: &ZsetEntry,
) -> Result<u64, RedisError> {
    let (mut start, mut size) = (0, 2);
    loop {
        let mut command = redis::cmd("ZREVRANGEBYSCORE");
        command.arg(name).arg("+inf").arg(1).arg("WITHSCORES").arg("LIMIT").arg(start).arg(size);
        let found: Members = command.query_async(connection).await?;
        let mut entries = found.iter().filter_map(|(name, score)| ZsetEntry::read(name, *score));
        if let Some(other) = entries.find(|other| other.cost > 0 && other.name != entry.name) {
            return Ok(other.at);
        }
        if found.len() < size {
            return Ok(0);
        }
        (start, size) = (start + size, 64);
    }
}
