//! Tests the Redis protocol.

mod clients; // redis-cli, redis-benchmark, redis-py and the redis crate
mod commands; // the reply of each command
mod pipelines; // many commands at once: exactly the limit, in order, no reply lost on shutdown
pub(crate) mod raw_client; // helper: a server in this process, and a client that sends plain bytes
mod transactions; // MULTI, EXEC and DISCARD: one batch, or nothing
mod untrusted_clients; // invalid and unfinished input

pub(crate) use self::raw_client::{Wire, encode, simple};
