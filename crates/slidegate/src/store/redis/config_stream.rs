//! Versioned text that every process reads and permitted processes replace: a Redis stream, whose newest entry is
//! current.
//!
//! Replacing the text takes one command, and so does reading a newer text.
//!
//! Any client that can write to Redis can add an entry with an id that no clock produces, such as the largest possible
//! id, after which Redis adds nothing more to the stream. Such entries are skipped, and the next text that is shared
//! starts the stream anew.

use redis::{Cmd, FromRedisValue, Value};

use super::epoch::Purpose;
use super::{RedisStore, bad_reply};
use crate::Error;

/// Entries that are kept, so that earlier texts can be looked up.
const MAX_ENTRIES: usize = 16;

/// The latest millisecond of an id that a clock can produce: the end of the year 9999.
const LATEST_MILLIS: u64 = 253_402_300_799_999;

/// Maximum number of entries of one millisecond. Nodes add only a few per second.
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
    /// Returns the newest text of that name, if it is newer than the version `known`; version 0 is older than every
    /// text.
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

    /// Returns the id of the newest entry of that name, if no clock produces such an id: another program has added the
    /// entry, and it is skipped.
    pub async fn impossible_entry(&self, name: &str) -> Result<Option<String>, Error> {
        let newest = self.newest(name, "-", 1).await?;
        Ok(newest.into_iter().map(|(id, _)| id).find(|id| version(id).is_none()))
    }

    /// Returns at most `most` entries, newest first, down to the id `down_to`.
    async fn newest(&self, name: &str, down_to: &str, most: usize) -> Result<Vec<Entry>, Error> {
        let mut command = redis::cmd("XREVRANGE");
        command.arg(self.stream(name)).arg("+").arg(down_to).arg("COUNT").arg(most);
        self.query_stream(name, &command).await
    }

    /// Returns true if that version of the text is still stored.
    pub async fn has_shared_text(&self, name: &str, version: u64) -> Result<bool, Error> {
        let mut command = redis::cmd("XRANGE");
        command.arg(self.stream(name)).arg(id(version)).arg(id(version)).arg("COUNT").arg(1);
        Ok(!self.query_stream::<Vec<Entry>>(name, &command).await?.is_empty())
    }

    /// Replaces the text of that name and returns the new version. A stream to which nothing can be added is started
    /// anew.
    pub async fn share_text(&self, name: &str, text: &str) -> Result<u64, Error> {
        let mut command = redis::cmd("XADD");
        command.arg(self.stream(name)).arg("MAXLEN").arg(MAX_ENTRIES).arg("*").arg("text").arg(text);
        let id = self.append(name, &command).await?;
        id.as_deref().and_then(version).ok_or_else(bad_reply)
    }

    /// Adds an entry with the command `add`, an `XADD`, and returns its id. Returns `None` if there is no stream and
    /// the command may not create one. If an impossible id prevents the addition, removes the stream and tries again.
    pub(super) async fn append(&self, name: &str, add: &Cmd) -> Result<Option<String>, Error> {
        match self.query_stream::<Option<String>>(name, add).await {
            Ok(id) if id.as_deref().is_none_or(|id| version(id).is_some()) => return Ok(id),
            Err(error) if !error.to_string().contains(EXHAUSTED) => return Err(error),
            _ => {}
        }
        self.query_stream::<Value>(name, redis::cmd("UNLINK").arg(self.stream(name))).await?;
        self.query_stream(name, add).await
    }

    pub(super) fn stream(&self, name: &str) -> String {
        self.inner.names.shared(name)
    }

    pub(super) async fn query_stream<T: FromRedisValue>(
        &self,
        name: &str,
        command: &Cmd,
    ) -> Result<T, Error> {
        self.inner.query_shared(name, Purpose::Decide, command).await
    }
}

/// Id of an entry, and its fields and values.
type Entry = (String, Vec<String>);

/// Part of the error of Redis when the newest entry has the largest possible id.
const EXHAUSTED: &str = "exhausted the last possible ID";

/// Returns the version of an entry: Redis numbers entries by its clock in milliseconds, and by order within a
/// millisecond. None for an id that no clock produces.
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
