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

use self::session::Plain;
use self::transaction::Step;
use super::connection_slots::ConnectionState;
use super::listener::{self, Stop, Stream};
use crate::app::state::AppState;
use crate::common::protocol::Protocol;

/// How many commands there are.
const COMMANDS: i64 = 22;

/// Answers in the Redis protocol.
pub(crate) struct ConnectionHandler {
    gate: Arc<AppState>,
    clock: SystemClock,
    /// Connections so far, which are their ids.
    connections: AtomicU64,
}

impl ConnectionHandler {
    pub(crate) fn new(gate: Arc<AppState>) -> Self {
        ConnectionHandler { gate, clock: SystemClock::new(), connections: AtomicU64::new(0) }
    }

    fn next_id(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl listener::ConnectionHandler for ConnectionHandler {
    const PROTOCOL: Protocol = Protocol::Resp;

    fn gate(&self) -> &AppState {
        &self.gate
    }

    async fn serve(
        self: Arc<Self>,
        mut stream: impl Stream,
        peer: SocketAddr,
        seat: Arc<ConnectionState>,
        stop: Stop,
    ) {
        let _ = connection::serve(&self, &mut stream, peer, &seat, &stop).await;
    }
}

/// What a command's name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Acquire,
    Check,
    Peek,
    Settle,
    Release,
    Extend,
    Cell,
    Crab,
    Transaction(Step),
    Plain(Plain),
}

impl Name {
    fn of(word: &[u8]) -> Option<Self> {
        let mut upper = [0; 11];
        let upper = upper.get_mut(..word.len())?;
        upper.copy_from_slice(word);
        upper.make_ascii_uppercase();
        Some(match &*upper {
            b"SG.ACQUIRE" => Name::Acquire,
            b"SG.CHECK" => Name::Check,
            b"SG.PEEK" => Name::Peek,
            b"SG.SETTLE" => Name::Settle,
            b"SG.RELEASE" => Name::Release,
            b"SG.EXTEND" => Name::Extend,
            b"CL.THROTTLE" => Name::Cell,
            b"THROTTLE" => Name::Crab,
            b"MULTI" => Name::Transaction(Step::Multi),
            b"EXEC" => Name::Transaction(Step::Exec),
            b"DISCARD" => Name::Transaction(Step::Discard),
            b"WATCH" => Name::Transaction(Step::Watch),
            b"UNWATCH" => Name::Transaction(Step::Unwatch),
            b"AUTH" => Name::Plain(Plain::Auth),
            b"CLIENT" => Name::Plain(Plain::Client),
            b"COMMAND" => Name::Plain(Plain::Command),
            b"CONFIG" => Name::Plain(Plain::Config),
            b"ECHO" => Name::Plain(Plain::Echo),
            b"HELLO" => Name::Plain(Plain::Hello),
            b"INFO" => Name::Plain(Plain::Info),
            b"PING" => Name::Plain(Plain::Ping),
            b"QUIT" => Name::Plain(Plain::Quit),
            b"RESET" => Name::Plain(Plain::Reset),
            b"SELECT" => Name::Plain(Plain::Select),
            _ => return None,
        })
    }
}
