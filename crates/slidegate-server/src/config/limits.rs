//! Bounds on what clients may take of the server.

use std::time::Duration;

/// The most bytes of a request that replaces the rules.
pub const MAX_RULES_BODY: usize = 4 << 20;

/// What a client may take of the server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long the head of a request may take to arrive, and how long a connection may idle.
    pub head: Duration,
    /// How long a request may take to arrive whole, and a client to read any part of its answer.
    pub request: Duration,
    /// How long what is in flight may take after the signal to stop.
    pub shutdown: Duration,
    /// The most connections at once of each door. Beyond that, connections that are not in use make room.
    pub connections: usize,
    /// The most of them from one client address, or one /64 network of IPv6.
    pub connections_per_address: usize,
    /// Time in which the first byte of a connection must come.
    pub first_byte: Duration,
    /// Bytes that unfinished requests of all connections may hold.
    pub unfinished_bytes: usize,
    /// The most gRPC streams at once: watches of `grpc.health.v1.Health` and reflection.
    pub grpc_streams: usize,
    /// The most of them on one connection.
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
