//! What an HTTP server needs around a decision: who its client is, what it asks for in one spelling, and the headers of
//! an answer. The doors of `slidegate serve` and the [tower layer](crate::tower) have it from here.

mod client;
mod forwarded;
pub mod headers;
mod path;

pub use client::{client, counted, network};
pub use forwarded::{forwarded, x_forwarded_for};
pub use path::{PathSpelling, host, path};
