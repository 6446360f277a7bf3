//! Runs the commands of a connection: decisions in batches, settlements, transactions and session commands.

use std::io;
use std::pin::pin;

use slidegate::{Clock, Decision, Error, Request};

use super::CommandName;
use super::batch::{Batch, BatchEntry, BatchSplitter, decision_parser, with_timeout};
use super::commands::{DecisionCommand, ReplyFormat, parse_change};
use super::connection::Connection;
use super::encoder::Excerpt;
use super::parser::{self, CommandLimits};
use super::session::AfterReply;
use super::transaction::Transaction;
use crate::protocol::listener::Stream;
use crate::telemetry::stats::{FollowUpOutcome, ReservationChange};

/// Returns true if a command is executed immediately within a transaction, and not queued.
pub(super) fn is_immediate_in_transaction(name: Option<CommandName>) -> bool {
    use CommandName::{Discard, Exec, Multi, Quit, Reset};
    matches!(name, Some(Multi | Exec | Discard | Quit | Reset))
}

impl<S: Stream> Connection<'_, S> {
    /// Queues a command of the transaction and replies `QUEUED`.
    pub(super) fn queue(&mut self, name: Option<CommandName>, first: &[u8], rest: &[&[u8]], bytes: &[u8]) {
        let Some(transaction) = &mut self.transaction else { return };
        match name.map(|name| transaction.queue(&self.handler.app.limiter, name, rest, bytes)) {
            Some(Ok(())) => self.replies.simple("QUEUED"),
            Some(Err(error)) => self.replies.failure(&error),
            None => {
                transaction.abort();
                self.write_unknown_command(first);
            }
        }
    }

    /// Runs a command that begins or ends a transaction.
    pub(super) async fn run_transaction_command(
        &mut self,
        command: CommandName,
        words: &[&[u8]],
    ) -> io::Result<AfterReply> {
        match (command, words) {
            (CommandName::Watch | CommandName::Unwatch, _) => self.replies.error(
                "ERR",
                format_args!(
                    "{} is not supported: decisions between MULTI and EXEC are made in one call and need no watch",
                    command.as_str()
                ),
            ),
            (_, [_, ..]) => {
                let name = command.as_str().to_ascii_lowercase();
                self.replies.error("ERR", format_args!("wrong number of arguments for '{name}' command"));
            }
            (CommandName::Multi, []) if self.transaction.is_some() => {
                self.replies.error("ERR", "MULTI calls can not be nested");
            }
            (CommandName::Multi, []) => {
                self.transaction = Some(Transaction::begin(self.handler.clock.now()));
                self.replies.simple("OK");
            }
            (_, []) => match self.transaction.take() {
                None => self.replies.error("ERR", format_args!("{} without MULTI", command.as_str())),
                Some(_) if command == CommandName::Discard => self.replies.simple("OK"),
                Some(transaction) if transaction.aborted => {
                    self.replies.error("EXECABORT", "Transaction discarded because of previous errors.");
                }
                Some(transaction) => self.execute(&transaction).await?,
            },
        }
        Ok(AfterReply::KeepOpen)
    }

    /// Replies to the queued commands with one array. Consecutive decisions are made in one call.
    async fn execute(&mut self, transaction: &Transaction) -> io::Result<()> {
        self.replies.array(transaction.commands);
        let (mut words, mut batch, mut rest) = (Vec::with_capacity(8), Batch::default(), &*transaction.bytes);
        // Every command was parsed before it was queued, so parsing succeeds.
        while let Ok(Some(length)) = parser::next(rest, CommandLimits::AUTHENTICATED, &mut words) {
            rest = &rest[length..];
            let [first, arguments @ ..] = words.as_slice() else { continue };
            let name = CommandName::parse(first);
            match name.and_then(decision_parser) {
                Some(parse) => batch.push(parse(arguments)),
                None => {
                    self.decide_batch(&mut batch).await;
                    self.run_command(name, first, arguments).await;
                    self.send_if_large().await?;
                }
            }
        }
        self.decide_batch(&mut batch).await;
        Ok(())
    }

    /// Runs a command that is not part of a batch.
    pub(super) async fn run_command(
        &mut self,
        name: Option<CommandName>,
        first: &[u8],
        rest: &[&[u8]],
    ) -> AfterReply {
        match name {
            Some(command) if !self.session.may_run(command) => self.write_authentication_required(),
            None if !self.session.authenticated => self.write_authentication_required(),
            None => self.write_unknown_command(first),
            Some(CommandName::Peek) => match DecisionCommand::peek(rest) {
                Ok(DecisionCommand { request, format }) => {
                    let peeked = with_timeout(self.timeout(), pin!(self.instrumented().peek(&request))).await;
                    self.write_decision(format, peeked);
                }
                Err(error) => self.replies.failure(&error),
            },
            Some(name @ (CommandName::Settle | CommandName::Release | CommandName::Extend)) => {
                self.change(parse_change(name, rest)).await;
            }
            Some(command) => {
                if command == CommandName::Reset {
                    self.transaction = None;
                }
                return self.session.run(command, rest, &self.handler.app.settings.access, &mut self.replies);
            }
        }
        AfterReply::KeepOpen
    }

    /// Changes the admission that a reservation names.
    async fn change(&mut self, change: Result<(&str, ReservationChange), Error>) {
        let settled = match change {
            Ok((reservation, change)) => {
                with_timeout(self.timeout(), pin!(self.instrumented().change(reservation, change))).await
            }
            Err(error) => Err(error),
        };
        match settled {
            Ok(settled) => self.replies.simple(FollowUpOutcome::from(settled).as_str()),
            Err(error) => self.replies.failure(&error),
        }
    }

    pub(super) async fn decide_one(&mut self, request: Request<'_>, format: ReplyFormat) {
        let decided = with_timeout(self.timeout(), pin!(self.instrumented().acquire(&request))).await;
        self.write_decision(format, decided);
    }

    /// Decides the requests of `batch`, writes the replies and empties the batch. One call is enough unless the
    /// requests have too many checks for one call.
    pub(super) async fn decide_batch(&mut self, batch: &mut Batch<'_>) {
        let mut splitter = BatchSplitter { remaining: &batch.requests, max_requests: batch.requests.len() };
        let mut decisions = Ok(Vec::new().into_iter());
        for entry in batch.entries.drain(..) {
            match entry {
                BatchEntry::Invalid(error) => self.replies.failure(&error),
                BatchEntry::Decision(format) => {
                    if decisions.as_ref().is_ok_and(|decisions| decisions.len() == 0) {
                        decisions =
                            splitter.decide_next(self.handler, self.timeout()).await.map(Vec::into_iter);
                    }
                    let decided = match &mut decisions {
                        Ok(decisions) => decisions.next().unwrap_or_else(|| Err(missing_decision())),
                        Err(error) => Err(error.clone()),
                    };
                    self.write_decision(format, decided);
                }
            }
        }
        batch.requests.clear();
    }

    fn write_decision(&mut self, format: ReplyFormat, decided: Result<Decision, Error>) {
        match decided {
            Ok(decision) => format.write(&self.handler.app.limiter, &decision, &mut self.replies),
            Err(error) => self.replies.failure(&error),
        }
    }

    fn write_unknown_command(&mut self, name: &[u8]) {
        self.replies.error("ERR", format_args!("unknown command '{}'", Excerpt(name)));
    }

    pub(super) fn write_authentication_required(&mut self) {
        self.replies.error("NOAUTH", "Authentication required.");
    }
}

fn missing_decision() -> Error {
    Error::unavailable("the store answered fewer requests than it was given")
}
