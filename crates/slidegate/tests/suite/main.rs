//! The library from outside, one module per promise.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

mod brute; // the definition of every algorithm, with no thought of speed
mod definition; // random operations agree with the definition, and retry_after is exact from both sides
