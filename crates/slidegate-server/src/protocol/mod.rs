//! Protocols that clients speak, and the listeners they arrive at.

pub mod connection_slots;
pub mod grpc;
pub mod http;
pub mod listener;
#[cfg(any(fuzzing, test))]
pub(crate) mod memory_stream;
pub(crate) mod resp;
pub mod serve;
pub mod tls;
