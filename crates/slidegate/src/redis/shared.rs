//! A text that every process which counts here reads, and whoever may replaces: a stream, of which the newest entry holds.
//!
//! Replacing it is one command, and so is asking whether there is a newer one.

use redis::Value;

use super::life::Purpose;
use super::server::Call;
use super::{RedisStore, bad_reply};
use crate::{Error, Key};

/// Entries that are kept: what was there before can be looked up.
const KEPT: usize = 16;

/// One edition of a shared text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedText {
    /// Later editions have higher ones.
    pub version: u64,
    /// The text.
    pub text: String,
}

impl RedisStore {
    /// The newest text of that name, if it is newer than the version that is `known`; 0 is older than all.
    pub async fn shared_text(&self, name: &str, known: u64) -> Result<Option<SharedText>, Error> {
        let mut command = redis::cmd("XREVRANGE");
        command.arg(self.stream(name)).arg("+").arg(format!("({}", id(known))).arg("COUNT").arg(1);
        let reply = self.call_stream(name, &command).await?;
        let entries: Vec<(String, Vec<String>)> = redis::from_redis_value(reply).map_err(|_| bad_reply())?;
        let Some((id, fields)) = entries.into_iter().next() else { return Ok(None) };
        let text = fields.into_iter().nth(1).ok_or_else(bad_reply)?;
        Ok(Some(SharedText { version: version(&id).ok_or_else(bad_reply)?, text }))
    }

    /// Whether that version of the text is still there.
    pub async fn has_shared_text(&self, name: &str, version: u64) -> Result<bool, Error> {
        let mut command = redis::cmd("XRANGE");
        command.arg(self.stream(name)).arg(id(version)).arg(id(version)).arg("COUNT").arg(1);
        let reply = self.call_stream(name, &command).await?;
        let entries: Vec<(String, Vec<String>)> = redis::from_redis_value(reply).map_err(|_| bad_reply())?;
        Ok(!entries.is_empty())
    }

    /// Replaces the text of that name; says its version.
    pub async fn share_text(&self, name: &str, text: &str) -> Result<u64, Error> {
        let mut command = redis::cmd("XADD");
        command.arg(self.stream(name)).arg("MAXLEN").arg(KEPT).arg("*").arg("text").arg(text);
        let reply = self.call_stream(name, &command).await?;
        let id: String = redis::from_redis_value(reply).map_err(|_| bad_reply())?;
        version(&id).ok_or_else(bad_reply)
    }

    pub(super) fn stream(&self, name: &str) -> String {
        self.inner.names.shared(name)
    }

    pub(super) async fn call_stream(&self, name: &str, command: &redis::Cmd) -> Result<Value, Error> {
        // Where a count of that name would be: it has the same slot.
        let place = self.inner.topology.place_of(&Key::printed(name), &self.inner.names);
        self.inner.topology.call(place, Purpose::Decide, Call::Command(command)).await
    }
}

/// Redis numbers entries by its clock in milliseconds, and within one.
fn version(id: &str) -> Option<u64> {
    let (millis, place) = id.split_once('-')?;
    let place: u64 = place.parse().ok()?;
    millis.parse::<u64>().ok()?.checked_mul(1_000)?.checked_add(place.min(999))
}

fn id(version: u64) -> String {
    format!("{}-{}", version / 1_000, version % 1_000)
}
