//! Tests refunds, and settlement of the real cost of a request.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::body::Body;
use futures_util::FutureExt;
use http::{Request, Response};
use slidegate::tower::RateLimitLayer;
use slidegate::{Limiter, ManualClock, MemoryStore, Micros};
use tower::{Layer, ServiceExt};

use super::{get, limiter};

type Counting = Arc<Limiter<MemoryStore<ManualClock>>>;

/// Ten permits a minute, and three held at once.
const RULES: &str = "
rules:
  - { name: calls, limit: 10, window: 1m }
  - { name: at-once, limit: 3, window: 30s, algorithm: concurrency }
";

fn counting() -> (Counting, ManualClock) {
    let (limiter, clock) = limiter(RULES);
    (Arc::new(limiter), clock)
}

/// Usage of both rules.
async fn used(limiter: &Counting) -> [u64; 2] {
    let decision = limiter.peek(slidegate::Request::new([])).await.unwrap();
    let used: Vec<u64> = decision.limits().map(|limit| limit.used()).collect();
    used.try_into().unwrap()
}

/// Answers with the status and the cost in the path, fails at `/error`, panics at `/panic`.
async fn service(request: Request<Body>) -> Result<Response<Body>, std::io::Error> {
    let path = request.uri().path().trim_start_matches('/');
    match path {
        "error" => return Err(std::io::Error::other("error of the test")),
        "panic" => panic!("panic of the test"),
        "never" => std::future::pending().await,
        _ => {}
    }
    let (status, cost) = path.split_once('/').unwrap_or((path, ""));
    let response = Response::builder().status(status.parse::<u16>().unwrap()).header("x-cost", cost);
    Ok(response.body(Body::empty()).unwrap())
}

async fn send(layer: &RateLimitLayer<MemoryStore<ManualClock>>, path: &str) {
    let call = layer.layer(tower::service_fn(service)).oneshot(get(path));
    // The call has ended, with a response or a failure.
    let _ = AssertUnwindSafe(call).catch_unwind().await;
}

#[tokio::test]
async fn failures_are_refunded_if_configured() {
    let (limiter, _) = counting();
    let keeps = RateLimitLayer::new(limiter.clone());
    for path in ["/500", "/error", "/panic"] {
        send(&keeps, path).await;
    }
    assert_eq!(used(&limiter).await, [3, 0]);
    let refunds = keeps.refund_failures();
    for path in ["/500", "/503", "/error", "/panic"] {
        send(&refunds, path).await;
        assert_eq!(used(&limiter).await, [3, 0], "{path}");
    }
    send(&refunds, "/404").await;
    assert_eq!(used(&limiter).await, [4, 0]);
    let refunds_misses = refunds.refund_when(|response| response.status.as_u16() == 404);
    send(&refunds_misses, "/404").await;
    send(&refunds_misses, "/500").await;
    assert_eq!(used(&limiter).await, [4, 0]);
}

#[tokio::test]
async fn disconnect_releases_held_permits_only() {
    let (limiter, _) = counting();
    let layer = RateLimitLayer::new(limiter.clone()).refund_failures();
    let mut call = Box::pin(layer.layer(tower::service_fn(service)).oneshot(get("/never")));
    assert!(call.as_mut().now_or_never().is_none());
    assert_eq!(used(&limiter).await, [1, 1]);
    drop(call);
    assert_eq!(used(&limiter).await, [1, 0]);
}

#[tokio::test]
async fn response_reports_its_cost() {
    let (limiter, clock) = counting();
    let layer = RateLimitLayer::new(limiter.clone())
        .permits(|_| Ok(2))
        .cost_from(|response| response.headers.get("x-cost")?.to_str().ok()?.parse().ok());
    // (path with the actual cost, expected count)
    for (path, counted) in [("/200/5", 5), ("/200/", 7), ("/200/0", 7), ("/200/1", 8)] {
        let response = layer.layer(tower::service_fn(service)).oneshot(get(path)).await.unwrap();
        assert_eq!(used(&limiter).await, [counted, 2], "{path}: held permits do not depend on the cost");
        drop(response);
        assert_eq!(used(&limiter).await, [counted, 0], "{path}");
    }
    clock.advance(Micros::from_secs(60));
    assert_eq!(used(&limiter).await, [0, 0]);
}

#[tokio::test]
async fn reported_cost_is_capped_at_max_limit() {
    let (limiter, _) = counting();
    let layer = RateLimitLayer::new(limiter.clone()).cost_from(|_| Some(u64::MAX));
    send(&layer, "/200").await;
    assert_eq!(used(&limiter).await, [slidegate::bounds::MAX_LIMIT, 0]);
}
