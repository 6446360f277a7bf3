//! Protocols that the server speaks.

slidegate::words! {
    /// Protocol of a connection. Inside TLS, a client that supports several can ask for one of them (ALPN).
    pub(crate) enum Protocol {
        /// HTTP/1.1.
        Http = "http",
        /// HTTP/2, for gRPC.
        Grpc = "grpc",
        /// Redis protocol. Its clients do not use ALPN.
        Resp = "resp",
    }
}
