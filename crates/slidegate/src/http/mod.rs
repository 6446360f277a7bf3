//! What an HTTP server needs around a decision: who its client is, what it asks for in one spelling, and the headers of
//! an answer. The doors of `slidegate serve` and the [tower layer](crate::tower) have it from here.

mod client_ip;
mod forwarded;
pub mod headers;

pub use self::client_ip::{client, counted, network};
pub use crate::common::path_spelling::{PathSpelling, host, path};
pub use forwarded::{forwarded, x_forwarded_for};
