//! The Slidegate server and its command line.
//!
//! # Layout
//!
//! [`cli`] is what a person types, [`config`] the file, checked. [`serve`] binds, accepts and shuts down;
//! [`store`] is where it counts; [`http`] is the one door so far: bytes to a [`slidegate::Request`], a [`slidegate::Decision`] to bytes.
//! [`acquire`] is a client for scripts and people. The binary only calls [`cli::run`].

#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod acquire;
pub mod cli;
pub mod config;
pub mod http;
pub mod serve;
pub mod store;
