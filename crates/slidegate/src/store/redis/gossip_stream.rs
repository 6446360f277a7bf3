//! Short-lived broadcast between nodes over a Redis stream, of which only recent entries are read.
//!
//! Redis numbers entries by its own clock, so the age of an entry does not depend on the clocks of the nodes.

use std::time::Duration;

use redis::{Pipeline, Value};

use super::epoch::Purpose;
use super::server::Call;
use super::{RedisStore, bad_reply, convert};
use crate::Error;

/// Approximate number of entries that are kept: enough for a few seconds of hundreds of processes.
const MAX_ENTRIES: usize = 2_000;

/// Approximate number of broadcasts that are kept, and the maximum that one call reads: five seconds of 200 processes.
const MAX_BROADCASTS: usize = 1_000;

/// Time that the stream is kept after its last entry.
const STREAM_TTL: Duration = Duration::from_secs(60);

/// Message of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GossipMessage {
    pub(crate) who: String,
    pub(crate) text: String,
}

/// Message that a process has sent to all processes that use the same Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broadcast {
    /// Name of the sender.
    pub sender: String,
    /// Content.
    pub text: String,
    /// Time since Redis received the message, by the clock of Redis.
    pub age: Duration,
}

impl RedisStore {
    /// Sends a message to all processes that use this Redis. Each `topic` has one stream. Redis keeps about the last
    /// thousand entries of it, and removes the stream a minute after the last entry.
    pub async fn broadcast(&self, topic: &str, sender: &str, text: &str) -> Result<(), Error> {
        let message = GossipMessage { who: sender.to_owned(), text: text.to_owned() };
        self.add_message(topic, &message, MAX_BROADCASTS).await.map(drop)
    }

    /// Returns the messages of a topic from the last `lately`, newest first, at most a thousand. Skips entries that are
    /// not text, which another program may have added.
    ///
    /// If the newest entry is dated ahead of the clock of Redis, because the clock was set back or another program wrote the
    /// entry, no age is known. Then the stream is removed, and the next message starts a new one.
    pub async fn broadcasts(&self, topic: &str, lately: Duration) -> Result<Vec<Broadcast>, Error> {
        let (seconds, micros): (u64, u64) = self.query_stream(topic, &redis::cmd("TIME")).await?;
        let now = seconds.saturating_mul(1_000).saturating_add(micros / 1_000);
        let lately = u64::try_from(lately.as_millis()).unwrap_or(u64::MAX);
        let mut read = redis::cmd("XREVRANGE");
        read.arg(self.stream(topic))
            .arg("+")
            .arg(now.saturating_sub(lately))
            .arg("COUNT")
            .arg(MAX_BROADCASTS);
        let entries: Vec<Entry> = self.query_stream(topic, &read).await?;
        if entries.first().is_some_and(|(id, _)| millis(id).is_none_or(|at| at > now.saturating_add(lately)))
        {
            self.query_stream::<Value>(topic, redis::cmd("UNLINK").arg(self.stream(topic))).await?;
            return Ok(Vec::new());
        }
        let broadcasts = entries.into_iter().filter_map(|(id, fields)| {
            let GossipMessage { who, text } = read_message(fields)?;
            let age = Duration::from_millis(now.saturating_sub(millis(&id)?));
            Some(Broadcast { sender: who, text, age })
        });
        Ok(broadcasts.collect())
    }

    /// Publishes a message and returns the messages of all processes from the last `lately`, including this one, oldest
    /// first.
    pub(crate) async fn announce(
        &self,
        name: &str,
        message: &GossipMessage,
        lately: Duration,
    ) -> Result<Vec<GossipMessage>, Error> {
        let id = self.add_message(name, message, MAX_ENTRIES).await?;
        let now = millis(&id).ok_or_else(bad_reply)?;
        let mut read = redis::cmd("XRANGE");
        read.arg(self.stream(name)).arg(now.saturating_sub(lately.as_millis() as u64)).arg("+");
        let entries: Vec<Entry> = self.query_stream(name, &read).await?;
        Ok(entries.into_iter().filter_map(|(_, fields)| read_message(fields)).collect())
    }

    /// Adds a message to a stream of about `most` entries, renews the expiry of the stream, and returns the id of the
    /// entry.
    ///
    /// The first entry and its expiry are one transaction: a node that fails between the two would leave a stream that never
    /// expires. Later entries are added by a single command, because only single commands follow redirects in a cluster.
    async fn add_message(&self, name: &str, message: &GossipMessage, most: usize) -> Result<String, Error> {
        let stream = self.stream(name);
        let add = |options: &[&str]| {
            let mut add = redis::cmd("XADD");
            add.arg(&stream).arg(options).arg("MAXLEN").arg("~").arg(most).arg("*");
            add.arg(&message.who).arg(&message.text);
            add
        };
        let mut expire = redis::cmd("PEXPIRE");
        expire.arg(&stream).arg(STREAM_TTL.as_millis() as u64);
        if let Some(id) = self.append(name, &add(&["NOMKSTREAM"])).await? {
            self.query_stream::<Value>(name, &expire).await?;
            return Ok(id);
        }
        let mut create = Pipeline::new();
        create.atomic().add_command(add(&[])).add_command(expire).ignore();
        let (id,) = convert(self.inner.call_shared(name, Purpose::Decide, Call::All(&create)).await?)?;
        Ok(id)
    }
}

/// Id of an entry, and its fields and values: another program may have added any content.
type Entry = (String, Vec<Vec<u8>>);

/// Returns none if the entry is not the text of a message.
fn read_message(fields: Vec<Vec<u8>>) -> Option<GossipMessage> {
    let mut texts = fields.into_iter().map(String::from_utf8);
    Some(GossipMessage { who: texts.next()?.ok()?, text: texts.next()?.ok()? })
}

/// Returns the time of an entry by the clock of Redis, in milliseconds since 1970.
fn millis(id: &str) -> Option<u64> {
    id.split('-').next()?.parse().ok()
}
