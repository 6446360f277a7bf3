//! Protocols that the server speaks.

/// Protocol of a connection. Inside TLS, a client that supports several can ask for one of them (ALPN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http,
    /// HTTP/2, for gRPC.
    Grpc,
    /// Redis protocol. Its clients do not use ALPN.
    Resp,
}

impl Protocol {
    pub(crate) const ALL: [Protocol; 3] = [Protocol::Http, Protocol::Grpc, Protocol::Resp];

    /// Returns the metric label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Grpc => "grpc",
            Protocol::Resp => "resp",
        }
    }
}
