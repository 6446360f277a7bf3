//! The Slidegate server and its command line.
//!
//! # Layout
//!
//! Each module uses only modules above it.
//!
//! | module | content |
//! |---|---|
//! | `common` | utilities: signals, console messages, TTL cache, file watching |
//! | [`config`] | the configuration file, parsed and checked |
//! | `store` | the store chosen by the configuration: memory or Redis |
//! | [`mod@envoy`] | conversion of envoyproxy/ratelimit files into rules |
//! | `telemetry` | statistics, logs, traces, recordings of decisions |
//! | `app` | state shared by all protocols, rule manager, background tasks |
//! | `protocol` | listeners, TLS, HTTP, gRPC and RESP |
//! | `cli` | one file per subcommand; the binary only calls [`run`] |
//!
//! The names at the root are those that the binary, the tests and `fuzz/` use.
//!
//! The crate `slidegate-simulator` replays traffic against rules without a server, for `slidegate simulate`.

#![forbid(unsafe_code)]
// The future of a decision by Redis has many layers.
#![recursion_limit = "256"]
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod app;
mod cli;
mod common;
pub mod config;
pub mod envoy;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod protocol;
mod store;
mod telemetry;

pub use crate::app::auth::{Auth, Token};
pub use crate::app::state::AppState;
pub use crate::cli::{command, run};
pub use crate::config::{Config, DEMO, Limits, RedisConfig};
pub use crate::protocol::grpc::messages;
pub use crate::protocol::serve;
pub use crate::store::AnyStore;
