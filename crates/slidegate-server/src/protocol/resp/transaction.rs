//! Transactions: the commands between MULTI and EXEC.
//!
//! Clients send MULTI around a pipeline, redis-py by default. A queued command is validated when it arrives
//! and answered with `QUEUED`. Nothing is charged before EXEC. One invalid command makes EXEC reply
//! EXECABORT, and nothing is charged at all.

use slidegate::{Error, Limiter, Micros, Store};

use super::CommandName;
use super::commands::{DecisionCommand, parse_change};
use super::session::SessionCommand;

/// Maximum number of commands in one transaction, the same as of requests in an HTTP batch.
pub(super) const MAX_QUEUED: usize = 1_000;

/// Maximum size of one transaction in bytes, the same as of an HTTP batch.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// Commands that begin or end a transaction, or belong to one in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransactionCommand {
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
}

/// Open transaction of one client.
pub(super) struct Transaction {
    /// Arrival time of MULTI.
    pub(super) started_at: Micros,
    /// Queued commands as received, concatenated.
    pub(super) bytes: Vec<u8>,
    pub(super) commands: usize,
    /// True if a command was rejected: EXEC then discards all of them.
    pub(super) aborted: bool,
}

impl Transaction {
    pub(super) fn begin(now: Micros) -> Self {
        Transaction { started_at: now, bytes: Vec::new(), commands: 0, aborted: false }
    }

    /// Queues a command that was received as `bytes`. An error aborts the transaction and frees its memory.
    pub(super) fn queue<S: Store>(
        &mut self,
        limiter: &Limiter<S>,
        name: CommandName,
        words: &[&[u8]],
        bytes: &[u8],
    ) -> Result<(), Error> {
        let result = self.check(limiter, name, words, bytes);
        match result {
            // After an error the remaining commands are validated, for their own replies, but not stored.
            Ok(()) if !self.aborted => {
                self.commands += 1;
                self.bytes.extend_from_slice(bytes);
            }
            Ok(()) => {}
            Err(_) => self.abort(),
        }
        result
    }

    /// Makes EXEC reply EXECABORT.
    pub(super) fn abort(&mut self) {
        *self = Transaction { aborted: true, ..Transaction::begin(self.started_at) };
    }

    fn check<S: Store>(
        &self,
        limiter: &Limiter<S>,
        name: CommandName,
        words: &[&[u8]],
        bytes: &[u8],
    ) -> Result<(), Error> {
        if self.commands == MAX_QUEUED {
            return Err(Error::invalid(format!(
                "a transaction may have at most {MAX_QUEUED} commands: use several transactions"
            )));
        }
        if self.bytes.len() + bytes.len() > MAX_BYTES {
            return Err(Error::invalid(format!(
                "a transaction may have at most {MAX_BYTES} bytes: use several transactions"
            )));
        }
        match (name, words) {
            (CommandName::Acquire, words) => DecisionCommand::acquire(words).map(drop),
            (CommandName::Check, words) => DecisionCommand::check(words).map(drop),
            (CommandName::Peek, words) => DecisionCommand::peek(words).map(drop),
            (CommandName::RedisCell, words) => DecisionCommand::redis_cell(words).map(drop),
            (CommandName::Throttlecrab, words) => DecisionCommand::throttlecrab(words).map(drop),
            (CommandName::Settle | CommandName::Release | CommandName::Extend, words) => {
                let (reservation, _) = parse_change(name, words)?;
                limiter.verify(reservation).map(drop)
            }
            (CommandName::Session(SessionCommand::Ping), [] | [_])
            | (CommandName::Session(SessionCommand::Echo), [_]) => Ok(()),
            (CommandName::Session(command), _) => {
                let name = format!("{command:?}").to_ascii_uppercase();
                Err(Error::invalid(format!("{name} cannot be queued in a transaction with these arguments")))
            }
            (CommandName::Transaction(step), _) => {
                let name = format!("{step:?}").to_ascii_uppercase();
                Err(Error::invalid(format!("{name} inside MULTI is not allowed")))
            }
        }
    }
}
