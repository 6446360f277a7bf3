//! Tests responses to clients: statuses, headers, bodies, and their gRPC forms.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use slidegate::tower::{Denial, RateLimitLayer, Rejection};
use slidegate::{Limiter, Micros, Rules, redis::RedisStore};

use super::{get, header, hello, limiter, send};

const TWO_A_MINUTE: &str = "rules: [{ name: calls, limit: 2, window: 1m, code: 10007 }]";

#[tokio::test]
async fn responses_equal_those_of_the_http_api() {
    let (limiter, clock) = limiter(TWO_A_MINUTE);
    let service = hello(&RateLimitLayer::new(limiter));
    let first = send(&service, get("/")).await;
    assert_eq!((first.status(), first.body().as_str()), (StatusCode::OK, "hello"));
    assert_eq!(header(&first, "ratelimit-policy").unwrap(), r#""calls";q=2;w=60"#);
    assert_eq!(header(&first, "ratelimit").unwrap(), r#""calls";r=1;t=60"#);
    assert_eq!(header(&first, "retry-after"), None);

    clock.advance(Micros::from_millis(14_500));
    send(&service, get("/")).await;
    let denied = send(&service, get("/")).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.body(), r#"{"allowed":false,"code":10007,"retry_after_ms":45500}"#);
    assert_eq!(header(&denied, "content-type").unwrap(), "application/json");
    assert_eq!(header(&denied, "ratelimit").unwrap(), r#""calls";r=0;t=60"#);
    assert_eq!(header(&denied, "retry-after").unwrap(), "46");
    assert_eq!(header(&denied, "x-ratelimit-limit"), None);

    clock.advance(Micros::from_millis(45_500));
    assert_eq!(send(&service, get("/")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn headers_are_configurable() {
    let (limiter, _) = limiter(TWO_A_MINUTE);
    let quiet = hello(&RateLimitLayer::new(limiter).headers_on_denials_only().older_headers());
    for _ in 0..2 {
        let allowed = send(&quiet, get("/")).await;
        assert_eq!((header(&allowed, "ratelimit"), header(&allowed, "x-ratelimit-limit")), (None, None));
    }
    let denied = send(&quiet, get("/")).await;
    assert_eq!(header(&denied, "ratelimit").unwrap(), r#""calls";r=0;t=60"#);
    let older = ["limit", "remaining", "reset"].map(|name| header(&denied, &format!("x-ratelimit-{name}")));
    assert_eq!(older.map(Option::unwrap), ["2", "0", "60"]);
}

#[tokio::test]
async fn two_layers_report_both_limits() {
    let (outer, _) = limiter("rules: [{ name: outer, limit: 5, window: 1m }]");
    let (inner, _) = limiter("rules: [{ name: inner, limit: 2, window: 1m }]");
    let both = tower::Layer::layer(&RateLimitLayer::new(outer), hello(&RateLimitLayer::new(inner)));
    let response = send(&both, get("/")).await;
    let headers: Vec<_> = response.headers().get_all("ratelimit").iter().collect();
    assert_eq!(headers, [r#""inner";r=1;t=60"#, r#""outer";r=4;t=60"#]);
}

#[tokio::test]
async fn unmatched_request_passes_without_headers() {
    let (limiter, _) = limiter("rules: [{ name: users, key: [user], limit: 1, window: 1m }]");
    let service = hello(&RateLimitLayer::new(limiter));
    for _ in 0..3 {
        let response = send(&service, get("/")).await;
        assert_eq!((response.status(), header(&response, "ratelimit")), (StatusCode::OK, None));
    }
}

#[tokio::test]
async fn denial_response_can_be_replaced() {
    let (limiter, _) = limiter(TWO_A_MINUTE);
    let layer = RateLimitLayer::new(limiter).answer_with(|denial, mut usual| match denial {
        Denial::OverLimit(decision) => {
            *usual.body_mut() = Bytes::from(format!("slow down, {}", decision.denied_by().unwrap()));
            usual.headers_mut().insert("content-type", HeaderValue::from_static("text/plain"));
            usual
        }
        _ => Response::builder().status(418).body(Bytes::new()).unwrap(),
    });
    let service = hello(&layer);
    send(&service, get("/")).await;
    send(&service, get("/")).await;
    let denied = send(&service, get("/")).await;
    assert_eq!((denied.status().as_u16(), denied.body().as_str()), (429, "slow down, calls"));
    assert_eq!(header(&denied, "retry-after").unwrap(), "60");
    // Services that were made from the layer before are not changed.
    let picky = layer.permits(|_| Err("no".into()));
    assert_eq!(send(&hello(&picky), get("/")).await.status().as_u16(), 418);
    assert_eq!(send(&service, get("/")).await.status().as_u16(), 429);
}

#[tokio::test]
async fn unavailable_store_answers_503_or_allows() {
    let limiter = || {
        let store = RedisStore::new("redis://127.0.0.1:1").unwrap();
        Limiter::new(store, Rules::from_yaml(TWO_A_MINUTE).unwrap())
    };
    let denied = send(&hello(&RateLimitLayer::new(limiter())), get("/")).await;
    assert_eq!(denied.status(), StatusCode::SERVICE_UNAVAILABLE);
    let body =
        r#"{"error":{"code":"unavailable","message":"the request cannot be decided now: try again later"}}"#;
    assert_eq!(denied.body(), body, "errors of the store are not shown to clients");
    let open = send(&hello(&RateLimitLayer::new(limiter()).fail_open()), get("/")).await;
    assert_eq!((open.status(), open.body().as_str()), (StatusCode::OK, "hello"));
}

#[tokio::test]
async fn cost_over_the_limit_is_a_client_error() {
    let (limiter, _) = limiter(TWO_A_MINUTE);
    let layer = RateLimitLayer::new(limiter).permits(|request| {
        let rejection = || Rejection::new(StatusCode::UNPROCESSABLE_ENTITY, "say \"how many\"");
        request.uri.query().and_then(|query| query.parse().ok()).ok_or_else(rejection)
    });
    let service = hello(&layer);
    let denied = send(&service, get("/?3")).await;
    assert_eq!(denied.status(), StatusCode::BAD_REQUEST);
    let message = "3 permits exceed the limit of rule `calls`, which is 2: waiting does not help";
    assert_eq!(denied.body(), &format!(r#"{{"error":{{"code":"invalid_request","message":"{message}"}}}}"#));
    let denied = send(&service, get("/")).await;
    assert_eq!(denied.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert!(denied.body().contains(r#"say \"how many\""#), "{}", denied.body());
    assert_eq!(send(&service, get("/?2")).await.status(), StatusCode::OK, "neither was charged");
}

#[tokio::test]
async fn grpc_requests_get_grpc_statuses() {
    let (limiter, _) = limiter("rules: [{ name: one, limit: 1, window: 1m }]");
    let layer = RateLimitLayer::new(limiter);
    send(&hello(&layer), get("/")).await;
    let call = |kind: &'static str| {
        let mut request = get("/grpc.health.v1.Health/Check");
        request.headers_mut().insert("content-type", HeaderValue::from_static(kind));
        request
    };
    let status_of = async |layer: &RateLimitLayer<_>, kind| {
        let response = send(&hello(layer), call(kind)).await;
        let head = ["content-type", "grpc-status"].map(|name| header(&response, name));
        (response.status().as_u16(), head.map(Option::unwrap_or_default), response.into_body())
    };
    for (kind, answered) in
        [("application/grpc+proto", "application/grpc"), ("application/grpc-web", "application/grpc-web")]
    {
        let expected = (200, [answered.into(), "8".into()], String::new());
        assert_eq!(status_of(&layer, kind).await, expected, "{kind}");
    }
    assert_eq!(status_of(&layer, "application/json").await.0, 429);
    assert_eq!(status_of(&layer.clone().never_grpc(), "application/grpc").await.0, 429);
    assert_eq!(status_of(&layer.clone().always_grpc(), "text/plain").await.0, 200);

    let denied = send(&hello(&layer), call("application/grpc")).await;
    assert_eq!(header(&denied, "grpc-retry-pushback-ms").unwrap(), "60000");
    assert_eq!(header(&denied, "grpc-message").unwrap(), "denied by one, retry in 1m");
    let statuses = [(400, "3"), (401, "16"), (403, "7"), (404, "3"), (500, "13"), (503, "14")];
    for (http, grpc) in statuses {
        let status = StatusCode::from_u16(http).unwrap();
        let layer = layer.clone().permits(move |_| Err(Rejection::new(status, "für 100 %")));
        let rejected = send(&hello(&layer), call("application/grpc")).await;
        assert_eq!(header(&rejected, "grpc-status").unwrap(), grpc, "{http}");
        assert_eq!(header(&rejected, "grpc-message").unwrap(), "f%C3%BCr 100 %25");
    }
}
