//! The Redis protocol.

mod clients; // redis-cli, redis-benchmark, redis-py and the redis crate connect and ask
mod commands; // what each command is answered
mod pipelines; // many commands at once: exactly the limit, in order, and none lost when it stops
mod strangers; // whatever else is sent: bounded, answered with an error, or given up
mod transactions; // MULTI, EXEC and DISCARD: one batch, or nothing
pub(crate) mod wire; // a server in this process, and a client that knows only bytes

pub(crate) use self::wire::{Wire, encode, simple};
