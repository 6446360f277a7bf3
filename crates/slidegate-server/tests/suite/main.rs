//! The server from outside, one module per promise.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
