//! Serves one RESP connection: answers commands in order, and decides them in as few store calls as possible.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use slidegate::{Clock, Decision, Error, Request, Settled};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::batch::{Batch, BatchEntry, BatchSplitter, MAX_BATCH, decision_parser, with_timeout};
use super::commands::{self, DecisionCommand, ReplyFormat};
use super::encoder::{Excerpt, ReplyBuffer};
use super::parser::CommandLimits;
use super::session::{AfterReply, Session, SessionCommand};
use super::transaction::{Transaction, TransactionCommand};
use super::{CommandName, ConnectionHandler, parser};
use crate::common::protocol::Protocol;
use crate::common::timeout::within;
use crate::protocol::connection_slots::ConnectionState;
use crate::protocol::listener::{Stop, Stream, linger_close};

/// Size of the read buffer in bytes, unless one command is larger. This is the memory cost of an idle
/// connection.
const READ_BUFFER: usize = 16 << 10;

/// Buffered replies of this many bytes are sent before more are written.
const MAX_BUFFERED_REPLIES: usize = 64 << 10;

/// Factor by which an authenticated client may idle longer than an HTTP client. Connection pools keep
/// connections open for minutes.
const IDLE_FACTOR: u32 = 10;

/// Answers commands until the connection ends, idles for too long, sends a malformed command, or `stop`
/// fires.
pub(super) async fn serve<S: Stream>(
    handler: &ConnectionHandler,
    stream: &mut S,
    peer: SocketAddr,
    state: &ConnectionState,
    stop: &Stop,
) -> io::Result<()> {
    let limits = handler.app.settings.limits;
    let mut stopping = stop.clone();
    let mut stopped = pin!(stopping.changed());
    let mut timer = pin!(tokio::time::sleep(limits.head));
    // Start of the current wait, for the rest of a command or of a transaction, or for the next command.
    let mut waiting_since = handler.clock.now();
    let mut incomplete = false;
    let mut received: Vec<u8> = Vec::with_capacity(READ_BUFFER);
    let session = Session::new(handler.next_id(), peer, &handler.app.settings.access);
    let budget_share = handler.app.budget_share();
    let mut connection =
        Connection { handler, stream, state, session, replies: ReplyBuffer::default(), transaction: None };
    loop {
        if received.len() == received.capacity() {
            // The buffer doubles only after it was really filled.
            if !budget_share.resize(connection.budgeted_bytes(2 * received.capacity())) {
                return connection.close_over_budget().await;
            }
            received.reserve_exact(received.capacity());
        }
        tokio::select! {
            biased;
            read = connection.stream.read_buf(&mut received) => if read? == 0 { return Ok(()) },
            // Every received command has been answered.
            _ = &mut stopped => return Ok(()),
            () = &mut timer => {
                // One timer serves all commands: it is re-armed when it fires, not with each command.
                let max_wait = match incomplete {
                    true => limits.request,
                    false if connection.session.authenticated => limits.head * IDLE_FACTOR,
                    false => limits.head,
                };
                let waited = Duration::from(handler.clock.now()).saturating_sub(waiting_since.into());
                if waited >= max_wait {
                    return Ok(());
                }
                timer.set(tokio::time::sleep(max_wait - waited));
                continue;
            }
        }
        let (consumed, after) = connection.process(&received).await?;
        connection.send().await?;
        let now = handler.clock.now();
        if consumed > 0 {
            state.end(now);
        }
        if after == AfterReply::Close || stop.has_changed().unwrap_or(true) {
            linger_close(connection.stream).await;
            return Ok(());
        }
        received.drain(..consumed);
        if received.is_empty() {
            received.shrink_to(READ_BUFFER);
        }
        if !budget_share.resize(connection.budgeted_bytes(received.capacity())) {
            return connection.close_over_budget().await;
        }
        match &connection.transaction {
            // The whole transaction has the time of one command: another command does not extend it.
            Some(transaction) => {
                if !incomplete {
                    timer.set(tokio::time::sleep(limits.request));
                }
                (waiting_since, incomplete) = (transaction.started_at, true);
            }
            None if received.is_empty() => (waiting_since, incomplete) = (now, false),
            None if consumed > 0 || !incomplete => {
                (waiting_since, incomplete) = (now, true);
                timer.set(tokio::time::sleep(limits.request));
            }
            None => {}
        }
    }
}

struct Connection<'d, S> {
    handler: &'d ConnectionHandler,
    stream: &'d mut S,
    state: &'d ConnectionState,
    session: Session,
    replies: ReplyBuffer,
    /// Open transaction, started by MULTI.
    transaction: Option<Transaction>,
}

/// Returns true if a command is executed immediately within a transaction, and not queued.
fn is_immediate_in_transaction(name: Option<CommandName>) -> bool {
    use CommandName::{Session, Transaction};
    matches!(
        name,
        Some(
            Transaction(TransactionCommand::Multi | TransactionCommand::Exec | TransactionCommand::Discard)
                | Session(SessionCommand::Quit | SessionCommand::Reset)
        )
    )
}

impl<S: Stream> Connection<'_, S> {
    /// Answers every whole command in `received`. Returns how many bytes were consumed, and whether the
    /// connection stays open.
    async fn process(&mut self, received: &[u8]) -> io::Result<(usize, AfterReply)> {
        let mut words = Vec::with_capacity(8);
        let mut batch = Batch::default();
        let mut consumed = 0;
        let mut after = AfterReply::KeepOpen;
        while after == AfterReply::KeepOpen {
            let start = consumed;
            match parser::next(&received[consumed..], self.session.limits(), &mut words) {
                Ok(Some(_)) if consumed == 0 && !self.state.begin() => return Ok((0, AfterReply::Close)),
                Ok(Some(length)) => consumed += length,
                Ok(None) => break,
                Err(error) => {
                    self.decide_batch(&mut batch).await;
                    self.replies.error("ERR", error);
                    return Ok((consumed, AfterReply::Close));
                }
            }
            let [first, rest @ ..] = words.as_slice() else { continue };
            let name = CommandName::parse(first);
            if self.transaction.is_some() && !is_immediate_in_transaction(name) {
                self.queue(name, first, rest, &received[start..consumed]);
                self.send_if_large().await?;
                continue;
            }
            let Some(parse) = name.and_then(decision_parser) else {
                self.decide_batch(&mut batch).await;
                after = match name {
                    Some(CommandName::Transaction(command)) if self.session.authenticated => {
                        self.run_transaction_command(command, rest).await?
                    }
                    _ => self.run_command(name, first, rest).await,
                };
                self.send_if_large().await?;
                continue;
            };
            if !self.session.authenticated {
                self.write_authentication_required();
                continue;
            }
            match parse(rest) {
                Ok(DecisionCommand { request, format })
                    if batch.entries.is_empty() && consumed == received.len() =>
                {
                    // The most common case: a single command.
                    self.decide_one(request, format).await;
                    break;
                }
                command => batch.push(command),
            }
            if batch.entries.len() == MAX_BATCH {
                self.decide_batch(&mut batch).await;
                self.send_if_large().await?;
            }
        }
        self.decide_batch(&mut batch).await;
        Ok((consumed, after))
    }

    /// Returns the bytes to charge to the budget for unfinished requests, if the buffer has this capacity.
    /// The buffer and a transaction have [`READ_BUFFER`] bytes each for free, so that small commands never
    /// depend on what other clients hold.
    fn budgeted_bytes(&self, capacity: usize) -> usize {
        let queued = self.transaction.as_ref().map_or(0, |transaction| transaction.bytes.capacity());
        capacity.saturating_sub(READ_BUFFER) + queued.saturating_sub(READ_BUFFER)
    }

    /// Rejects an incomplete command because the budget is used up, and ends the connection.
    async fn close_over_budget(&mut self) -> io::Result<()> {
        self.replies.error(
            "UNAVAILABLE",
            "the unfinished commands of all clients hold more than listen.limits.unfinished-bytes: nothing of this \
             one was done, send it again later",
        );
        self.send().await?;
        linger_close(self.stream).await;
        Ok(())
    }

    /// Queues a command of the transaction and replies `QUEUED`.
    fn queue(&mut self, name: Option<CommandName>, first: &[u8], rest: &[&[u8]], bytes: &[u8]) {
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
    async fn run_transaction_command(
        &mut self,
        command: TransactionCommand,
        words: &[&[u8]],
    ) -> io::Result<AfterReply> {
        match (command, words) {
            (TransactionCommand::Watch | TransactionCommand::Unwatch, _) => self.replies.error(
                "ERR",
                format_args!(
                    "{} is not supported: decisions between MULTI and EXEC are made in one call and need no watch",
                    format!("{command:?}").to_ascii_uppercase()
                ),
            ),
            (_, [_, ..]) => {
                let name = format!("{command:?}").to_ascii_lowercase();
                self.replies.error("ERR", format_args!("wrong number of arguments for '{name}' command"));
            }
            (TransactionCommand::Multi, []) if self.transaction.is_some() => {
                self.replies.error("ERR", "MULTI calls can not be nested");
            }
            (TransactionCommand::Multi, []) => {
                self.transaction = Some(Transaction::begin(self.handler.clock.now()));
                self.replies.simple("OK");
            }
            (TransactionCommand::Exec | TransactionCommand::Discard, []) => match self.transaction.take() {
                None => {
                    let name = format!("{command:?}").to_ascii_uppercase();
                    self.replies.error("ERR", format_args!("{name} without MULTI"));
                }
                Some(_) if command == TransactionCommand::Discard => self.replies.simple("OK"),
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
        // Every command was parsed before it was queued.
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
    async fn run_command(&mut self, name: Option<CommandName>, first: &[u8], rest: &[&[u8]]) -> AfterReply {
        match name {
            Some(CommandName::Session(command)) if self.session.may_run(command) => {
                if command == SessionCommand::Reset {
                    self.transaction = None;
                }
                return self.session.run(command, rest, &self.handler.app.settings.access, &mut self.replies);
            }
            _ if !self.session.authenticated => self.write_authentication_required(),
            Some(CommandName::Peek) => match DecisionCommand::peek(rest) {
                Ok(DecisionCommand { request, format }) => {
                    let timeout = self.timeout();
                    let instrumented = self.handler.app.instrumented(Protocol::Resp);
                    let peeked = pin!(instrumented.peek(&request));
                    let peeked = with_timeout(timeout, peeked).await;
                    self.write_decision(format, peeked);
                }
                Err(error) => self.replies.failure(&error),
            },
            Some(CommandName::Settle) => self.settle(rest).await,
            Some(CommandName::Release) => self.release(rest).await,
            Some(CommandName::Extend) => self.extend(rest).await,
            _ => self.write_unknown_command(first),
        }
        AfterReply::KeepOpen
    }

    async fn settle(&mut self, words: &[&[u8]]) {
        let timeout = self.timeout();
        let settled = match commands::parse_settle(&self.handler.app.limiter, words) {
            Ok((reservation, permits)) => {
                let settled = pin!(self.handler.app.limiter.settle(&reservation, permits));
                with_timeout(timeout, settled).await
            }
            Err(error) => Err(error),
        };
        self.write_settled(settled);
    }

    async fn release(&mut self, words: &[&[u8]]) {
        let timeout = self.timeout();
        let released = match commands::parse_reservation(&self.handler.app.limiter, "SG.RELEASE", words) {
            Ok(reservation) => {
                with_timeout(timeout, pin!(self.handler.app.limiter.release(&reservation))).await
            }
            Err(error) => Err(error),
        };
        self.write_settled(released);
    }

    async fn extend(&mut self, words: &[&[u8]]) {
        let timeout = self.timeout();
        let extended = match commands::parse_reservation(&self.handler.app.limiter, "SG.EXTEND", words) {
            Ok(reservation) => {
                with_timeout(timeout, pin!(self.handler.app.limiter.extend(&reservation))).await
            }
            Err(error) => Err(error),
        };
        self.write_settled(extended);
    }

    fn write_settled(&mut self, settled: Result<Settled, Error>) {
        match settled {
            Ok(Settled::Done) => self.replies.simple("done"),
            Ok(Settled::Already) => self.replies.simple("already"),
            Ok(Settled::Gone) => self.replies.simple("gone"),
            Err(error) => self.replies.failure(&error),
        }
    }

    async fn decide_one(&mut self, request: Request<'_>, format: ReplyFormat) {
        let timeout = self.timeout();
        let instrumented = self.handler.app.instrumented(Protocol::Resp);
        let decided = pin!(instrumented.acquire(&request));
        let decided = with_timeout(timeout, decided).await;
        self.write_decision(format, decided);
    }

    /// Decides the requests of `batch`, writes the replies and empties it. One call is enough unless the
    /// requests have too many checks for one.
    async fn decide_batch(&mut self, batch: &mut Batch<'_>) {
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

    fn write_authentication_required(&mut self) {
        self.replies.error("NOAUTH", "Authentication required.");
    }

    fn timeout(&self) -> Duration {
        self.handler.app.settings.limits.request
    }

    async fn send_if_large(&mut self) -> io::Result<()> {
        if self.replies.bytes.len() < MAX_BUFFERED_REPLIES { Ok(()) } else { self.send().await }
    }

    /// Sends the buffered replies. Nothing is read meanwhile, so a client that does not read its replies
    /// cannot send more commands.
    async fn send(&mut self) -> io::Result<()> {
        let timeout = self.timeout();
        let Connection { stream, replies, .. } = self;
        let sending = pin!(async {
            stream.write_all(&replies.bytes).await?;
            stream.flush().await
        });
        within(timeout, sending).await.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?;
        replies.bytes.clear();
        replies.bytes.shrink_to(MAX_BUFFERED_REPLIES);
        Ok(())
    }
}

fn missing_decision() -> Error {
    Error::unavailable("the store answered fewer requests than it was given")
}
