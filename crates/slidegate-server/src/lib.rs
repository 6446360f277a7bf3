//! The Slidegate server and its command line.
//!
//! # Layout
//!
//! Each module uses only modules above it.
//!
//! | module | content |
//! |---|---|
//! | `common` | plumbing: signals, console messages, TTL cache, file watching |
//! | [`config`] | the configuration file, parsed and checked |
//! | [`store`] | the store chosen by the configuration: memory or Redis |
//! | [`mod@envoy`] | conversion of envoyproxy/ratelimit files into rules |
//! | `telemetry` | statistics, logs, traces, recordings of decisions |
//! | [`app`] | state shared by all protocols, rule manager, background tasks |
//! | [`protocol`] | listeners, TLS, HTTP, gRPC and RESP |
//! | [`cli`] | one file per subcommand; the binary only calls [`cli::run`] |
//!
//! The crate `slidegate-simulator` replays traffic against rules without a server, for `slidegate simulate`.

#![forbid(unsafe_code)]
// The future of a decision by Redis has many layers.
#![recursion_limit = "256"]
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod app;
pub mod cli;
mod common;
pub mod config;
pub mod envoy;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub mod protocol;
pub mod store;
mod telemetry;
