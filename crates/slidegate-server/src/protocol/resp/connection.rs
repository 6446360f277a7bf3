//! Serves one RESP connection: reads commands, answers them in order, and enforces all timeouts.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use slidegate::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::batch::{Batch, MAX_BATCH, decision_parser};
use super::commands::DecisionCommand;
use super::dispatch::is_immediate_in_transaction;
use super::encoder::ReplyBuffer;
use super::session::{AfterReply, Session};
use super::transaction::Transaction;
use super::{CommandName, ConnectionHandler, parser};
use crate::common::protocol::Protocol;
use crate::common::timeout::within;
use crate::protocol::connection_slots::ConnectionState;
use crate::protocol::listener::{Stop, Stream, linger_close};
use crate::telemetry::stats::Instrumented;

/// Size of the read buffer in bytes, unless one command is larger. This is the memory cost of an idle
/// connection.
const READ_BUFFER: usize = 16 << 10;

/// When the buffered replies have this many bytes, they are sent before more replies are written.
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
            // The buffer is full. Its capacity doubles only after the budget has allowed the new capacity.
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
            // The whole transaction has as much time as one command: another command does not extend this time.
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

pub(super) struct Connection<'d, S> {
    pub(super) handler: &'d ConnectionHandler,
    stream: &'d mut S,
    state: &'d ConnectionState,
    pub(super) session: Session,
    pub(super) replies: ReplyBuffer,
    /// Open transaction, started by MULTI.
    pub(super) transaction: Option<Transaction>,
}

impl<'d, S: Stream> Connection<'d, S> {
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
                    Some(command) if self.session.authenticated && command.is_about_transactions() => {
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

    /// Returns the bytes to charge to the budget for unfinished requests, if the read buffer has `capacity`
    /// bytes. The read buffer and a transaction have [`READ_BUFFER`] bytes each for free, so that small
    /// commands succeed even if other clients have used up the budget.
    fn budgeted_bytes(&self, capacity: usize) -> usize {
        let queued = self.transaction.as_ref().map_or(0, |transaction| transaction.bytes.capacity());
        capacity.saturating_sub(READ_BUFFER) + queued.saturating_sub(READ_BUFFER)
    }

    /// Rejects an incomplete command because the budget is used up, and ends the connection.
    async fn close_over_budget(&mut self) -> io::Result<()> {
        self.replies.error(
            "UNAVAILABLE",
            "the unfinished commands of all clients use more than listen.limits.unfinished-bytes: this \
             command was not executed, try again later",
        );
        self.send().await?;
        linger_close(self.stream).await;
        Ok(())
    }

    pub(super) fn timeout(&self) -> Duration {
        self.handler.app.settings.limits.request
    }

    pub(super) fn instrumented(&self) -> Instrumented<'d> {
        self.handler.app.instrumented(Protocol::Resp)
    }

    pub(super) async fn send_if_large(&mut self) -> io::Result<()> {
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
