//! Tests the sources of attributes, and requests that lack a value.

use std::net::SocketAddr;

use axum::body::Body;
use http::{HeaderValue, Request, StatusCode};
use slidegate::tower::{ClientAddress, Extract, RateLimitLayer, Rejection};
use slidegate::{Limiter, bounds::MAX_VALUE};

use super::{get, header, hello, limiter, send};

/// Sends requests and returns the keys under which each was counted by attribute `a`, or the body of its error.
async fn counted(extract: Extract, requests: impl IntoIterator<Item = Request<Body>>) -> Vec<String> {
    let (limiter, _) = limiter("rules: [{ name: r, key: [a], limit: 100, window: 1m }]");
    let layer = RateLimitLayer::new(limiter).attribute("a", extract).unwrap().pass_decision();
    let service = tower::Layer::layer(
        &layer,
        tower::service_fn(async |request: Request<Body>| {
            let decision = request.extensions().get::<std::sync::Arc<slidegate::Decision>>().unwrap();
            let keys: Vec<_> = decision.limits().map(|limit| limit.key().to_string()).collect();
            Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(keys.join(" "))))
        }),
    );
    let mut counted = Vec::new();
    for request in requests {
        counted.push(send(&service, request).await.into_body());
    }
    counted
}

fn with(name: &'static str, value: &[u8]) -> Request<Body> {
    let mut request = get("/");
    request.headers_mut().insert(name, HeaderValue::from_bytes(value).unwrap());
    request
}

#[tokio::test]
async fn extracts_headers_paths_methods_and_hosts() {
    let user = || Extract::header("X-User").unwrap();
    assert_eq!(counted(user(), [with("x-user", b"alice"), get("/")]).await, ["r:a=alice", ""]);
    assert_eq!(counted(user(), [with("x-user", b"")]).await, [""], "an empty value counts as missing");
    // Values that are not text are counted too.
    assert_eq!(counted(user(), [with("x-user", b"\xff")]).await, ["r:a=\u{fffd}"]);

    let spellings = ["/a/b", "/a//b", "/a/./b", "/x/../a/b", "/%61/b", "/a/b?c=d"].map(get);
    assert_eq!(counted(Extract::path(), spellings).await, ["r:a=/a/b"; 6]);

    let mut put = get("/");
    *put.method_mut() = http::Method::PUT;
    assert_eq!(counted(Extract::method(), [get("/"), put]).await, ["r:a=GET", "r:a=PUT"]);

    let hosts = [with("host", b"Example.ORG:8080"), get("http://example.org/x"), get("/")];
    assert_eq!(counted(Extract::host(), hosts).await, ["r:a=example.org", "r:a=example.org", ""]);
}

#[tokio::test]
async fn extracts_from_extensions_and_closures() {
    struct User(&'static str);
    let mut with_user = get("/");
    with_user.extensions_mut().insert(std::sync::Arc::new(User("alice")));
    let by_extension = Extract::extension(|user: &std::sync::Arc<User>| Some(user.0.into()));
    assert_eq!(counted(by_extension, [with_user, get("/")]).await, ["r:a=alice", ""]);

    let last = Extract::closure(|request| Ok(request.uri.path().rsplit('/').next().map(Into::into)));
    assert_eq!(counted(last, [get("/users/7"), get("/users/")]).await, ["r:a=7", ""]);
}

#[tokio::test]
async fn long_value_is_counted_under_its_digest() {
    let long = vec![b'x'; 9_000];
    let longer = [&long[..], b"x"].concat();
    let requests = [with("x-user", &long), with("x-user", &longer), with("x-user", &long)];
    let keys = counted(Extract::header("x-user").unwrap(), requests).await;
    assert!(keys[0].starts_with("r:a=#") && keys[0].len() < 50, "{keys:?}");
    assert!(keys[0] == keys[2] && keys[0] != keys[1], "{keys:?}");
}

#[tokio::test]
async fn long_path_matches_its_rule() {
    let (limiter, _) = limiter("rules: [{ name: r, match: { api: \"/login*\" }, limit: 1, window: 1m }]");
    let service = hello(&RateLimitLayer::new(limiter).attribute("api", Extract::path()).unwrap());
    let long = format!("/login/{}", "x".repeat(9_000));
    let mut statuses = Vec::new();
    for path in ["/login", &long, "/login"] {
        statuses.push(send(&service, get(path)).await.status().as_u16());
    }
    assert_eq!(statuses, [200, 429, 429]);
}

#[tokio::test]
async fn oversized_value_is_rejected() {
    let huge = Extract::closure(|_| Ok(Some("x".repeat(MAX_VALUE + 1).into())));
    let bodies = counted(huge, [get("/")]).await;
    assert!(
        bodies[0].contains("attribute `a` has 4194305 bytes; at most 4194304 are accepted"),
        "{bodies:?}"
    );
}

#[tokio::test]
async fn missing_value_is_skipped_replaced_or_rejected() {
    let user = || Extract::header("x-user").unwrap();
    assert_eq!(counted(user().or("nobody"), [get("/")]).await, ["r:a=nobody"]);
    let denied = counted(user().or_deny(StatusCode::UNAUTHORIZED), [get("/"), with("x-user", b"bob")]).await;
    let error = r#"{"error":{"code":"invalid_request","message":"the request has no `a`"}}"#;
    assert_eq!(denied, [error, "r:a=bob"]);
    let (limiter, _) = limiter("rules: []");
    let layer =
        RateLimitLayer::new(limiter).attribute("a", user().or_deny(StatusCode::UNAUTHORIZED)).unwrap();
    assert_eq!(send(&hello(&layer), get("/")).await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn rejection_by_an_extractor_charges_nothing() {
    let (limiter, _) = limiter("rules: [{ name: r, limit: 1, window: 1m }]");
    let version = Extract::closure(|request| match request.uri.path() {
        "/v1" => Ok(Some("1".into())),
        "/v2" => Err(Rejection::new(StatusCode::GONE, "there is no v2 any more")),
        path => Err(format!("{path} is no version").into()),
    });
    let service = hello(&RateLimitLayer::new(limiter).attribute("version", version).unwrap());
    let rejected = send(&service, get("/v3")).await;
    assert_eq!(rejected.status(), StatusCode::BAD_REQUEST);
    assert_eq!(rejected.body(), r#"{"error":{"code":"invalid_request","message":"/v3 is no version"}}"#);
    assert_eq!(header(&rejected, "ratelimit"), None);
    assert_eq!(send(&service, get("/v2")).await.status(), StatusCode::GONE);
    assert_eq!(send(&service, get("/v1")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn missing_client_address_is_an_error() {
    let client = ClientAddress::new(|peer: &SocketAddr| Some(*peer));
    let lacks = r#"{"error":{"code":"invalid_request","message":"cannot find the client address: requests lack the extension SocketAddr"}}"#;
    assert_eq!(counted(client.into(), [get("/")]).await, [lacks]);
    // A Unix socket has no address.
    let mut by_socket = get("/");
    by_socket.extensions_mut().insert(());
    assert_eq!(counted(ClientAddress::new(|(): &()| None).into(), [by_socket]).await, [""]);
}

#[test]
fn invalid_layer_is_rejected_at_construction() {
    let layer = || RateLimitLayer::new(Limiter::per_minute(1).unwrap());
    let message = |made: Result<RateLimitLayer, slidegate::Error>| made.err().unwrap().to_string();
    assert_eq!(
        message(layer().attribute("a b", Extract::path())),
        "an attribute name must be 1 to 64 letters, digits or any of `_-.`"
    );
    let twice = layer().attribute("a", Extract::path()).unwrap().attribute("a", Extract::host());
    assert_eq!(message(twice), "attribute `a` is given twice");
    assert_eq!(
        message(layer().attribute("a", Extract::path().or(""))),
        "the default value is empty: leave it out instead"
    );
    let full = (0..32).fold(layer(), |layer, n| layer.attribute(&n.to_string(), Extract::path()).unwrap());
    assert_eq!(message(full.attribute("a", Extract::path())), "a request may have at most 32 attributes");
    assert_eq!(
        Extract::header("x user").err().unwrap().to_string(),
        "a header name may have letters, digits and `-`, not \"x user\""
    );
    let client = || ClientAddress::new(|peer: &SocketAddr| Some(*peer));
    assert_eq!(
        client().behind(["10.0.0.0/8", "me"]).err().unwrap().to_string(),
        "a trusted proxy must be an address or a network such as 10.0.0.0/8, not \"me\""
    );
    assert_eq!(
        client().ipv6_prefix(8).err().unwrap().to_string(),
        "an IPv6 prefix must be from 16 to 128 bits, not 8"
    );
}
