//! Tests that response times and failures are reported to adaptive rules.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use slidegate::tower::RateLimitLayer;
use slidegate::{AdaptiveController, Micros, adaptive::HostLoad};
use tower::Layer;

use super::{get, limiter, send};

const RULES: &str = "
rules: [{ name: calls, limit: 1000, window: 1s, adaptive: { cpu: off, memory: off } }]";

/// Returns the factor after two hundred seconds of responses with this duration and status.
async fn settles_at(millis: u64, status: StatusCode) -> Option<u32> {
    let (limiter, clock) = limiter(RULES);
    let limiter = Arc::new(limiter);
    let time = clock.clone();
    let service =
        RateLimitLayer::new(Arc::clone(&limiter)).layer(tower::service_fn(move |_: Request<Body>| {
            time.advance(Micros::from_millis(millis));
            let mut response = Response::new(Body::empty());
            *response.status_mut() = status;
            std::future::ready(Ok::<_, Infallible>(response))
        }));
    let mut adapter = AdaptiveController::alone().with_clock(clock.clone());
    for _ in 0..200 {
        send(&service, get("/")).await;
        clock.advance(Micros::from_secs(1));
        adapter.step(&limiter, HostLoad::default()).await.unwrap();
    }
    limiter.rules().iter().next().unwrap().factor()
}

#[tokio::test]
async fn latencies_and_failures_change_the_limit() {
    assert_eq!(settles_at(50, StatusCode::OK).await, Some(11_000));
    assert_eq!(settles_at(200, StatusCode::NOT_FOUND).await, Some(10_000));
    assert_eq!(settles_at(900, StatusCode::OK).await, Some(8_000));
    assert_eq!(settles_at(200, StatusCode::BAD_GATEWAY).await, Some(8_000));
}
