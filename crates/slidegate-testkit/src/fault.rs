//! Network faults that the fault proxy imitates.

use std::time::Duration;

/// Fault that the proxy imitates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault: everything passes.
    None,
    /// Every byte is late by this time, in each direction, for any number of bytes under way.
    Delay(Duration),
    /// Connections are accepted and stay open; nothing passes.
    BlackHole,
    /// Connections end with RST. New connections end as soon as they are accepted.
    Reset,
    /// Only a few bytes pass at a time, in each direction.
    Drip {
        /// Bytes at a time.
        bytes: usize,
        /// Time between two writes.
        every: Duration,
    },
    /// Requests reach the server; replies do not come back.
    HalfOpen,
    /// Connections are closed, and new ones are refused.
    Deny,
    /// The server receives this number of further bytes over all connections. Then the proxy closes the connection of the
    /// last byte: complete commands are executed, and no reply follows. After one cut the fault is `None`.
    CutAfterBytes(u64),
    /// Like `CutAfterBytes`, but the number is of whole commands, including the handshake. It does not work with TLS,
    /// which hides commands.
    CutAfterCommands(u64),
}
