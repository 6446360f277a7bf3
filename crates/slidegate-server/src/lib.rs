//! The Slidegate server and its command line.
//!
//! # Layout
//!
//! [`cli`] is what a person types, [`config`] the file, checked. [`serve`] opens and closes the doors, [`listen`] accepts
//! connections for them. Each door, [`http`], `grpc` and `resp`, makes a [`slidegate::Request`] of bytes and bytes of a
//! [`slidegate::Decision`]; all decide with one [`gate::Gate`]. [`store`] is where it counts, [`access`] who may ask.
//! `log` says what happens, `trace` has a span for every decision, `recording` writes them down to be replayed.
//! [`mod@envoy`] turns the files of envoyproxy/ratelimit into rules.
//! [`acquire`] is a client for scripts and people, [`mod@explain`] says why, [`mod@bench`] is a load generator, [`mod@simulate`] says
//! what rules would do. The binary only calls [`cli::run`].

#![forbid(unsafe_code)]
// A decision by Redis is a future of many layers.
#![recursion_limit = "256"]
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod access;
pub mod acquire;
mod adapt;
mod asking;
pub mod bench;
pub mod cli;
mod client;
pub mod config;
pub mod envoy;
pub mod explain;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub mod gate;
pub mod grpc;
pub mod http;
mod kept;
pub mod listen;
mod live;
mod log;
mod monitor;
mod record;
mod recording;
mod reservations;
mod resp;
pub mod room;
pub mod rulebook;
pub mod serve;
pub mod simulate;
pub mod store;
pub mod tls;
mod trace;
mod unfinished;
mod watch;
mod within;
