//! Tests that permits are held as long as a response is under way, and no longer.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use futures_util::{FutureExt, stream};
use slidegate::tower::{Extract, RateLimitLayer};
use slidegate::{Limiter, ManualClock, MemoryStore, Micros, Request, Rules, Store};
use slidegate_testkit::{Flavour, RedisServer, eventually};
use tokio::sync::Notify;
use tower::{Layer, ServiceExt};

use super::server::{Connection, serve};
use super::{limiter, until_used, used};
use crate::audit_healthy::patient_store;

/// Lease that is much longer than a test waits: a permit that is not released stays in use.
const ONE_AT_ONCE: &str = "rules: [{ name: at-once, limit: 1, window: 1h, algorithm: concurrency }]";

/// Streams a first chunk, and the rest on a signal; `/panic` panics while it streams, `/never` never answers.
fn app<S: Store + 'static>(limiter: &Arc<Limiter<S>>, go: &Arc<Notify>) -> Router {
    let waiting = Arc::clone(go);
    let streamed = async move || {
        let rest = async move {
            waiting.notified().await;
            Ok(Bytes::from("rest"))
        };
        let first = async { Ok::<_, std::convert::Infallible>(Bytes::from("first")) };
        let pieces: [futures_util::future::BoxFuture<'static, _>; 2] = [Box::pin(first), Box::pin(rest)];
        Body::from_stream(futures_util::StreamExt::then(stream::iter(pieces), |piece| piece))
    };
    Router::new()
        .route("/", get(streamed))
        .route("/never", get(async || std::future::pending::<()>().await))
        .layer(RateLimitLayer::new(Arc::clone(limiter)))
}

/// Asserts that a permit is held while the body streams, and released when it ends or when the client disconnects before
/// or after the head.
async fn a_streamed_body_and_clients_that_leave<S: Store + 'static>(limiter: Arc<Limiter<S>>) {
    let go = Arc::new(Notify::new());
    let address = serve(app(&limiter, &go)).await;

    let mut streaming = Connection::get(address, "/").await;
    streaming.read_to("first").await;
    assert_eq!(used(&limiter).await, 1);
    let denied = Connection::get(address, "/").await.read().await;
    assert!(denied.starts_with("HTTP/1.1 429"), "{denied}");
    go.notify_one();
    streaming.read_to("rest").await;
    until_used(&limiter, 0).await;

    let mut leaves_midway = Connection::get(address, "/").await;
    leaves_midway.read_to("first").await;
    drop(leaves_midway);
    until_used(&limiter, 0).await;

    let leaves_early = Connection::get(address, "/never").await;
    until_used(&limiter, 1).await;
    drop(leaves_early);
    until_used(&limiter, 0).await;
}

#[tokio::test]
async fn real_server_holds_permits_in_memory() {
    let rules = Rules::from_yaml(ONE_AT_ONCE).unwrap();
    a_streamed_body_and_clients_that_leave(Arc::new(Limiter::new(MemoryStore::new(), rules))).await;
}

#[tokio::test]
async fn real_server_holds_permits_in_redis() {
    let server = RedisServer::start(Flavour::Redis7);
    let rules = Rules::from_yaml(ONE_AT_ONCE).unwrap();
    let store = patient_store(&server);
    a_streamed_body_and_clients_that_leave(Arc::new(Limiter::new(store, rules))).await;
}

// Several threads, because other tasks must run while this thread waits for the server.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_decision_holds_nothing() {
    let server = RedisServer::start(Flavour::Redis7);
    let store = patient_store(&server);
    let limiter = Arc::new(Limiter::new(store, Rules::from_yaml(ONE_AT_ONCE).unwrap()));
    until_used(&limiter, 0).await;
    let service = super::hello(&RateLimitLayer::new(Arc::clone(&limiter)));
    server.signal("-STOP");
    let mut call = Box::pin(service.oneshot(super::get("/")));
    // The request is sent, and not answered.
    let waits = std::time::Duration::from_millis(50);
    assert!(tokio::time::timeout(waits, &mut call).await.is_err());
    drop(call);
    server.signal("-CONT");
    // The request was admitted, and the background task releases its permit.
    eventually_admitted_once(&server);
    until_used(&limiter, 0).await;
}

/// Waits until the command that was sent before the server was stopped has been executed: the key was written.
fn eventually_admitted_once(server: &RedisServer) {
    let seen = || server.run("INFO commandstats");
    eventually("the script ran", || format!("{:?}", seen()).contains("cmdstat_zadd"));
}

/// Lets tasks run until they wait for a timer.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

fn at_once() -> (Arc<Limiter<MemoryStore<ManualClock>>>, ManualClock) {
    let (limiter, clock) =
        limiter("rules: [{ name: at-once, key: [path], limit: 1, window: 30s, algorithm: concurrency }]");
    (Arc::new(limiter), clock)
}

#[tokio::test]
async fn running_responses_are_extended_and_finished_ones_are_not() {
    let (limiter, clock) = at_once();
    let layer = RateLimitLayer::new(Arc::clone(&limiter)).attribute("path", Extract::path()).unwrap();
    let service = super::hello(&layer);
    let used = async |path| {
        let decision = limiter.peek(Request::new([("path", path)])).await.unwrap();
        decision.limits().next().unwrap().used()
    };
    let long = service.clone().oneshot(super::get("/long")).await.unwrap();
    settle().await;
    clock.advance(Micros::from_secs(1));
    let late = service.clone().oneshot(super::get("/late")).await.unwrap();
    for _ in 0..20 {
        settle().await;
        clock.advance(Micros::from_secs(9));
        assert_eq!((used("/long").await, used("/late").await), (1, 1), "three minutes, six windows");
    }
    drop(late);
    for _ in 0..10 {
        settle().await;
        clock.advance(Micros::from_secs(9));
        assert_eq!((used("/long").await, used("/late").await), (1, 0));
    }
    drop(long);
    assert_eq!(used("/long").await, 0);

    // No permit is held, so the extension task ends; it starts again for a later permit.
    settle().await;
    clock.advance(Micros::from_secs(60));
    settle().await;
    let again = service.oneshot(super::get("/long")).await.unwrap();
    for _ in 0..6 {
        settle().await;
        clock.advance(Micros::from_secs(9));
        assert_eq!(used("/long").await, 1);
    }
    drop(again);
}

#[tokio::test]
async fn shorter_lease_is_extended_first() {
    let rules = "
rules:
  - { name: long, match: { path: /long }, limit: 1, window: 10m, algorithm: concurrency }
  - { name: short, match: { path: /short }, limit: 1, window: 3s, algorithm: concurrency }
";
    let (limiter, clock) = limiter(rules);
    let limiter = Arc::new(limiter);
    let layer = RateLimitLayer::new(Arc::clone(&limiter)).attribute("path", Extract::path()).unwrap();
    let service = super::hello(&layer);
    let _long = service.clone().oneshot(super::get("/long")).await.unwrap();
    settle().await;
    let _short = service.oneshot(super::get("/short")).await.unwrap();
    for _ in 0..10 {
        settle().await;
        clock.advance(Micros::from_millis(900));
        let decision = limiter.peek(Request::new([("path", "/short")])).await.unwrap();
        assert_eq!(decision.limits().next().unwrap().used(), 1);
    }
}

#[test]
fn permit_dropped_outside_the_runtime_is_released() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let server = RedisServer::start(Flavour::Redis7);
    let (limiter, response) = runtime.block_on(async {
        let store = patient_store(&server);
        let limiter = Arc::new(Limiter::new(store, Rules::from_yaml(ONE_AT_ONCE).unwrap()));
        let service = tower::service_fn(async |_: http::Request<Body>| {
            Ok::<_, std::convert::Infallible>(http::Response::new(Body::empty()))
        });
        let response = RateLimitLayer::new(Arc::clone(&limiter)).layer(service).oneshot(super::get("/"));
        let response = response.await.unwrap();
        assert_eq!(used(&limiter).await, 1);
        (limiter, response)
    });
    drop(response);
    runtime.block_on(until_used(&limiter, 0));
}

#[test]
fn permit_dropped_without_a_runtime_is_released() {
    let (limiter, _) = at_once();
    let layer = RateLimitLayer::new(Arc::clone(&limiter)).attribute("path", Extract::path()).unwrap();
    let service = super::hello(&layer);
    let send = || service.clone().oneshot(super::get("/")).now_or_never().unwrap().unwrap();
    for _ in 0..2 {
        let response = send();
        assert_eq!((response.status().as_u16(), send().status().as_u16()), (200, 429));
    }
}
