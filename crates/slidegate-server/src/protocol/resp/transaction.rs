//! Transactions: the commands between MULTI and EXEC.
//!
//! Some clients send a pipeline between MULTI and EXEC; redis-py does so by default. A queued command is
//! validated when it arrives and answered with `QUEUED`. Nothing is charged before EXEC. One invalid command
//! makes EXEC reply EXECABORT, and nothing is charged at all.

use slidegate::{Error, Limiter, Micros, Store};

use super::CommandName;
use super::batch::decision_parser;
use super::commands::{DecisionCommand, parse_change};

/// Maximum number of commands in one transaction, equal to the maximum number of requests in an HTTP batch.
pub(super) const MAX_QUEUED: usize = 1_000;

/// Maximum size of one transaction in bytes, equal to the maximum size of an HTTP batch.
pub(super) const MAX_BYTES: usize = 1 << 20;

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
        if let Some(parse) = decision_parser(name) {
            return parse(words).map(drop);
        }
        match (name, words) {
            (CommandName::Peek, words) => DecisionCommand::peek(words).map(drop),
            (CommandName::Settle | CommandName::Release | CommandName::Extend, words) => {
                let (reservation, _) = parse_change(name, words)?;
                limiter.verify(reservation).map(drop)
            }
            (CommandName::Ping, [] | [_]) | (CommandName::Echo, [_]) => Ok(()),
            _ => {
                let problem = match name.is_about_transactions() {
                    true => "inside MULTI is not allowed",
                    false => "cannot be queued in a transaction with these arguments",
                };
                Err(Error::invalid(format!("{} {problem}", name.as_str())))
            }
        }
    }
}
