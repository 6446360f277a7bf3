//! Pages of the keys that count something, with a cursor that clients cannot interpret.

use std::fmt;

use futures_util::future::join_all;
use slidegate::store::{KeyUsage, MemoryKeyCursor, MemoryKeyPage};
use slidegate::{Error, Key, MemoryStore, Store, redis::RedisStore};
use tokio::task::spawn_blocking;

use super::AnyStore;

/// Number of `SCAN` commands after which a page ends, also if it has room.
const MAX_SCANS: usize = 32;

/// Number of keys whose counts are read from Redis at the same time.
const MAX_CONCURRENT: usize = 8;

/// Wanted keys.
#[derive(Clone, Debug)]
pub(crate) struct KeyQuery {
    /// Number of keys in a page. A page of Redis can have a few more, because `SCAN` lists keys in groups.
    pub(crate) count: usize,
    /// Position of the first key; none is the beginning.
    pub(crate) from: Option<KeyCursor>,
    /// Only keys of this rule.
    pub(crate) rule: Option<String>,
    /// Only keys that start with this text.
    pub(crate) prefix: Option<String>,
}

impl KeyQuery {
    fn wants(&self, key: &str) -> bool {
        let is_of_rule = |rule: &String| Key::printed(key).rule() == rule;
        self.prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix))
            && self.rule.as_ref().is_none_or(is_of_rule)
    }
}

/// Page of keys. It can have fewer keys than wanted, or none, although others follow: the work of one call is bounded.
#[derive(Debug, Default)]
pub(crate) struct KeyList {
    pub(crate) keys: Vec<KeyUsage>,
    /// Position of the next page; none after the last.
    pub(crate) next: Option<KeyCursor>,
}

/// Position in the list of keys. Its text has only letters and digits, so that it needs no escape in a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyCursor {
    Memory(MemoryKeyCursor),
    Redis(u64),
}

impl KeyCursor {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some(number) = text.strip_prefix('r') {
            return u64::from_str_radix(number, 16).ok().map(KeyCursor::Redis);
        }
        let digits = text.strip_prefix('m')?.as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
        let bytes = digits.chunks(2).map(byte).collect::<Option<Vec<u8>>>()?;
        let position = String::from_utf8(bytes).ok()?;
        let (shard, after) = position.split_once('/')?;
        Some(KeyCursor::Memory(MemoryKeyCursor { shard: shard.parse().ok()?, after: after.to_owned() }))
    }
}

impl fmt::Display for KeyCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyCursor::Redis(number) => write!(f, "r{number:x}"),
            KeyCursor::Memory(MemoryKeyCursor { shard, after }) => {
                f.write_str("m")?;
                format!("{shard}/{after}").bytes().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

impl AnyStore {
    /// Returns a page of keys. None if the cursor belongs to another kind of store.
    pub(crate) async fn keys(&self, query: KeyQuery) -> Result<Option<KeyList>, Error> {
        match (self, query.from.clone()) {
            (AnyStore::Memory(store), None) => list_memory(store, MemoryKeyCursor::default(), query).await,
            (AnyStore::Memory(store), Some(KeyCursor::Memory(from))) => list_memory(store, from, query).await,
            (AnyStore::Redis(redis), None) => list_redis(redis.failover.store(), 0, &query).await,
            (AnyStore::Redis(redis), Some(KeyCursor::Redis(from))) => {
                list_redis(redis.failover.store(), from, &query).await
            }
            _ => return Ok(None),
        }
        .map(Some)
    }
}

async fn list_memory(store: &MemoryStore, from: MemoryKeyCursor, query: KeyQuery) -> Result<KeyList, Error> {
    let store = store.clone();
    let list = move || store.keys(&from, query.count, |key| query.wants(key));
    let page = spawn_blocking(list).await;
    let MemoryKeyPage { keys, next } = page.map_err(|_| Error::unavailable("the keys cannot be listed"))?;
    Ok(KeyList { keys, next: next.map(KeyCursor::Memory) })
}

async fn list_redis(store: &RedisStore, from: u64, query: &KeyQuery) -> Result<KeyList, Error> {
    let (mut found, mut next) = (Vec::new(), Some(from));
    for _ in 0..MAX_SCANS {
        let (Some(cursor), true) = (next, found.len() < query.count) else { break };
        let page = store.keys(cursor, query.count - found.len()).await?;
        found.extend(page.keys.into_iter().filter(|key| query.wants(key.as_str())));
        next = page.next;
    }
    found.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
    found.dedup();
    let mut list = KeyList { keys: Vec::with_capacity(found.len()), next: next.map(KeyCursor::Redis) };
    for keys in found.chunks(MAX_CONCURRENT) {
        let counts = join_all(keys.iter().map(|key| store.inspect(key))).await;
        for (key, count) in keys.iter().zip(counts) {
            // A key that counts nothing any more is left to its expiry.
            let Some(count) = count? else { continue };
            list.keys.push(KeyUsage { key: key.clone(), used: count.used, capacity: count.capacity });
        }
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_is_read_back() {
        let after = "login-per-ip:ip=1.2.3.4/é".to_owned();
        let cursors = [
            KeyCursor::Redis(0),
            KeyCursor::Redis(u64::MAX),
            KeyCursor::Memory(MemoryKeyCursor::default()),
            KeyCursor::Memory(MemoryKeyCursor { shard: 63, after }),
        ];
        for cursor in cursors {
            let text = cursor.to_string();
            assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{text}");
            assert_eq!(KeyCursor::parse(&text), Some(cursor));
        }
        for wrong in ["", "0", "r", "rx", "r-1", "r10000000000000000", "m", "m3", "m302", "m3x", "mff2f", "é"]
        {
            assert_eq!(KeyCursor::parse(wrong), None, "{wrong}");
        }
    }
}
