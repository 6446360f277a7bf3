//! Tests the bodies, statuses and headers of decisions over HTTP.

use serde_json::{Value, json};
use slidegate::{Clock, SystemClock};

use crate::server::Server;

fn login(ip: &str) -> String {
    json!({ "attributes": { "api": "/login", "ip": ip, "user": "alice" } }).to_string()
}

/// The body with its waits replaced, for comparison.
fn without_waits(mut body: Value) -> Value {
    body["retry_after_ms"] = json!("…");
    for limit in body["limits"].as_array_mut().unwrap() {
        limit["retry_after_ms"] = json!("…");
        limit["reset_after_ms"] = json!("…");
    }
    body
}

#[test]
fn login_guard_denies_after_its_limits() {
    let server = Server::demo();
    let clock = SystemClock::new();
    let start = clock.now();
    for n in 1..=3 {
        let answer = server.post("/v1/acquire", &login("1.2.3.4"));
        assert_eq!(answer.status, 200);
        assert_eq!(answer.json()["limits"][0]["used"], n);
        assert_eq!(answer.header("retry-after"), None);
    }
    let denied = server.post("/v1/acquire", &login("1.2.3.4"));
    assert_eq!(denied.status, 429);
    let limit = |rule: &str, key: &str, limit, used| {
        json!({ "rule": rule, "key": key, "limit": limit, "used": used, "remaining": limit - used,
                "retry_after_ms": "…", "reset_after_ms": "…" })
    };
    let expected = json!({
        "allowed": false, "code": 10007, "denied_by": "login-per-ip", "retry_after_ms": "…",
        "limits": [
            limit("login-per-ip", "login-per-ip:ip=1.2.3.4", 3, 3),
            limit("login-per-user", "login-per-user:user=alice", 5, 3),
        ],
        "reservation": null, "source": "store",
    });
    assert_eq!(without_waits(denied.json()), expected);
    assert_eq!(
        denied.header("ratelimit-policy"),
        Some(r#""login-per-ip";q=3;w=5, "login-per-user";q=5;w=60"#)
    );
    // The first request leaves the windows 5 s and 60 s after it was admitted.
    let passed = (clock.now().get() - start.get()).div_ceil(1_000_000);
    let (ip, user) = denied.header("ratelimit").unwrap().split_once(", ").unwrap();
    for (item, start, window) in
        [(ip, r#""login-per-ip";r=0;t="#, 5), (user, r#""login-per-user";r=2;t="#, 60)]
    {
        let seconds: u64 = item.strip_prefix(start).unwrap().parse().unwrap();
        assert!((window - passed.min(window)..=window).contains(&seconds), "{item}");
    }
    let wait = denied.json()["retry_after_ms"].as_u64().unwrap();
    assert!((1..=5_000).contains(&wait));
    assert_eq!(denied.header("retry-after"), Some(wait.div_ceil(1_000).to_string().as_str()));
}

#[test]
fn legacy_headers_on_request() {
    let server = Server::demo();
    let answer = server.post("/v1/acquire", &login("9.9.9.9"));
    assert_eq!(answer.header("x-ratelimit-limit"), None);
    let answer = server.post("/v1/acquire?headers=x-ratelimit", &login("9.9.9.9"));
    let older = ["limit", "remaining", "reset"].map(|name| answer.header(&format!("x-ratelimit-{name}")));
    assert_eq!(older, [Some("3"), Some("1"), Some("5")]);
}

#[test]
fn ad_hoc_limit() {
    let server = Server::demo();
    let body = r#"{"resource":"user123","limit":2,"window":"1h"}"#;
    let statuses: Vec<u16> = (0..4).map(|_| server.post("/v1/acquire", body).status).collect();
    assert_eq!(statuses, [200, 200, 429, 429]);
    let peek = server.post("/v1/peek", body);
    assert_eq!((peek.status, peek.json()["limits"][0]["used"].as_u64()), (429, Some(2)));
}

#[test]
fn second_settlement_returns_already() {
    let server = Server::demo();
    let chat = |permits: u64| {
        json!({ "attributes": { "api": "/chat", "user": "u" }, "permits": permits }).to_string()
    };
    let reserved = server.post("/v1/acquire", &chat(8_000)).json();
    assert_eq!(server.post("/v1/acquire", &chat(3_000)).status, 429);
    let settle = |permits: u64| {
        let body = json!({ "reservation": reserved["reservation"], "permits": permits }).to_string();
        server.post("/v1/settle", &body).json()
    };
    assert_eq!(settle(1_234), json!({ "settled": "done" }));
    assert_eq!(settle(0), json!({ "settled": "already" }));
    assert_eq!(server.post("/v1/peek", &chat(0)).json()["limits"][0]["used"], 1_234);
    let unknown = r#"{"reservation":"1.2.3.1.k","permits":0}"#;
    assert_eq!(server.post("/v1/settle", unknown).status, 400, "the reservation is not signed");
}

#[test]
fn the_same_id_is_charged_once() {
    let server = Server::demo();
    let body = r#"{"attributes":{"api":"/chat","user":"u"},"permits":10,"id":"req-1"}"#;
    let answers: Vec<Value> = (0..3).map(|_| server.post("/v1/acquire", body).json()).collect();
    assert!(answers.iter().all(|answer| answer["allowed"] == true && answer["limits"][0]["used"] == 10));
}

#[test]
fn batch_returns_one_decision_each() {
    let server = Server::demo();
    let one = json!({ "resource": "r", "limit": 2, "window": "1h" });
    let bad = json!({ "resource": "r", "limit": 2, "window": "1h", "permits": 3 });
    let body = json!({ "requests": [one, bad, one, one, { "attributes": {} }] }).to_string();
    let answer = server.post("/v1/acquire/batch", &body);
    assert_eq!(answer.status, 200);
    let results = answer.json()["results"].as_array().unwrap().clone();
    let allowed: Vec<&Value> = results.iter().map(|result| &result["allowed"]).collect();
    assert_eq!(allowed, [&json!(true), &Value::Null, &json!(true), &json!(false), &json!(true)]);
    assert_eq!(results[1]["error"]["code"], "permits_exceed_limit");
    assert_eq!(results[4]["source"], "no-rule");
}

#[test]
fn shadow_rules_report_their_verdict() {
    let server = Server::with_rules("rules: [{ name: s, limit: 1, window: 1h, mode: shadow }]");
    let body = r#"{"attributes":{"x":"y"}}"#;
    let answers: Vec<_> = (0..2).map(|_| server.post("/v1/acquire", body)).collect();
    let would: Vec<_> =
        answers.iter().map(|a| (a.status, a.json()["limits"][0]["would_deny"].clone())).collect();
    assert_eq!(would, [(200, json!(false)), (200, json!(true))]);
    assert_eq!(answers[1].header("ratelimit"), None, "a shadow rule is not shown to clients");
}

#[test]
fn serves_health_rules_and_index() {
    let server = Server::demo();
    assert_eq!(server.get("/healthz").json(), json!({ "status": "ok" }));
    assert_eq!(server.get("/readyz").json(), json!({ "ready": true, "store": "memory", "rules": 4 }));
    assert!(server.get("/").body.contains("POST /v1/acquire"));
    let rules = server.get("/v1/rules").json();
    assert_eq!(rules["rules"][0]["name"], "login-per-ip");
    // The output is itself a file with the same rules.
    let parse = |text: &str| slidegate_server::Config::parse(text).unwrap().rules;
    let (shown, demo) = (parse(&rules.to_string()), parse(slidegate_server::DEMO));
    assert!(shown.iter().eq(demo.iter()));
    assert_eq!((shown.ad_hoc(), shown.unmatched()), (demo.ad_hoc(), demo.unmatched()));
}
