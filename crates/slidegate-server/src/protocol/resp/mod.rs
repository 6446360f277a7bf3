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

slidegate::words! {
    /// Command, identified by its name.
    enum CommandName {
        Acquire = "SG.ACQUIRE",
        Check = "SG.CHECK",
        Peek = "SG.PEEK",
        Settle = "SG.SETTLE",
        Release = "SG.RELEASE",
        Extend = "SG.EXTEND",
        RedisCell = "CL.THROTTLE",
        Throttlecrab = "THROTTLE",
        Multi = "MULTI",
        Exec = "EXEC",
        Discard = "DISCARD",
        Watch = "WATCH",
        Unwatch = "UNWATCH",
        Auth = "AUTH",
        Client = "CLIENT",
        Command = "COMMAND",
        Config = "CONFIG",
        Echo = "ECHO",
        Hello = "HELLO",
        Info = "INFO",
        Ping = "PING",
        Quit = "QUIT",
        Reset = "RESET",
        Select = "SELECT",
    }
}

impl CommandName {
    fn parse(name: &[u8]) -> Option<Self> {
        CommandName::ALL.into_iter().find(|known| known.as_str().as_bytes().eq_ignore_ascii_case(name))
    }

    /// Returns true for the commands that begin or end a transaction, and for those that belong to transactions
    /// in Redis.
    fn is_about_transactions(self) -> bool {
        use CommandName::{Discard, Exec, Multi, Unwatch, Watch};
        matches!(self, Multi | Exec | Discard | Watch | Unwatch)
    }
}
