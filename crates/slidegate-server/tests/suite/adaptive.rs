//! Tests limits that follow reports over the API, the same on every node.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, RedisServer, eventually};

use crate::server::Server;

/// Only latencies count, without smoothing: the load of the test machine must not matter.
const RULES: &str = "
rules:
  - name: orders
    match: { api: /orders }
    key: [user]
    limit: 100
    window: 1h
    adaptive: { cpu: off, memory: off, latency: { high: 500ms, above: 50% }, smooth: 100ms }
  - { name: others, limit: 1000, window: 1h }
";

fn report(server: &Server, latency: u64) -> Value {
    let body = json!({ "attributes": { "api": "/orders", "user": "x" }, "latency_ms": latency });
    let answer = server.post("/v1/report", &body.to_string());
    assert_eq!(answer.status, 200);
    answer.json()
}

fn factor(server: &Server) -> f64 {
    let page = server.get("/metrics").body;
    let line = page.lines().find_map(|line| line.strip_prefix("slidegate_rule_factor{rule=\"orders\"} "));
    line.expect("the rule follows the load").parse().unwrap()
}

fn effective_limit(server: &Server) -> String {
    let page = server.get("/metrics").body;
    let line =
        page.lines().find_map(|line| line.strip_prefix("slidegate_rule_effective_limit{rule=\"orders\"} "));
    line.unwrap().to_owned()
}

/// Reports to one node until all nodes have the factor.
fn until(servers: &[Server], latency: u64, there: impl Fn(f64) -> bool) {
    eventually("all nodes have the factor", || {
        report(&servers[0], latency);
        servers.iter().all(|server| there(factor(server)))
    });
}

/// Returns the number of allowed requests of `user`, out of 120. Reports continue meanwhile: a second without reports
/// moves the factor towards 1.
fn admitted(server: &Server, user: &str, latency: u64) -> usize {
    let body = json!({ "attributes": { "api": "/orders", "user": user } }).to_string();
    let allowed = |_: &i32| {
        report(server, latency);
        server.post("/v1/acquire", &body).status == 200
    };
    (0..120).filter(allowed).count()
}

#[test]
fn limit_falls_with_latencies_and_recovers() {
    let server = [Server::with_rules(RULES)];
    assert_eq!(report(&server[0], 1), json!({ "rules": 1 }));
    until(&server, 900, |factor| factor == 0.5);
    assert_eq!(effective_limit(&server[0]), "50");
    assert_eq!(admitted(&server[0], "alice", 900), 50);
    until(&server, 1, |factor| factor > 1.05);
    let bob = admitted(&server[0], "bob", 1);
    assert!((105..=110).contains(&bob), "105 % to 110 % of 100, not {bob}");
}

#[test]
fn every_node_has_the_same_limit() {
    let redis = RedisServer::start(Flavour::Redis7);
    let rules = format!("store: {}\nguard: {{ deadline: 20s }}{RULES}", redis.url());
    let servers: Vec<Server> = (0..3).map(|_| Server::with_rules(&rules)).collect();
    until(&servers, 900, |factor| factor == 0.5);
    for (server, user) in servers.iter().zip(["alice", "bob", "carol"]) {
        assert_eq!(admitted(server, user, 900), 50);
    }
    // A node that starts later gets the factor too.
    let late = Server::with_rules(&rules);
    until(&servers, 900, |factor| factor == 0.5);
    eventually("the late node has the factor", || {
        report(&servers[1], 900);
        factor(&late) == 0.5
    });
}

/// A program that can write to Redis adds an id that no clock produces, and bytes that are not text: nodes continue.
#[test]
fn nodes_skip_impossible_stream_entries() {
    let redis = RedisServer::start(Flavour::Redis7);
    let rules = format!("store: {}\nguard: {{ deadline: 20s }}{RULES}", redis.url());
    let servers: Vec<Server> = (0..2).map(|_| Server::with_rules(&rules)).collect();
    until(&servers, 900, |factor| factor == 0.5);
    let key = "sg:{adaptive}:shared";
    ::redis::cmd("XADD").arg(key).arg("*").arg(b"load:\xff").arg(b"\xff").exec(&mut redis.client()).unwrap();
    redis.run(&format!("XADD {key} 18446744073709551615-18446744073709551615 load:x nonsense"));
    until(&servers, 1, |factor| factor > 1.05);
    until(&servers, 900, |factor| factor == 0.5);
}

#[test]
fn rules_show_their_adaptive_settings() {
    let server = Server::with_rules(RULES);
    let rules = server.get("/v1/rules").json();
    assert_eq!(
        rules["rules"][0]["adaptive"],
        json!({
            "cpu": "off",
            "memory": "off",
            "latency": { "low": "100ms", "high": "500ms", "below": "110%", "above": "50%" },
            "min": "10%",
            "max": "120%",
            "sensitivity": 1.0,
            "smooth": "100ms"
        })
    );
}

#[test]
fn bad_reports_are_rejected() {
    let server = Server::with_rules(RULES);
    for (body, message) in [
        (r#"{"attributes":{"api":"/orders"}}"#, "missing field `latency_ms`"),
        (
            r#"{"attributes":{"api":"/orders"},"latency_ms":-1}"#,
            "latency_ms must be between 0 and 3600000, not -1",
        ),
        (
            r#"{"attributes":{"api":"/orders"},"latency_ms":3600001}"#,
            "latency_ms must be between 0 and 3600000, not 3600001",
        ),
        (r#"{"attributes":{"api":"/orders"},"latency_ms":1e999}"#, "number out of range"),
        (r#"{"attributes":{"api":"/orders"},"latency_ms":"9"}"#, "invalid type"),
        (r#"{"latency_ms":1}"#, "set either `attributes` or `resource`"),
        (r#"{"attributes":{},"resource":"x","latency_ms":1}"#, "set either `attributes` or `resource`"),
        (r#"{"attributes":{"":"x"},"latency_ms":1}"#, "an attribute name must be"),
        (r#"{"resource":"x","latency_ms":1,"permits":1}"#, "unknown field `permits`"),
    ] {
        let answer = server.post("/v1/report", body);
        assert_eq!(answer.status, 400, "{body}");
        let text = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(text.contains(message), "{body}: {text}");
    }
    // No adaptive rule matches these reports.
    for body in
        [r#"{"resource":"x","latency_ms":1}"#, r#"{"attributes":{"api":"/x"},"latency_ms":1,"ok":false}"#]
    {
        assert_eq!(server.post("/v1/report", body).json(), json!({ "rules": 0 }));
    }
}
