//! A [tower](https://docs.rs/tower) layer for axum, tonic, hyper and any other `Service` of HTTP requests.
//!
//! ```
//! use std::net::SocketAddr;
//! use axum::{Router, extract::ConnectInfo, routing::get};
//! use slidegate::tower::{ClientAddress, Extract, RateLimitLayer};
//! use slidegate::{Limiter, MemoryStore, Rules};
//!
//! let rules = Rules::from_yaml("
//! rules:
//!   - { name: per-client, key: [ip], limit: 100, window: 1s }
//!   - { name: searches, match: { path: /search }, key: [ip], limit: 2, window: 30s, algorithm: concurrency }
//! ")?;
//! let layer = RateLimitLayer::new(Limiter::new(MemoryStore::new(), rules))
//!     .attribute("ip", ClientAddress::new(|ConnectInfo(peer): &ConnectInfo<SocketAddr>| Some(*peer)))?
//!     .attribute("path", Extract::path())?
//!     .refund_failures();
//! let app: Router = Router::new().route("/search", get(async || "found")).layer(layer);
//! # Ok::<(), slidegate::Error>(())
//! ```
//!
//! The layer [extracts](Extract) the attributes of a request from its head, and the [`Limiter`](crate::Limiter) decides. A
//! denied request gets status 429, or `ResourceExhausted` if it is gRPC. Both have the same headers as replies of the HTTP
//! API. Permits of `concurrency` rules are extended while a request is in progress. They are released when the body of its
//! response has been sent or dropped, or its client has disconnected.

mod background;
mod body;
mod client_address;
mod decision_future;
mod denial;
mod extract;
mod extract_error;
mod future;
mod grpc;
mod in_flight;
mod layer;
mod permit_guard;
mod shared;

pub use self::denial::Denial;
pub use self::extract_error::Rejection;
pub use body::ResponseBody;
pub use client_address::ClientAddress;
pub use extract::Extract;
pub use future::ResponseFuture;
pub use layer::{RateLimit, RateLimitLayer};
