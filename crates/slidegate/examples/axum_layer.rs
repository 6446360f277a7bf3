//! An axum server whose clients may ask three times in ten seconds, and read one report at a time. It asks itself, to show
//! what they see.
//!
//! `cargo run -p slidegate --example axum_layer`

use std::error::Error;
use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use axum::{Router, routing::get};
use slidegate::tower::{ClientAddress, Extract, RateLimitLayer};
use slidegate::{Limiter, MemoryStore, Rules};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const RULES: &str = "
rules:
  - { name: per-client, key: [ip], limit: 3, window: 10s }
  - { name: reports, match: { path: /report }, key: [ip], limit: 1, window: 30s, algorithm: concurrency }
";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(MemoryStore::new(), Rules::from_yaml(RULES)?);
    // Without `behind`, nobody is believed about who asks but the connection itself.
    let client = ClientAddress::new(|ConnectInfo(peer): &ConnectInfo<SocketAddr>| Some(*peer))
        .behind(["10.0.0.0/8"])?;
    let layer = RateLimitLayer::new(limiter)
        .attribute("ip", client)?
        .attribute("path", Extract::path())?
        .refund_failures();
    let app = Router::new().route("/", get(async || "hello")).route("/report", get(async || "a report"));
    let app = app.layer(layer).into_make_service_with_connect_info::<SocketAddr>();

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    for (path, spoofed) in [("/", ""), ("/report", ""), ("/", ""), ("/", ""), ("/", "6.6.6.6")] {
        println!("GET {path}  X-Forwarded-For: {spoofed:<8} {}", ask(address, path, spoofed).await?);
    }
    Ok(())
}

/// The status of a response, and what it says of limits.
async fn ask(address: SocketAddr, path: &str, forwarded_for: &str) -> Result<String, Box<dyn Error>> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {address}\r\nx-forwarded-for: {forwarded_for}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let told =
        |line: &&str| ["HTTP/1.1 ", "ratelimit: ", "retry-after: "].iter().any(|name| line.starts_with(name));
    Ok(response.lines().filter(told).collect::<Vec<_>>().join("  "))
}
