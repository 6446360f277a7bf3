//! Pages of the keys in a memory store.
//!
//! A page lists the keys of a shard in the order of their texts, and the next page continues after the last text of the
//! page before. So if the hash table is reorganised between two pages, no key is lost or listed twice. To find the
//! first keys in that order, a page visits all buckets of the shard, [`STEP`] buckets each time it holds the lock, as
//! the statistics do.

use std::collections::BTreeMap;
use std::hint;

use super::MemoryStore;
use super::shard::Shard;
use super::stats::{MAX_RESTARTS, STEP};
use crate::key::KeyText;
use crate::{Clock, Key, Micros};

/// Number of visited buckets after which a page ends even if it is not full: a few milliseconds of work.
const MAX_VISITED: usize = 100_000;

/// Length of the pause between two steps in the same shard: about as long as a step.
const SPINS: u32 = 64;

/// Key and its permits in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUsage {
    /// The key.
    pub key: Key,
    /// Permits in use.
    pub used: u64,
    /// Capacity of a token bucket, which the store keeps with the bucket's level. `None` for other algorithms, because
    /// the store does not keep their limits.
    pub capacity: Option<u64>,
}

/// Position in the list of the keys of a memory store. The default is the beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryKeyCursor {
    /// Number of the shard.
    pub shard: usize,
    /// Text of the last listed key of that shard; empty if no key of the shard was listed.
    pub after: String,
}

/// Page of the keys in a memory store. See [`MemoryStore::keys`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryKeyPage {
    /// Keys that count something.
    pub keys: Vec<KeyUsage>,
    /// Beginning of the next page; `None` after the last page.
    pub next: Option<MemoryKeyCursor>,
}

impl<C: Clock> MemoryStore<C> {
    /// Returns up to `count` keys that count something and whose text `wanted` accepts, from a position on.
    ///
    /// A page can have fewer keys, or none, although more keys follow: the call ends after about 100,000 buckets of the
    /// hash tables, or one shard, whichever is more. Call it on a blocking thread. A key that stays in the store from
    /// the first page to the last is listed exactly once. A key that shares a counter because the store is full is not
    /// listed.
    pub fn keys(&self, from: &MemoryKeyCursor, count: usize, wanted: impl Fn(&str) -> bool) -> MemoryKeyPage {
        let (shards, count) = (&self.inner.shards, count.max(1));
        let MemoryKeyCursor { mut shard, mut after } = from.clone();
        let (mut keys, mut visited) = (Vec::new(), 0);
        while shard < shards.len() && keys.len() < count && visited < MAX_VISITED {
            let mut search = ShardSearch { most: count - keys.len(), ..ShardSearch::default() };
            while search.step(&mut shards[shard].lock(), self.inner.clock.now(), &after, &wanted) {
                // A decision that waits for the lock takes it during this pause.
                (0..SPINS).for_each(|_| hint::spin_loop());
            }
            visited += search.next;
            let found = search.found.into_iter();
            keys.extend(found.map(|(text, (used, capacity))| KeyUsage {
                key: Key::printed(&text),
                used,
                capacity,
            }));
            match keys.last().filter(|_| search.more) {
                Some(last) => after = last.key.as_str().to_owned(),
                None => (shard, after) = (shard + 1, String::new()),
            }
        }
        let next = (shard < shards.len()).then_some(MemoryKeyCursor { shard, after });
        MemoryKeyPage { keys, next }
    }
}

/// Unfinished search for the first keys of one shard after a text.
#[derive(Default)]
struct ShardSearch {
    /// Bucket to continue with.
    next: usize,
    /// Layout of the table at the previous step. Another layout means that slots have moved.
    layout: u64,
    restarts: u32,
    /// Maximum number of keys to find.
    most: usize,
    /// First wanted keys found so far, each with its permits in use and, for a token bucket, its capacity.
    found: BTreeMap<KeyText, (u64, Option<u64>)>,
    /// True if the shard has wanted keys after those in `found`.
    more: bool,
}

impl ShardSearch {
    /// Visits the next [`STEP`] buckets; returns false after the last one.
    fn step(&mut self, shard: &mut Shard, now: Micros, after: &str, wanted: &impl Fn(&str) -> bool) -> bool {
        if self.layout != shard.layout {
            if self.next > 0 && self.restarts < MAX_RESTARTS {
                let (restarts, most) = (self.restarts + 1, self.most);
                *self = ShardSearch { restarts, most, ..ShardSearch::default() };
            }
            self.layout = shard.layout;
        }
        let now = shard.instant(now);
        let end = self.next.saturating_add(STEP).min(shard.buckets());
        for bucket in self.next..end {
            let key = shard.key_at(bucket).filter(|key| key.as_str() > after && wanted(key));
            if let Some(key) = key.cloned() {
                self.visit(shard, now, bucket, key);
            }
        }
        self.next = end;
        end < shard.buckets()
    }

    fn visit(&mut self, shard: &mut Shard, now: Micros, bucket: usize, key: KeyText) {
        let is_full = self.found.len() == self.most;
        let is_later = is_full && self.found.last_key_value().is_some_and(|(last, _)| key > *last);
        if is_later && self.more {
            return;
        }
        let state = shard.at(bucket);
        let used = state.inspect(now);
        if used == 0 {
            return;
        }
        self.more |= is_full;
        if !is_later {
            self.found.insert(key, (used, state.capacity()));
            if self.found.len() > self.most {
                self.found.pop_last();
            }
        }
    }
}
