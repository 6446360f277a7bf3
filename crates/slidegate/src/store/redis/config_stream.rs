//! Versioned text that every process reads and permitted processes replace: a Redis stream, whose newest entry is
//! current.
//!
//! Replacing the text is one command, and so is asking for a newer one.
//!
//! Any client that can write to Redis can add an entry with an id that no clock makes, such as the largest there is,
//! after which Redis adds nothing more to the stream. Such entries are skipped, and the next text that is shared
//! starts the stream anew.

use redis::{Pipeline, Value};

use super::epoch::Purpose;
use super::server::Call;
use super::topology::ShardId;
use super::{RedisStore, bad_reply};
use crate::{Error, Key};

/// Entries that are kept, so that earlier texts can be looked up.
const MAX_ENTRIES: usize = 16;

/// The latest millisecond of an id that a clock can make: the end of the year 9999.
const LATEST_MILLIS: u64 = 253_402_300_799_999;

/// Most entries of one millisecond: nodes add a few in a second.
const ENTRIES_PER_MILLI: u64 = 1_000;

/// One version of a shared text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedText {
    /// Version number; later versions have higher numbers.
    pub version: u64,
    /// The text.
    pub text: String,
}

impl RedisStore {
    /// Returns the newest text of that name, if it is newer than the version `known`; 0 is older than all.
    pub async fn shared_text(&self, name: &str, known: u64) -> Result<Option<SharedText>, Error> {
        let after = format!("({}", id(known));
        let mut newest = self.newest(name, &after, 1).await?;
        if newest.first().is_some_and(|(id, _)| version(id).is_none()) {
            newest = self.newest(name, &after, MAX_ENTRIES).await?;
        }
        let possible = newest.into_iter().find_map(|(id, fields)| Some((version(&id)?, fields)));
        let Some((version, fields)) = possible else { return Ok(None) };
        let text = fields.into_iter().nth(1).ok_or_else(bad_reply)?;
        Ok(Some(SharedText { version, text }))
    }

    /// Returns the id of the newest entry of that name, if no clock makes such an id: another program has added the
    /// entry, and it is skipped.
    pub async fn impossible_entry(&self, name: &str) -> Result<Option<String>, Error> {
        let newest = self.newest(name, "-", 1).await?;
        Ok(newest.into_iter().map(|(id, _)| id).find(|id| version(id).is_none()))
    }

    /// Returns the newest entries, down to an id, the newest first.
    async fn newest(&self, name: &str, down_to: &str, most: usize) -> Result<Vec<Entry>, Error> {
        let mut command = redis::cmd("XREVRANGE");
        command.arg(self.stream(name)).arg("+").arg(down_to).arg("COUNT").arg(most);
        let reply = self.call_stream(name, &command).await?;
        redis::from_redis_value(reply).map_err(|_| bad_reply())
    }

    /// Returns true if that version of the text is still stored.
    pub async fn has_shared_text(&self, name: &str, version: u64) -> Result<bool, Error> {
        let mut command = redis::cmd("XRANGE");
        command.arg(self.stream(name)).arg(id(version)).arg(id(version)).arg("COUNT").arg(1);
        let reply = self.call_stream(name, &command).await?;
        let entries: Vec<(String, Vec<String>)> = redis::from_redis_value(reply).map_err(|_| bad_reply())?;
        Ok(!entries.is_empty())
    }

    /// Replaces the text of that name and returns the new version. A stream to which nothing can be added is started
    /// anew.
    pub async fn share_text(&self, name: &str, text: &str) -> Result<u64, Error> {
        let mut command = redis::cmd("XADD");
        command.arg(self.stream(name)).arg("MAXLEN").arg(MAX_ENTRIES).arg("*").arg("text").arg(text);
        version(&self.append(name, &command).await?).ok_or_else(bad_reply)
    }

    /// Adds an entry by an `XADD` and returns its id. If an impossible id prevents that, removes the stream first.
    pub(super) async fn append(&self, name: &str, add: &redis::Cmd) -> Result<String, Error> {
        let read = |reply: Value| redis::from_redis_value::<String>(reply).map_err(|_| bad_reply());
        match self.call_stream(name, add).await {
            Ok(reply) => {
                let id = read(reply)?;
                if version(&id).is_some() {
                    return Ok(id);
                }
            }
            Err(error) if error.to_string().contains(EXHAUSTED) => {}
            Err(error) => return Err(error),
        }
        let mut remove = redis::cmd("UNLINK");
        remove.arg(self.stream(name));
        self.call_stream(name, &remove).await?;
        read(self.call_stream(name, add).await?)
    }

    /// Adds an entry by a pipeline whose first command is an `XADD`, and returns its id. None if an impossible id prevents that.
    pub(super) async fn append_all(&self, name: &str, pipeline: &Pipeline) -> Result<Option<String>, Error> {
        match self.inner.topology.call(self.shard(name), Purpose::Decide, Call::All(pipeline)).await {
            Ok(reply) => {
                let (id,): (String,) = redis::from_redis_value(reply).map_err(|_| bad_reply())?;
                Ok(Some(id).filter(|id| version(id).is_some()))
            }
            Err(error) if error.to_string().contains(EXHAUSTED) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn stream(&self, name: &str) -> String {
        self.inner.names.shared(name)
    }

    pub(super) async fn call_stream(&self, name: &str, command: &redis::Cmd) -> Result<Value, Error> {
        self.inner.topology.call(self.shard(name), Purpose::Decide, Call::Command(command)).await
    }

    /// The key of a count with that name has the same slot.
    fn shard(&self, name: &str) -> ShardId {
        self.inner.topology.shard_of(&Key::printed(name), &self.inner.names)
    }
}

/// Id of an entry, and its fields and values.
type Entry = (String, Vec<String>);

/// Part of the error of Redis when the newest entry has the largest possible id.
const EXHAUSTED: &str = "exhausted the last possible ID";

/// Returns the version of an entry: Redis numbers entries by its clock in milliseconds, and within one. None for an
/// id that no clock makes.
fn version(id: &str) -> Option<u64> {
    let (millis, sequence) = id.split_once('-')?;
    let (millis, sequence): (u64, u64) = (millis.parse().ok()?, sequence.parse().ok()?);
    let possible = millis <= LATEST_MILLIS && sequence < ENTRIES_PER_MILLI;
    possible.then(|| millis * ENTRIES_PER_MILLI + sequence)
}

fn id(version: u64) -> String {
    format!("{}-{}", version / ENTRIES_PER_MILLI, version % ENTRIES_PER_MILLI)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_no_clock_makes_have_no_version() {
        assert_eq!(version("1794774215407-3"), Some(1_794_774_215_407_003));
        assert_eq!(id(1_794_774_215_407_003), "1794774215407-3");
        let impossible = [
            "18446744073709551615-18446744073709551615",
            "18446744073709551615-0",
            "253402300800000-0",
            "1794774215407-1000",
            "1794774215407",
            "-",
            "",
        ];
        assert!(impossible.iter().all(|id| version(id).is_none()));
    }
}
