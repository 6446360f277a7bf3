//! Tests the tower layer: by itself around a service, and in real servers of axum and tonic.

mod attributes; // sources of attributes, and requests that lack a value
mod client_address; // trusted proxies and spoofed headers
mod examples; // the examples print the decisions that they describe
mod load; // real servers under load: never over the limit, never denied while there is room
mod load_feedback; // response times and failures change adaptive limits
mod permit_guard; // permits are held as long as a response is under way
mod readiness; // a service that is not ready applies back-pressure, and nothing is charged
mod responses; // statuses, headers and bodies, and their gRPC forms
mod server; // helper: an axum server and a plain client of it
mod settlement; // refunds, and the real cost of a request

use std::convert::Infallible;

use axum::body::Body;
use http::{Request, Response};
use http_body_util::BodyExt;
use slidegate::tower::{RateLimit, RateLimitLayer};
use slidegate::{Limiter, ManualClock, MemoryStore, Micros, Rules, Store};
use slidegate_testkit::until;
use tower::{Layer, Service, ServiceExt};

/// Returns a limiter with these rules, and the clock that a test moves.
fn limiter(rules: &str) -> (Limiter<MemoryStore<ManualClock>>, ManualClock) {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let store = MemoryStore::with_clock(clock.clone(), 1_000);
    (Limiter::new(store, Rules::from_yaml(rules).unwrap()).with_clock(clock.clone()), clock)
}

/// A service behind `layer` that answers `hello`.
fn hello<S: Store + 'static>(
    layer: &RateLimitLayer<S>,
) -> RateLimit<impl Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + use<S>, S>
{
    layer.layer(tower::service_fn(async |_: Request<Body>| Ok(Response::new(Body::from("hello")))))
}

fn get(path: &str) -> Request<Body> {
    Request::builder().uri(path).body(Body::empty()).unwrap()
}

/// Returns a header of a response, if any.
fn header<B>(response: &Response<B>, name: &str) -> Option<String> {
    response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
}

/// Returns the usage of the first limit.
async fn used<S: Store>(limiter: &Limiter<S>) -> u64 {
    let decision = limiter.peek(slidegate::Request::new([])).await.unwrap();
    decision.limits().next().unwrap().used()
}

async fn until_used<S: Store>(limiter: &Limiter<S>, expected: u64) {
    until(&format!("{expected} in use"), async || used(limiter).await == expected).await;
}

/// Sends one request and returns the response with its whole body.
async fn send<Inner, B, E>(service: &Inner, request: Request<Body>) -> Response<String>
where
    Inner: Service<Request<Body>, Response = Response<B>, Error = E> + Clone,
    B: http_body::Body<Data = bytes::Bytes, Error: std::fmt::Debug>,
    E: std::fmt::Debug,
{
    let (head, body) = service.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Response::from_parts(head, String::from_utf8(body.into()).unwrap())
}
