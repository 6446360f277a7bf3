//! Tests which address counts as the client: a spoofed header must neither hide a client nor blame another.

use std::net::SocketAddr;

use axum::body::Body;
use http::Request;
use slidegate::tower::{ClientAddress, RateLimitLayer};
use slidegate::{Decision, Limiter, MemoryStore, Rules};

use super::{get, header, hello, send};

fn direct() -> ClientAddress {
    ClientAddress::new(|peer: &SocketAddr| Some(*peer))
}

/// Request of `peer` with these headers.
fn from(peer: &str, headers: &[(&'static str, &str)]) -> Request<Body> {
    let mut request = get("/");
    request.extensions_mut().insert(SocketAddr::new(peer.parse().unwrap(), 4711));
    for (name, value) in headers {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    request
}

/// Returns the client under which a request is counted.
async fn client(client: ClientAddress, request: Request<Body>) -> String {
    let rules = Rules::from_yaml("rules: [{ name: r, key: [ip], limit: 1, window: 1m }]").unwrap();
    let limiter = std::sync::Arc::new(Limiter::new(MemoryStore::new(), rules));
    let layer = RateLimitLayer::new(limiter.clone()).attribute("ip", client).unwrap().answer_with(
        |denial, mut usual| {
            let key = |decision: &Decision| decision.limits().next().unwrap().key().to_string();
            if let slidegate::tower::Denial::OverLimit(decision) = denial {
                *usual.body_mut() = key(decision).into();
            }
            usual
        },
    );
    let service = hello(&layer);
    let again = {
        let mut again = get("/");
        *again.headers_mut() = request.headers().clone();
        again.extensions_mut().insert(*request.extensions().get::<SocketAddr>().unwrap());
        again
    };
    assert_eq!(header(&send(&service, request).await, "ratelimit").unwrap(), r#""r";r=0;t=60"#);
    send(&service, again).await.into_body()
}

/// Extractor, address of the peer, its headers, and the expected client.
type Case = (ClientAddress, &'static str, &'static [(&'static str, &'static str)], &'static str);

#[tokio::test]
async fn only_trusted_proxies_set_the_client_address() {
    let behind = || direct().behind(["10.0.0.0/8", "127.0.0.1"]).unwrap();
    const XFF: &str = "x-forwarded-for";
    let cases: [Case; 9] = [
        // No proxy is trusted, so the peer is the client.
        (direct(), "192.0.2.7", &[(XFF, "6.6.6.6")], "192.0.2.7"),
        // The headers of a peer that is not a trusted proxy are ignored.
        (behind(), "192.0.2.7", &[(XFF, "6.6.6.6")], "192.0.2.7"),
        (behind(), "10.0.0.1", &[(XFF, "192.0.2.7")], "192.0.2.7"),
        // The part that the client wrote comes before the part that the proxy added.
        (behind(), "10.0.0.1", &[(XFF, "6.6.6.6, 192.0.2.7")], "192.0.2.7"),
        (behind(), "10.0.0.1", &[(XFF, "6.6.6.6"), (XFF, "192.0.2.7, 10.9.9.9")], "192.0.2.7"),
        (behind(), "127.0.0.1", &[(XFF, "10.0.0.2, nonsense")], "127.0.0.1"),
        // A header that the proxies do not write comes from the client, so it is ignored.
        (behind(), "10.0.0.1", &[(XFF, "192.0.2.7"), ("forwarded", "for=6.6.6.6")], "192.0.2.7"),
        (
            behind().by_forwarded(),
            "10.0.0.1",
            &[(XFF, "6.6.6.6"), ("forwarded", "for=192.0.2.7")],
            "192.0.2.7",
        ),
        (
            behind().by_forwarded(),
            "10.0.0.1",
            &[("forwarded", "for=\"6.6.6.6"), ("forwarded", "for=192.0.2.7;host=\"a,for=6.6.6.6\"")],
            "192.0.2.7",
        ),
    ];
    for (address, peer, headers, expected) in cases {
        let key = client(address, from(peer, headers)).await;
        assert_eq!(key, format!("r:ip={expected}"), "{peer} says {headers:?}");
    }
}

#[tokio::test]
async fn ipv6_clients_are_grouped_by_network() {
    let peer = "2001:db8:1:2:3:4:5:6";
    assert_eq!(client(direct(), from(peer, &[])).await, "r:ip=2001%3Adb8%3A1%3A2%3A%3A/64");
    let wider = direct().ipv6_prefix(48).unwrap();
    assert_eq!(client(wider, from(peer, &[])).await, "r:ip=2001%3Adb8%3A1%3A%3A/48");
    assert_eq!(client(direct(), from("::ffff:192.0.2.7", &[])).await, "r:ip=192.0.2.7");
}
