//! Real servers for the tests of Slidegate, networks that fail, and clocks that can be set.
//!
//! - [`RedisServer`], [`Cluster`] and [`Sentinels`] start Redis on free ports and kill it on drop.
//! - [`FaultProxy`] stands between a client and a server and delays, drops or resets connections.
//! - [`FakeTime`] gives one server a clock of its own.
//! - [`certificates`] writes a certificate authority and the certificates of a server and a client.
//! - [`documents`] compares generated files of the repository with the code.
//! - [`process`] runs child processes with a time limit; [`stub`], [`upstream`] and [`http2_client`] are peers of a server
//!   that is tested.
//!
//! This crate depends on no other crate of the workspace, so every one of them can use it in its tests. A helper that fails
//! panics: its callers are tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::new_without_default)]

mod certificates;
pub mod documents;
mod fake_time;
mod fault;
mod fault_proxy;
#[cfg(test)]
mod fault_proxy_tests;
mod fault_wires;
pub mod http2_client;
pub mod process;
mod redis_cluster;
mod redis_sentinel;
mod redis_server;
mod resp_commands;
pub mod stub;
pub mod upstream;
mod wait;

pub use certificates::certificates;
pub use fake_time::FakeTime;
pub use fault::Fault;
pub use fault_proxy::FaultProxy;
pub use redis_cluster::{Cluster, Step};
pub use redis_sentinel::Sentinels;
pub use redis_server::{Flavour, RedisServer, eventually, lasting_port};
pub use wait::{until, within_limit};
