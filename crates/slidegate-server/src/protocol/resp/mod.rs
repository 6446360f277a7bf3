//! The RESP door: every Redis client is a client.
//!
//! `words` finds commands in bytes, `asked` makes requests of those that decide and numbers of decisions, `client` answers
//! the others, `transaction` holds the commands between MULTI and EXEC, `answers` writes; `connection` reads, decides what
//! came together in one call, and has all the patience.

mod commands;
mod connection;
mod encoder;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod parser;
mod session;
mod transaction;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slidegate::SystemClock;

use self::session::SessionCommand;
use self::transaction::TransactionCommand;
use super::connection_slots::ConnectionState;
use super::listener::{self, Stop, Stream};
use crate::app::state::AppState;
use crate::common::protocol::Protocol;

/// How many commands there are.
const COMMAND_COUNT: i64 = 22;

/// Answers in the Redis protocol.
pub(crate) struct ConnectionHandler {
    app: Arc<AppState>,
    clock: SystemClock,
    /// Connections so far, which are their ids.
    connections: AtomicU64,
}

impl ConnectionHandler {
    pub(crate) fn new(app: Arc<AppState>) -> Self {
        ConnectionHandler { app, clock: SystemClock::new(), connections: AtomicU64::new(0) }
    }

    fn next_id(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl listener::ConnectionHandler for ConnectionHandler {
    const PROTOCOL: Protocol = Protocol::Resp;

    fn app(&self) -> &AppState {
        &self.app
    }

    async fn serve(
        self: Arc<Self>,
        mut stream: impl Stream,
        peer: SocketAddr,
        state: Arc<ConnectionState>,
        stop: Stop,
    ) {
        let _ = connection::serve(&self, &mut stream, peer, &state, &stop).await;
    }
}

/// What a command's name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandName {
    Acquire,
    Check,
    Peek,
    Settle,
    Release,
    Extend,
    RedisCell,
    Throttlecrab,
    Transaction(TransactionCommand),
    Session(SessionCommand),
}

impl CommandName {
    fn parse(name: &[u8]) -> Option<Self> {
        let mut upper = [0; 11];
        let upper = upper.get_mut(..name.len())?;
        upper.copy_from_slice(name);
        upper.make_ascii_uppercase();
        Some(match &*upper {
            b"SG.ACQUIRE" => CommandName::Acquire,
            b"SG.CHECK" => CommandName::Check,
            b"SG.PEEK" => CommandName::Peek,
            b"SG.SETTLE" => CommandName::Settle,
            b"SG.RELEASE" => CommandName::Release,
            b"SG.EXTEND" => CommandName::Extend,
            b"CL.THROTTLE" => CommandName::RedisCell,
            b"THROTTLE" => CommandName::Throttlecrab,
            b"MULTI" => CommandName::Transaction(TransactionCommand::Multi),
            b"EXEC" => CommandName::Transaction(TransactionCommand::Exec),
            b"DISCARD" => CommandName::Transaction(TransactionCommand::Discard),
            b"WATCH" => CommandName::Transaction(TransactionCommand::Watch),
            b"UNWATCH" => CommandName::Transaction(TransactionCommand::Unwatch),
            b"AUTH" => CommandName::Session(SessionCommand::Auth),
            b"CLIENT" => CommandName::Session(SessionCommand::Client),
            b"COMMAND" => CommandName::Session(SessionCommand::Command),
            b"CONFIG" => CommandName::Session(SessionCommand::Config),
            b"ECHO" => CommandName::Session(SessionCommand::Echo),
            b"HELLO" => CommandName::Session(SessionCommand::Hello),
            b"INFO" => CommandName::Session(SessionCommand::Info),
            b"PING" => CommandName::Session(SessionCommand::Ping),
            b"QUIT" => CommandName::Session(SessionCommand::Quit),
            b"RESET" => CommandName::Session(SessionCommand::Reset),
            b"SELECT" => CommandName::Session(SessionCommand::Select),
            _ => return None,
        })
    }
}
