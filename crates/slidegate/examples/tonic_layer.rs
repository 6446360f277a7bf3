//! A tonic server that allows each client three calls in ten seconds; further calls get `ResourceExhausted`. The example calls
//! itself to show the responses.
//!
//! `cargo run -p slidegate --example tonic_layer`

use std::error::Error;

use slidegate::tower::{ClientAddress, RateLimitLayer};
use slidegate::{Limiter, MemoryStore, Rules};
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    for line in show().await? {
        println!("{line}");
    }
    Ok(())
}

/// Returns a line for each of five calls.
async fn show() -> Result<Vec<String>, Box<dyn Error>> {
    let rules = Rules::from_yaml("rules: [{ name: per-client, key: [ip], limit: 3, window: 10s }]")?;
    let layer = RateLimitLayer::new(Limiter::new(MemoryStore::new(), rules))
        .attribute("ip", ClientAddress::new(|info: &TcpConnectInfo| info.remote_addr()))?;

    let incoming = TcpIncoming::bind("127.0.0.1:0".parse()?)?;
    let address = incoming.local_addr()?;
    let (_, health) = tonic_health::server::health_reporter();
    tokio::spawn(Server::builder().layer(layer).add_service(health).serve_with_incoming(incoming));

    let channel = Channel::from_shared(format!("http://{address}"))?.connect().await?;
    let mut client = HealthClient::new(channel);
    let mut lines = Vec::new();
    for _ in 0..5 {
        lines.push(match client.check(HealthCheckRequest::default()).await {
            Ok(response) => format!("{:?}", response.get_ref().status()),
            Err(status) => format!("{:?}: {}", status.code(), status.message()),
        });
    }
    Ok(lines)
}
