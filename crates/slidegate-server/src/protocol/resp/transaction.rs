//! Commands between MULTI and EXEC.
//!
//! Clients send MULTI around a pipeline, redis-py by default. A queued command is checked when it comes and answered
//! `QUEUED`; nothing is charged before EXEC. One bad command makes EXEC answer EXECABORT, and nothing is charged at all.

use slidegate::{Error, Limiter, Micros, Store};

use super::Name;
use super::commands::{self, Asked};
use super::session::Plain;

/// The most commands of one transaction: as many as an HTTP batch may have requests.
pub(super) const MAX_QUEUED: usize = 1_000;

/// The most bytes of one transaction: as many as an HTTP batch may have.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// Commands that begin and end a transaction, or belong to one in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
}

/// Transaction that a client has begun.
pub(super) struct Transaction {
    /// When MULTI came.
    pub(super) begun: Micros,
    /// Queued commands as they arrived, one after the other.
    pub(super) bytes: Vec<u8>,
    pub(super) commands: usize,
    /// Whether a command was rejected: EXEC then discards all of them.
    pub(super) aborted: bool,
}

impl Transaction {
    pub(super) fn begin(now: Micros) -> Self {
        Transaction { begun: now, bytes: Vec::new(), commands: 0, aborted: false }
    }

    /// Queues a command, which arrived as `bytes`. An error aborts the transaction and frees what it holds.
    pub(super) fn queue<S: Store>(
        &mut self,
        limiter: &Limiter<S>,
        name: Name,
        words: &[&[u8]],
        bytes: &[u8],
    ) -> Result<(), Error> {
        let queued = self.check(limiter, name, words, bytes);
        match queued {
            // After an error the rest is checked, for its own answer, and not kept.
            Ok(()) if !self.aborted => {
                self.commands += 1;
                self.bytes.extend_from_slice(bytes);
            }
            Ok(()) => {}
            Err(_) => self.abort(),
        }
        queued
    }

    /// Lets EXEC answer EXECABORT.
    pub(super) fn abort(&mut self) {
        *self = Transaction { aborted: true, ..Transaction::begin(self.begun) };
    }

    fn check<S: Store>(
        &self,
        limiter: &Limiter<S>,
        name: Name,
        words: &[&[u8]],
        bytes: &[u8],
    ) -> Result<(), Error> {
        if self.commands == MAX_QUEUED {
            return Err(Error::invalid(format!(
                "a transaction may have {MAX_QUEUED} commands: send EXEC before, or several transactions"
            )));
        }
        if self.bytes.len() + bytes.len() > MAX_BYTES {
            return Err(Error::invalid(format!(
                "a transaction may have {MAX_BYTES} bytes: send EXEC before, or several transactions"
            )));
        }
        match (name, words) {
            (Name::Acquire, words) => Asked::acquire(words).map(drop),
            (Name::Check, words) => Asked::check(words).map(drop),
            (Name::Peek, words) => Asked::peek(words).map(drop),
            (Name::Cell, words) => Asked::cell(words).map(drop),
            (Name::Crab, words) => Asked::crab(words).map(drop),
            (Name::Settle, words) => commands::settlement(limiter, words).map(drop),
            (Name::Release, words) => commands::held(limiter, "SG.RELEASE", words).map(drop),
            (Name::Extend, words) => commands::held(limiter, "SG.EXTEND", words).map(drop),
            (Name::Plain(Plain::Ping), [] | [_]) | (Name::Plain(Plain::Echo), [_]) => Ok(()),
            (Name::Plain(command), _) => {
                let name = format!("{command:?}").to_ascii_uppercase();
                Err(Error::invalid(format!("{name} cannot be queued like this in a transaction")))
            }
            (Name::Transaction(step), _) => {
                let name = format!("{step:?}").to_ascii_uppercase();
                Err(Error::invalid(format!("{name} inside MULTI is not allowed")))
            }
        }
    }
}
