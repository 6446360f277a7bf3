//! An axum server that allows each client three requests in ten seconds, and one report at a time. The example sends requests
//! to itself to show the responses.
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
    for line in show().await? {
        println!("{line}");
    }
    Ok(())
}

/// Returns a line for each of five requests.
async fn show() -> Result<Vec<String>, Box<dyn Error>> {
    let limiter = Limiter::new(MemoryStore::new(), Rules::from_yaml(RULES)?);
    // Only proxies in this network may name the client. So the forged header of the last request has no effect.
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
    let mut lines = Vec::new();
    for (path, forwarded_for) in [("/", ""), ("/report", ""), ("/", ""), ("/", ""), ("/", "6.6.6.6")] {
        lines.push(format!("GET {path}  {}", fetch(address, path, forwarded_for).await?));
    }
    Ok(lines)
}

/// Returns the status of a response, and its rate-limit headers.
async fn fetch(address: SocketAddr, path: &str, forwarded_for: &str) -> Result<String, Box<dyn Error>> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    let request = format!("{head}x-forwarded-for: {forwarded_for}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let shown = ["HTTP/1.1 ", "ratelimit: ", "retry-after: "];
    let lines = response.lines().filter(|line| shown.iter().any(|start| line.starts_with(start)));
    Ok(lines.collect::<Vec<_>>().join("  "))
}
