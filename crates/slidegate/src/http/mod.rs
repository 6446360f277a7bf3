//! HTTP support around a decision: client address, path normalization, and rate-limit headers. `slidegate serve` and the
//! [tower layer](crate::tower) use it.

mod client_ip;
mod forwarded;
pub mod headers;

pub use self::client_ip::{client, counted, network};
pub use crate::common::path_spelling::{PathSpelling, host, path};
pub use forwarded::{forwarded, x_forwarded_for};
