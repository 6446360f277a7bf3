//! Garbage collection of stored keys: see `lua/gc.lua`.

use std::collections::HashMap;

use futures_util::stream::{self, StreamExt};

use crate::store::redis::codec::record::{GcHead, GcReply, GcRest, Numbers};
use crate::store::redis::epoch::Purpose;
use crate::store::redis::script::{Arguments, GC_SCRIPT};
use crate::store::redis::server::Call;
use crate::store::redis::{Inner, RedisStore};
use crate::{Error, Key};

/// Keys that are collected concurrently.
const MAX_CONCURRENT: usize = 16;

/// Result of one step of [`RedisStore::clean`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GcReport {
    /// Keys in Redis that were visited. A count and its notes are two keys.
    pub looked: u64,
    /// Entries and notes that no longer counted, and were removed.
    pub trimmed: u64,
    /// Keys in Redis that were removed whole.
    pub dropped: u64,
    /// Keys that had no expiry, and got one.
    pub expiries: u64,
    /// Bytes that the step freed, as `MEMORY USAGE` estimates them.
    pub freed_bytes: u64,
    /// Keys with names like those of Slidegate that hold other data. They are left alone.
    pub foreign: u64,
    /// Cursor of the next step; none after the last.
    pub next: Option<u64>,
}

impl RedisStore {
    /// Runs one small step of garbage collection: from `cursor`, which is 0 at first, it looks at about `count` keys
    /// of one server. It trims entries that no longer count, drops a key that has nothing left, and sets the expiry
    /// of a key that has none.
    ///
    /// Redis expires keys by itself and decisions trim them, so garbage collection is optional: it frees memory sooner,
    /// and repairs keys that were written or restored by hand. It may run at the same time as decisions and changes
    /// none of them: it trims as a peek does, and drops a key no earlier than Redis might have expired it. It does not
    /// touch keys other than counts and their notes. It runs scripts, and also works when the memory of Redis is full.
    pub async fn clean(&self, cursor: u64, count: usize) -> Result<GcReport, Error> {
        let found = self.inner.scan(cursor, count).await?;
        let mut report = GcReport { foreign: found.foreign, next: found.next, ..GcReport::default() };
        report.looked = found.parts.len() as u64 + found.foreign;
        let mut keys: HashMap<Key, u64> = HashMap::new();
        for (key, part) in found.parts {
            *keys.entry(key).or_default() |= 1 << part as u64;
        }
        let steps = keys.into_iter().map(|(key, parts)| self.inner.collect_key(key, parts));
        let mut steps = stream::iter(steps).buffer_unordered(MAX_CONCURRENT);
        while let Some(step) = steps.next().await {
            for reply in step? {
                report.trimmed += reply.trimmed;
                report.dropped += reply.dropped;
                report.expiries += reply.expiries;
                report.freed_bytes += reply.freed;
                report.foreign += reply.foreign;
            }
        }
        Ok(report)
    }
}

impl Inner {
    /// Collects one key. A call trims a bounded number of entries, so a large key takes several calls. `reported` is
    /// the bit mask of the parts to report if they are foreign.
    async fn collect_key(&self, key: Key, mut reported: u64) -> Result<Vec<GcReply>, Error> {
        let shard = self.topology.shard_of(&key, &self.names);
        let mut replies = Vec::new();
        loop {
            let mut arguments = Arguments::for_key(&key, &self.names, self.expiry);
            arguments.add(GcHead { reported });
            let call = Call::Script(&GC_SCRIPT, &arguments);
            let mut numbers = Numbers::new(self.topology.call(shard, Purpose::Maintain, call).await?)?;
            let reply: GcReply = numbers.take()?;
            numbers.finish()?;
            replies.push(reply);
            if reply.rest == GcRest::Done || reply.trimmed == 0 {
                return Ok(replies);
            }
            if reply.rest == GcRest::Entries {
                // Later calls for this key must not report its foreign parts again.
                reported = 0;
            }
        }
    }
}
