//! Protocols that clients speak, and the listeners they arrive at.

pub(crate) mod connection_slots;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod listener;
#[cfg(any(fuzzing, test))]
pub(crate) mod memory_stream;
pub(crate) mod resp;
pub mod serve;
pub(crate) mod tls;
