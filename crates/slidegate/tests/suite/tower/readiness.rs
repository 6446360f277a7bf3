//! Tests that a service that is not ready applies back-pressure, and that waiting requests are not charged.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use slidegate::tower::RateLimitLayer;
use slidegate::{Limiter, Rules, Store};
use slidegate_testkit::{Flavour, RedisServer};
use tokio::sync::Notify;
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt};

use super::{get, limiter, until_used, used};
use crate::audit_healthy::patient_store;

const RULES: &str = "rules: [{ name: calls, limit: 3, window: 1m }]";

/// Two requests wait for a service with one slot. Asserts the charges before and after, and that a third is denied.
async fn two_for_one_place<S: Store + 'static>(limiter: Arc<Limiter<S>>) {
    let go = Arc::new(Notify::new());
    let waiting = Arc::clone(&go);
    let slow = tower::service_fn(move |_: Request<Body>| {
        let waiting = Arc::clone(&waiting);
        async move {
            waiting.notified().await;
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }
    });
    let one_at_a_time = ConcurrencyLimitLayer::new(1).layer(slow);
    let service = RateLimitLayer::new(Arc::clone(&limiter)).layer(one_at_a_time);

    let mut first = service.clone();
    let running = tokio::spawn(first.ready().await.unwrap().call(get("/")));
    until_used(&limiter, 1).await;
    let mut second = service.clone();
    assert!(second.ready().now_or_never().is_none(), "the only place is taken");
    assert_eq!(used(&limiter).await, 1, "a waiting request is not charged");
    go.notify_one();
    assert_eq!(running.await.unwrap().unwrap().status(), StatusCode::OK);

    // The clone that was ready must be called: another clone would panic.
    let running = tokio::spawn(second.ready().await.unwrap().call(get("/")));
    until_used(&limiter, 2).await;
    assert!(service.clone().ready().now_or_never().is_none(), "and the place is taken again");
    go.notify_one();
    running.await.unwrap().unwrap();

    // A denied request does not occupy the slot.
    limiter.acquire(slidegate::Request::new([])).await.unwrap();
    let mut denied = service.clone();
    let response = denied.ready().await.unwrap().call(get("/")).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(service.clone().ready().now_or_never().is_some());
    drop(denied);
}

#[tokio::test]
async fn unready_service_is_not_charged_in_memory() {
    two_for_one_place(Arc::new(limiter(RULES).0)).await;
}

#[tokio::test]
async fn unready_service_is_not_charged_in_redis() {
    let server = RedisServer::start(Flavour::Redis7);
    let store = patient_store(&server);
    two_for_one_place(Arc::new(Limiter::new(store, Rules::from_yaml(RULES).unwrap()))).await;
}
