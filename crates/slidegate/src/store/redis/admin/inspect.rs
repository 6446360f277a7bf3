//! Read-only operations: the count of a key, the list of keys, and the settings of the servers.

use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue, Pipeline, Value};

use crate::algorithm::{SnapshotCounts, StateSnapshot};
use crate::store::redis::codec::record::{LogCounts, LogShape, Numbers, Record};
use crate::store::redis::epoch::Purpose;
use crate::store::redis::error_map::CLUSTER;
use crate::store::redis::layout::{KeyPart, Names};
use crate::store::redis::server::Call;
use crate::store::redis::topology::{ServerId, ShardId};
use crate::store::redis::zset_snapshot::{ZsetEntry, ZsetSnapshot};
use crate::store::redis::{Inner, RedisStore, bad_reply, convert};
use crate::store::remote::RemoteStore;
use crate::{Error, Fault, Inspection, Key, MAX_INSPECTED, Micros, Quota, State, WindowEntry};

/// Members of a sorted set and their scores.
type Members = Vec<(String, f64)>;

/// Members that one command reads.
const PAGE: usize = 10_000;

/// Maximum number of records in the front and in the recent part of a packed log; the mark at the start of the log.
const BUFFER: usize = 16;
const MARK: &[u8] = b"sgp1";

/// Page of stored keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPage {
    /// Keys. A key may be listed twice if keys are added and removed meanwhile.
    pub keys: Vec<Key>,
    /// Cursor of the next page; none after the last.
    pub next: Option<u64>,
}

/// Version of a server, and problems with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerReport {
    /// Version, such as `7.0.15`.
    pub version: String,
    /// Problems with its settings, in words.
    pub warnings: Vec<String>,
}

impl RedisStore {
    /// Returns a page of the stored keys, from `cursor`, which is 0 at first. Looks at about `count` keys of one
    /// server. All of these may be foreign, and then the page is empty.
    pub async fn keys(&self, cursor: u64, count: usize) -> Result<KeyPage, Error> {
        let found = self.inner.scan(cursor, count).await?;
        // Notes are left out: they count nothing, and with them a key would be listed twice.
        let counts = |part: &KeyPart| matches!(part, KeyPart::Main | KeyPart::Log);
        let mut keys: Vec<Key> =
            found.parts.into_iter().filter_map(|(key, part)| counts(&part).then_some(key)).collect();
        keys.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        keys.dedup();
        Ok(KeyPage { keys, next: found.next })
    }

    /// Pings every server; the error names those that do not answer.
    pub async fn ping(&self) -> Result<(), Error> {
        let servers = self.inner.topology.servers().await?;
        let ping = redis::cmd("PING");
        let answers = servers.iter().map(|&server| self.inner.call_server(server, Call::Command(&ping)));
        let failed: Vec<Error> = join_all(answers).await.into_iter().filter_map(Result::err).collect();
        match failed.first() {
            None => Ok(()),
            Some(error) if servers.len() == 1 => Err(error.clone()),
            Some(error) => {
                let (n, all) = (failed.len(), servers.len());
                let errors: Vec<String> = failed.iter().map(Error::to_string).collect();
                let message = format!("{n} of {all} servers do not answer: {}", errors.join("; "));
                Err(Error::store(error.fault().unwrap_or(Fault::Other), message))
            }
        }
    }

    /// Returns the version of the first server, and the settings of all servers that should be changed.
    pub async fn report(&self) -> Result<ServerReport, Error> {
        let topology = &self.inner.topology;
        let servers = topology.servers().await?;
        let mut all = ServerReport { version: String::new(), warnings: Vec::new() };
        for &server in &servers {
            let report = self.report_of(server).await?;
            let address = self.server_address(server);
            let describe =
                |warning| if servers.len() == 1 { warning } else { format!("{address}: {warning}") };
            all.warnings.extend(report.warnings.into_iter().map(describe));
            if all.version.is_empty() {
                all.version = report.version;
            }
        }
        Ok(all)
    }

    async fn report_of(&self, server: ServerId) -> Result<ServerReport, Error> {
        let mut info = Info::default();
        for section in ["server", "memory", "cluster"] {
            info.0 += &self.inner.info(server, section).await?.0;
        }
        let field = |name| info.field(name);
        let mut warnings = Vec::new();
        let policy = field("maxmemory_policy").unwrap_or("noeviction");
        if policy != "noeviction" && field("maxmemory").is_some_and(|bytes| bytes != "0") {
            warnings.push(format!(
                "maxmemory-policy is {policy}: Redis evicts counts when its memory is full, and their \
                 permits are admitted again; set it to noeviction"
            ));
        }
        if field("cluster_enabled") == Some("1") && !self.inner.topology.is_cluster() {
            warnings.push(CLUSTER.to_owned());
        }
        let version = field("valkey_version").or(field("redis_version")).unwrap_or("unknown").to_owned();
        Ok(ServerReport { version, warnings })
    }
}

/// Reply of the INFO command.
#[derive(Default)]
pub(crate) struct Info(String);

impl Info {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }
}

/// Page of the keys in Redis that have names like those of this deployment, and the cursor of the next page.
#[derive(Default)]
pub(crate) struct ScanPage {
    pub(crate) parts: Vec<(Key, KeyPart)>,
    /// Number of keys with such a name that are foreign.
    pub(crate) foreign: u64,
    pub(crate) next: Option<u64>,
}

/// Number of low bits of a cursor, which hold the cursor of Redis; the high bits hold the number of the server.
const CURSOR_BITS: u32 = 52;

fn split_cursor(cursor: u64) -> (u64, u64) {
    (cursor >> CURSOR_BITS, cursor & ((1 << CURSOR_BITS) - 1))
}

fn join_cursor(server: u64, cursor: u64) -> Result<u64, Error> {
    if cursor >> CURSOR_BITS > 0 || server >> (u64::BITS - CURSOR_BITS) > 0 {
        return Err(bad_reply());
    }
    Ok(server << CURSOR_BITS | cursor)
}

/// Contents of a key: time of the server, members, packed log.
type KeyContents = ((u64, u64), Members, Option<Vec<u8>>);

impl Inner {
    /// Reads about `count` keys of one server, from `cursor`, which is 0 at first.
    pub(crate) async fn scan(&self, cursor: u64, count: usize) -> Result<ScanPage, Error> {
        let Inner { topology, names, .. } = self;
        let servers = topology.servers().await?;
        let (number, cursor) = if topology.is_one() { (0, cursor) } else { split_cursor(cursor) };
        let Some(&at) = servers.iter().find(|server| u64::from(server.0) >= number) else {
            return Ok(ScanPage::default());
        };
        // If the server of the cursor is gone meanwhile, the scan goes on at the start of the next server.
        let cursor = if u64::from(at.0) == number { cursor } else { 0 };
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("MATCH").arg(names.pattern()).arg("COUNT").arg(count.clamp(1, 10_000));
        let (next, found): (u64, Vec<Vec<u8>>) = self.query(at, &command).await?;
        let next = match (next, servers.iter().find(|server| **server > at)) {
            (0, None) => None,
            (0, Some(server)) => Some(join_cursor(u64::from(server.0), 0)?),
            (next, _) if topology.is_one() => Some(next),
            (next, _) => Some(join_cursor(u64::from(at.0), next)?),
        };
        let mut scanned = ScanPage { next, ..ScanPage::default() };
        for name in found {
            match names.parse(&name) {
                // The key counts nothing, and expires by itself.
                Some((_, KeyPart::Warm)) => {}
                Some(part) => scanned.parts.push(part),
                None => scanned.foreign += u64::from(!Names::is_auxiliary(&name)),
            }
        }
        Ok(scanned)
    }

    /// Sends a command to one server and converts the reply.
    pub(crate) async fn query<T: FromRedisValue>(&self, server: ServerId, command: &Cmd) -> Result<T, Error> {
        convert(self.call_server(server, Call::Command(command)).await?)
    }

    pub(crate) async fn info(&self, server: ServerId, section: &str) -> Result<Info, Error> {
        Ok(Info(self.query(server, redis::cmd("INFO").arg(section)).await?))
    }

    pub(crate) async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        let shard = self.topology.shard_of(key, &self.names);
        let [main, log] = [KeyPart::Main, KeyPart::Log].map(|part| self.names.name(key, part));
        let (time, mut members, packed) = self.read_key(shard, &main, &log).await?;
        let now = time.0.saturating_mul(1_000_000).saturating_add(time.1);
        let expired = |members: &[(String, f64)], snapshot: &ZsetSnapshot| {
            let cut = now.max(snapshot.last).saturating_sub(snapshot.quota.window().get()) as f64;
            members.last().is_some_and(|(_, score)| *score <= cut)
        };
        // A key that was idle may have pages of expired entries.
        while members.len().is_multiple_of(PAGE)
            && ZsetSnapshot::read(&members).is_some_and(|snapshot| expired(&members, &snapshot))
        {
            let start = members.len();
            let page: Members = self.query_shard(shard, &page(&main, start)).await?;
            if page.is_empty() {
                break;
            }
            members.extend(page);
        }
        // If a rule changed its encoding, both encodings may be stored.
        let log = || packed.as_deref().and_then(read_log).and_then(|snapshot| inspection(snapshot, now));
        Ok(ZsetSnapshot::read(&members).and_then(|snapshot| inspection(snapshot, now)).or_else(log))
    }

    /// Reads a key at one instant, except in a cluster: while a slot moves, each key in Redis is read by itself.
    async fn read_key(&self, shard: ShardId, main: &str, log: &str) -> Result<KeyContents, Error> {
        if self.topology.is_cluster() {
            let time = self.query_shard(shard, &redis::cmd("TIME")).await?;
            let members = self.query_shard(shard, &page(main, 0)).await?;
            return Ok((time, members, self.query_shard(shard, redis::cmd("GET").arg(log)).await?));
        }
        let mut pipeline = Pipeline::new();
        pipeline.atomic().cmd("TIME").add_command(page(main, 0)).cmd("GET").arg(log);
        convert(self.topology.call(shard, Purpose::Maintain, Call::All(&pipeline)).await?)
    }

    async fn query_shard<T: FromRedisValue>(&self, shard: ShardId, command: &Cmd) -> Result<T, Error> {
        convert(self.topology.call(shard, Purpose::Maintain, Call::Command(command)).await?)
    }

    /// Sends a command about the shared value `name`, which all processes use, and converts the reply.
    pub(in crate::store::redis) async fn query_shared<T: FromRedisValue>(
        &self,
        name: &str,
        purpose: Purpose,
        command: &Cmd,
    ) -> Result<T, Error> {
        convert(self.call_shared(name, purpose, Call::Command(command)).await?)
    }

    /// Performs a call on the shared key of this name.
    pub(in crate::store::redis) async fn call_shared(
        &self,
        name: &str,
        purpose: Purpose,
        call: Call<'_>,
    ) -> Result<Value, Error> {
        // A rate limit key with that name has the same slot.
        let shard = self.topology.shard_of(&Key::printed(name), &self.names);
        self.topology.call(shard, purpose, call).await
    }
}

fn page(main: &str, start: usize) -> Cmd {
    let mut command = redis::cmd("ZRANGE");
    command.arg(main).arg(start).arg(start + PAGE - 1).arg("WITHSCORES");
    command
}

fn inspection(snapshot: ZsetSnapshot, now: u64) -> Option<Inspection> {
    let last = Micros::new(snapshot.last);
    let now = Micros::new(now).max(last);
    let capacity = snapshot.quota.algorithm().refills().then(|| snapshot.quota.capacity());
    let (used, reset_after, entries) = if snapshot.quota.algorithm().has_entries() {
        let window = snapshot.quota.window();
        let (gone, left): (Vec<ZsetEntry>, Vec<ZsetEntry>) =
            snapshot.entries.into_iter().partition(|entry| Micros::new(entry.at).plus(window) <= now);
        let gone: u64 = gone.iter().map(|entry| entry.cost).sum();
        let leaves = |at: u64| Micros::new(at).plus(window);
        let left = left.iter().map(|entry| (Micros::new(entry.at), entry.cost, leaves(entry.at))).collect();
        (snapshot.used.saturating_sub(gone), leaves(snapshot.newest).since(now), left)
    } else {
        let counted = SnapshotCounts::Numbers(snapshot.numbers());
        let mut state = State::restored(&snapshot.quota, StateSnapshot { last, counted }, Vec::new());
        let used = state.inspect(now);
        (used, state.empty_at().since(now), state.entries())
    };
    if used == 0 {
        return None;
    }
    let counted = entries.into_iter().filter(|(_, cost, _)| *cost > 0);
    let counted = counted.map(|(at, cost, leaves)| WindowEntry { at, cost, leaves_after: leaves.since(now) });
    Some(Inspection { at: now, used, reset_after, entries: counted.take(MAX_INSPECTED).collect(), capacity })
}

/// Parses a packed log; none if it is foreign.
fn read_log(log: &[u8]) -> Option<ZsetSnapshot> {
    let (header, slots) = log.strip_prefix(MARK)?.split_at_checked(LogShape::SIZE + LogCounts::SIZE)?;
    let mut header = Numbers::from(header.to_vec());
    let shape: LogShape = header.take().ok()?;
    let counts: LogCounts = header.take().ok()?;
    let quota = Quota::new(crate::quota::MAX_LIMIT, shape.log_window.into()).ok()?;
    let [width, room, head, size] = [shape.width, shape.room, shape.head, shape.size].map(|n| n as usize);
    let [to, from, recent] = [shape.to, counts.from, counts.recent].map(|n| n as usize);
    let [newest, last] = [counts.newest, counts.last].map(Micros::get);
    // Record indexes after the header: front, ring, recent.
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
        entries.push(ZsetEntry { at, cost: number(cost), count: 1, name: String::new() });
    }
    Some(ZsetSnapshot { used: counts.used, newest, last, entries, ..ZsetSnapshot::new(quota) })
}
