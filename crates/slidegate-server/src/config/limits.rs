//! Bounds on the resources that clients can use.

use std::time::Duration;

use slidegate::Micros;

/// Upper bound on the body of a request that replaces the rules, in bytes.
pub const MAX_RULES_BODY: usize = 4 << 20;

/// Bounds on the resources that clients can use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time limit for the head of a request, and for an idle connection.
    pub head: Duration,
    /// Time limit for a whole request to arrive, and for a client to read each part of the response.
    pub request: Duration,
    /// Upper bound on the connections of each listener. Beyond it, idle connections are closed to make room.
    pub connections: usize,
    /// Upper bound on connections from one client address, or one /64 network of IPv6. Default: half of `connections`.
    pub connections_per_address: Option<usize>,
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
            connections: 10_000,
            connections_per_address: None,
            first_byte: Duration::from_secs(10),
            unfinished_bytes: 256 << 20,
            grpc_streams: 1_000,
            grpc_streams_per_connection: 8,
        }
    }
}

/// Upper bound on connections of a listener, and on streams. No system allows more open files.
const MAX_COUNT: u64 = 1_000_000;

/// Smallest budget for unfinished requests. The largest request must fit, in the steps in which its bytes are taken from
/// the budget.
const MIN_UNFINISHED_BYTES: u64 = 2 * MAX_RULES_BODY as u64;

slidegate::section! {
    /// Bounds on the resources that clients can use.
    pub(super) struct LimitsSection("ListenLimits", base: Limits::default()) for Limits {
        /// Upper bound on the connections of each listener. If a new connection would exceed the bound, the server
        /// closes the oldest connection that has not sent a whole request yet. If there is none, it closes the
        /// connections that have been idle for longest.
        connections: usize { between(1, MAX_COUNT) },
        /// Upper bound on the connections from one IPv4 address, or from one IPv6 network (/64). Default: half of
        /// `connections`.
        connections_per_address: Option<usize> { between(1, MAX_COUNT).example("100") },
        /// Time limit until a client must have sent the first byte on a new connection.
        first_byte: Duration { lasting(Micros::from_millis(10), Micros::from_secs(3_600)) },
        /// Upper bound on the bytes of incomplete requests and commands, for all connections together.
        unfinished_bytes: usize { between(MIN_UNFINISHED_BYTES, 1 << 40) },
        /// Upper bound on open gRPC streams, for all connections together. Watches of `grpc.health.v1.Health` and
        /// reflection use streams.
        grpc_streams: usize { between(0, MAX_COUNT) },
        /// Upper bound on the open gRPC streams of one connection.
        grpc_streams_per_connection: usize { between(0, 1_000) },
    }
}
