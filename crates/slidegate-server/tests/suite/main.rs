//! The server from outside, one module per promise.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

mod bad_input; // whatever a stranger sends is refused with a clear word, and changes nothing
mod commands; // serve, validate, schema, acquire: what they print and how they exit
mod decisions; // bodies, statuses and headers of decisions
mod dependencies; // nothing we depend on needs a newer Rust than we say
mod patience; // slow clients are given up, and stopping loses no answer
mod readme; // the README's lines answer as printed
mod redis; // counting in Redis, from the door
#[path = "../../../slidegate/tests/suite/redis_server.rs"]
mod redis_server; // a real Redis, free port, killed on drop
mod server; // a real server on a free port, killed on drop
