//! Benchmarks of the library beside other rate limiters, in one run.
//!
//! `cargo run --release --manifest-path benchmarks/Cargo.toml -- decision` prints the table of `decision`.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, missing_docs)]

mod decision;

fn main() -> std::process::ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("decision") => decision::run(),
        _ => {
            eprintln!(
                "usage: benchmarks decision\n\n  decision   one decision in memory, beside governor and limitador"
            );
            return std::process::ExitCode::from(2);
        }
    }
    std::process::ExitCode::SUCCESS
}
