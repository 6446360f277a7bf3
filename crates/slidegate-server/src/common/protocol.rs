//! Protocols that the server speaks.

/// What is spoken inside, so that a client which can speak several knows which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http,
    /// HTTP/2, for gRPC.
    Grpc,
    /// Redis clients do not ask.
    Resp,
}

impl Protocol {
    pub(crate) const ALL: [Protocol; 3] = [Protocol::Http, Protocol::Grpc, Protocol::Resp];

    /// As it is written in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Grpc => "grpc",
            Protocol::Resp => "resp",
        }
    }
}
