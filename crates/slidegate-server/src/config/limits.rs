//! Bounds on the resources that clients can use.

use std::time::Duration;

/// Upper bound on the body of a request that replaces the rules, in bytes.
pub const MAX_RULES_BODY: usize = 4 << 20;

/// Bounds on the resources that clients can use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time limit for the head of a request, and for an idle connection.
    pub head: Duration,
    /// Time limit for a whole request to arrive, and for a client to read each part of the response.
    pub request: Duration,
    /// Time limit for requests in flight after the signal to stop.
    pub shutdown: Duration,
    /// Upper bound on the connections of each listener. Beyond it, idle connections are closed to make room.
    pub connections: usize,
    /// Upper bound on connections from one client address, or one /64 network of IPv6.
    pub connections_per_address: usize,
    /// Time limit for the first byte of a connection.
    pub first_byte: Duration,
    /// Upper bound on the bytes of unfinished requests of all connections.
    pub unfinished_bytes: usize,
    /// Upper bound on gRPC streams: watches of `grpc.health.v1.Health` and reflection.
    pub grpc_streams: usize,
    /// Upper bound on gRPC streams of one connection.
    pub grpc_streams_per_connection: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            head: Duration::from_secs(30),
            request: Duration::from_secs(10),
            shutdown: Duration::from_secs(10),
            connections: 10_000,
            connections_per_address: 5_000,
            first_byte: Duration::from_secs(10),
            unfinished_bytes: 256 << 20,
            grpc_streams: 1_000,
            grpc_streams_per_connection: 8,
        }
    }
}
