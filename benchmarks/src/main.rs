//! Benchmarks of the library beside other rate limiters, in one run.
//!
//! `cargo run --release --manifest-path benchmarks/Cargo.toml -- decision` prints the tables of `decision`; `keyed` those of
//! `keyed`.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, missing_docs)]

mod decision;
mod keyed;
mod race;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

fn main() -> std::process::ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("decision") => decision::run(),
        Some("keyed") => keyed::run(),
        _ => {
            eprintln!(
                "usage: benchmarks NAME\n\n  decision   one decision in memory with a prepared key, beside governor and limitador\n  keyed      the call that a user writes, with the text of a key, beside governor"
            );
            return std::process::ExitCode::from(2);
        }
    }
    std::process::ExitCode::SUCCESS
}

/// Returns the value of a future that never waits, such as a decision of the memory store.
#[inline(always)]
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("the memory store waited"),
    }
}
