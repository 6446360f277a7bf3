//! RESP server: any Redis client can be a client of Slidegate.
//!
//! - `parser` finds commands in the received bytes.
//! - `commands` converts the commands that decide to requests, and decisions to integers.
//! - `batch` decides the commands that arrived together in as few store calls as possible.
//! - `session` answers the commands by which clients log in and introspect the server.
//! - `transaction` holds the commands between MULTI and EXEC.
//! - `encoder` writes replies.
//! - `dispatch` runs the commands.
//! - `connection` reads, sends the replies and enforces all timeouts.

mod batch;
mod commands;
mod connection;
mod dispatch;
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

/// Number of commands, the reply to `COMMAND COUNT`.
const COMMAND_COUNT: i64 = 22;

/// Serves connections of the Redis protocol.
pub(crate) struct ConnectionHandler {
    app: Arc<AppState>,
    clock: SystemClock,
    /// Number of connections so far; the id of the newest one.
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

/// Command, identified by its name.
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
