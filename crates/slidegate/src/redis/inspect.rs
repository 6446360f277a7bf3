//! Looking without touching: what a key counts, which keys there are, and how the server is set up.

use redis::Pipeline;

use super::fault::CLUSTER;
use super::held::{Held, HeldEntry};
use super::{Inner, RedisStore, bad_reply};
use crate::{Algorithm, Counted, Error, Inspection, Key, MAX_INSPECTED, Micros, Quota};

/// Members of a sorted set and their scores.
type Members = Vec<(String, f64)>;

/// Members read at once.
const PAGE: usize = 10_000;

/// The length of a packed log's header, and the mark it starts with.
const HEADER: usize = 108;
const BUFFER: usize = 16;
const MARK: &[u8] = b"sgp1";

/// Some of the keys that are stored, and where to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys. One may come twice while keys are added and removed meanwhile.
    pub keys: Vec<Key>,
    /// Where the next page starts; none after the last.
    pub next: Option<u64>,
}

/// How the server is set up, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerReport {
    /// Such as `7.0.15`.
    pub version: String,
    /// What is wrong with its settings, in words.
    pub warnings: Vec<String>,
}

impl RedisStore {
    /// Some of the keys that are stored: from `cursor`, which is 0 at first. Looks at about `count` keys of the
    /// server, which may be none of ours.
    pub async fn keys(&self, cursor: u64, count: usize) -> Result<KeyPage, Error> {
        let inner = &*self.inner;
        let mut connection = inner.connections.get().await?;
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("MATCH").arg(inner.names.pattern()).arg("COUNT").arg(count.clamp(1, 10_000));
        let answer = connection.send(&command).await.map_err(|error| connection.explain(error))?;
        let (next, names): (u64, Vec<String>) = redis::from_redis_value(answer).map_err(|_| bad_reply())?;
        let mut keys: Vec<Key> = names.iter().filter_map(|name| inner.names.key_of(name)).collect();
        keys.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        keys.dedup();
        Ok(KeyPage { keys, next: (next != 0).then_some(next) })
    }

    /// Whether Redis answers.
    pub async fn ping(&self) -> Result<(), Error> {
        let mut connection = self.inner.connections.get().await?;
        let answer = connection.send(&redis::cmd("PING")).await;
        answer.map(|_| ()).map_err(|error| connection.explain(error))
    }

    /// How the server is set up, and what of that should be changed.
    pub async fn report(&self) -> Result<ServerReport, Error> {
        let mut connection = self.inner.connections.get().await?;
        let mut texts = Vec::new();
        for section in ["server", "memory", "cluster"] {
            let answer = connection.send(redis::cmd("INFO").arg(section)).await;
            let answer = answer.map_err(|error| connection.explain(error))?;
            texts.push(redis::from_redis_value::<String>(answer).map_err(|_| bad_reply())?);
        }
        let text = texts.concat();
        let field = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        let mut warnings = Vec::new();
        let policy = field("maxmemory_policy").unwrap_or("noeviction");
        if policy != "noeviction" && field("maxmemory").is_some_and(|bytes| bytes != "0") {
            warnings.push(format!(
                "maxmemory-policy is {policy}: when its memory is full Redis will evict counts, and what they \
                 counted is admitted again; set it to noeviction"
            ));
        }
        if field("cluster_enabled") == Some("1") {
            warnings.push(CLUSTER.to_owned());
        }
        let version = field("valkey_version").or(field("redis_version")).unwrap_or("unknown").to_owned();
        Ok(ServerReport { version, warnings })
    }
}

impl Inner {
    pub(super) async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        let (main, log) = (self.names.main(key), self.names.log(key));
        let mut members = Members::new();
        let mut connection = self.connections.get().await?;
        let mut pipeline = Pipeline::new();
        pipeline.atomic().cmd("TIME").cmd("ZRANGE").arg(&main).arg(0).arg(PAGE - 1).arg("WITHSCORES");
        pipeline.cmd("GET").arg(&log);
        let answer = connection.send_all(&pipeline).await.map_err(|error| connection.explain(error))?;
        let (time, page, packed): ((u64, u64), Members, Option<Vec<u8>>) =
            redis::from_redis_value(answer).map_err(|_| bad_reply())?;
        let now = time.0.saturating_mul(1_000_000).saturating_add(time.1);
        members.extend(page);
        let expired = |members: &[(String, f64)], held: &Held| {
            let cut = now.max(held.last).saturating_sub(held.quota.window().get()) as f64;
            members.last().is_some_and(|(_, score)| *score <= cut)
        };
        // A key that was idle may hold pages of what no longer counts.
        while members.len().is_multiple_of(PAGE)
            && Held::read(&members).is_some_and(|held| expired(&members, &held))
        {
            let start = members.len();
            let mut command = redis::cmd("ZRANGE");
            command.arg(&main).arg(start).arg(start + PAGE - 1).arg("WITHSCORES");
            let answer = connection.send(&command).await.map_err(|error| connection.explain(error))?;
            let page: Members = redis::from_redis_value(answer).map_err(|_| bad_reply())?;
            if page.is_empty() {
                break;
            }
            members.extend(page);
        }
        // A rule that changed its encoding has left both behind.
        let log = || packed.as_deref().and_then(read_log).and_then(|held| inspection(held, now));
        Ok(Held::read(&members).and_then(|held| inspection(held, now)).or_else(log))
    }
}

fn inspection(held: Held, now: u64) -> Option<Inspection> {
    let Held { quota, used, newest, entries, .. } = held;
    let last = held.last;
    let now = now.max(last);
    let window = quota.window().get();
    let (used, reset_after, entries) = match quota.algorithm() {
        Algorithm::SlidingWindow | Algorithm::TimeSlice { .. } => {
            let (gone, left): (Vec<_>, Vec<_>) =
                entries.into_iter().partition(|entry| entry.at.saturating_add(window) <= now);
            let gone: u64 = gone.iter().map(|entry| entry.cost).sum();
            let left = left.into_iter().map(|entry| (entry.at, entry.cost)).collect();
            (used.saturating_sub(gone), newest.saturating_add(window).saturating_sub(now), left)
        }
        Algorithm::FixedWindow => {
            let start = now - now % window;
            let used = if last < start { 0 } else { used };
            let entries = if used > 0 { vec![(start, used)] } else { Vec::new() };
            (used, start + window - now, entries)
        }
        Algorithm::TokenBucket { .. } => {
            let (rate, per) = quota.rate();
            let missing = used.saturating_sub((now - last).saturating_mul(rate));
            (missing.div_ceil(per), missing.div_ceil(rate), Vec::new())
        }
    };
    if used == 0 {
        return None;
    }
    let counted = entries.into_iter().filter(|(_, cost)| *cost > 0).map(|(at, cost)| Counted {
        at: Micros::new(at),
        cost,
        leaves_after: Micros::new((at + window).saturating_sub(now)),
    });
    Some(Inspection {
        at: Micros::new(now),
        used,
        reset_after: Micros::new(reset_after),
        entries: counted.take(MAX_INSPECTED).collect(),
    })
}

/// Reads a packed log; none if it is not one.
fn read_log(log: &[u8]) -> Option<Held> {
    let (header, slots) = log.split_at_checked(HEADER)?;
    let fields = header.strip_prefix(MARK)?.as_chunks::<8>().0;
    let field = |i: usize| fields.get(i).map(|bytes| f64::from_le_bytes(*bytes) as usize);
    let [width, room, head, size] = [field(0)?, field(1)?, field(2)?, field(3)?];
    let [window, used, newest, last] = [field(4)?, field(6)?, field(7)?, field(8)?].map(|n| n as u64);
    let [to, from, recent] = [field(5)?, field(11)?, field(12)?];
    let quota = Quota::new(crate::MAX_LIMIT, Micros::new(window).into()).ok()?;
    // Which slots of what follows the header: the front, the ring, the recent.
    let front = (from..to).map(|i| BUFFER + i);
    if width > 16 || room.max(head).max(size).max(to).max(recent) > slots.len() {
        return None;
    }
    let ring = (0..size).map(|i| 2 * BUFFER + (head + i) % room.max(1));
    let mut entries = Vec::new();
    for slot in front.chain(ring).chain(0..recent) {
        let record = slots.get(slot * width..(slot + 1) * width)?;
        let number = |bytes: &[u8]| bytes.iter().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
        let (time, cost) = record.split_at_checked(6)?;
        let at = last.saturating_sub(last.wrapping_sub(number(time)) & ((1 << 48) - 1));
        entries.push(HeldEntry { at, cost: number(cost), count: 1, name: String::new() });
    }
    Some(Held { used, newest, last, entries, ..Held::new(quota) })
}
