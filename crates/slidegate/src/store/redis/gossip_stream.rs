//! Short-lived broadcast between nodes over a Redis stream, of which only the last moments are read.
//!
//! Redis numbers entries by its own clock, so the age of an entry does not depend on the clocks of the nodes.

use std::time::Duration;

use redis::Value;

use super::{RedisStore, bad_reply};
use crate::Error;

/// Approximate number of entries that are kept: enough for some moments of hundreds of processes.
const MAX_ENTRIES: usize = 2_000;

/// Time that the stream is kept after its last entry.
const STREAM_TTL: Duration = Duration::from_secs(60);

/// Message of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GossipMessage {
    pub(crate) who: String,
    pub(crate) text: String,
}

impl RedisStore {
    /// Publishes a message and returns the messages of all processes of the last `lately`, including this one, oldest
    /// first.
    pub(crate) async fn announce(
        &self,
        name: &str,
        message: &GossipMessage,
        lately: Duration,
    ) -> Result<Vec<GossipMessage>, Error> {
        let stream = self.stream(name);
        let mut add = redis::cmd("XADD");
        add.arg(&stream).arg("MAXLEN").arg("~").arg(MAX_ENTRIES);
        add.arg("*").arg(&message.who).arg(&message.text);
        let id = self.append(name, &add).await?;
        let ttl = STREAM_TTL.as_millis() as u64;
        self.query_stream::<Value>(name, redis::cmd("PEXPIRE").arg(&stream).arg(ttl)).await?;
        let now: u64 = id.split('-').next().and_then(|millis| millis.parse().ok()).ok_or_else(bad_reply)?;
        let since = now.saturating_sub(lately.as_millis() as u64);
        let entries: Vec<(String, Vec<Vec<u8>>)> =
            self.query_stream(name, redis::cmd("XRANGE").arg(&stream).arg(since).arg("+")).await?;
        let messages = entries.into_iter().filter_map(|(_, fields)| {
            // Another program may have added any entry.
            let mut texts = fields.into_iter().map(String::from_utf8);
            Some(GossipMessage { who: texts.next()?.ok()?, text: texts.next()?.ok()? })
        });
        Ok(messages.collect())
    }
}
