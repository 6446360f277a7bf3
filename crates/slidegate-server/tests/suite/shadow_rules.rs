//! Tests rules that are tried out beside the rules that they would replace: changed decisions are counted exactly.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, RedisServer};

use crate::grpc;
use crate::server::Server;

const ADMIN: &str = "admin-token-0123456789";

const RULES: &str = "
rules:
  - { name: now,    match: { api: /login }, key: [ip], limit: 5, window: 1h }
  - { name: tight,  match: { api: /login }, key: [ip], limit: 3, window: 1h, shadow-of: now }
  - { name: wide,   match: { api: /login }, key: [ip], limit: 8, window: 1h, shadow-of: now }
  - { name: alone,  match: { api: /login }, key: [ip], limit: 4, window: 1h, mode: shadow }
  - { name: global, limit: 20, window: 1h }
";

fn acquire(server: &Server, ip: &str) -> bool {
    let body = json!({ "attributes": { "api": "/login", "ip": ip } });
    server.post("/v1/acquire", &body.to_string()).status == 200
}

/// Counters of a shadow rule: decisions, would-be denials, newly denied, newly allowed.
fn shadow(server: &Server, rule: &str) -> [u64; 4] {
    let shown = server.get("/v1/rules").json();
    let shadows = shown["edition"]["shadows"].as_array().unwrap();
    let found = shadows.iter().find(|shadow| shadow["rule"] == rule).unwrap_or_else(|| panic!("{shown}"));
    ["decisions", "would_deny", "newly_denied", "newly_allowed"].map(|name| found[name].as_u64().unwrap())
}

fn changes(server: &Server, rule: &str) -> [u64; 2] {
    let page = server.get("/metrics").body;
    ["newly-denied", "newly-allowed"].map(|change| {
        let series = format!("slidegate_shadow_changes_total{{rule=\"{rule}\",change=\"{change}\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&series));
        line.unwrap_or_else(|| panic!("{series} is not in {page}")).parse().unwrap()
    })
}

/// Runs in memory, and in Redis without local caches.
fn everywhere(show: impl Fn(&Server)) {
    let admin = [("SLIDEGATE_ADMIN_TOKEN", ADMIN)];
    show(&Server::with_env(&admin, RULES, &[]));
    let redis = RedisServer::start(Flavour::Redis7);
    let plain =
        format!("store: {}\nguard: {{ deadline: 20s }}\nhot-keys: {{ deny-cache: 0 }}{RULES}", redis.url());
    show(&Server::with_env(&admin, &plain, &[]));
}

#[test]
fn changed_decisions_are_counted_exactly() {
    everywhere(|server| {
        // One address sends ten requests, and 5 pass. The tight rule would allow 3, the wide one 8.
        let allowed = (0..10).filter(|_| acquire(server, "1")).count();
        assert_eq!(allowed, 5);
        assert_eq!(shadow(server, "tight"), [10, 7, 2, 0]);
        assert_eq!(shadow(server, "wide"), [10, 2, 0, 3]);
        // A rule in shadow mode without `shadow-of` counts only admitted requests: it would have denied the fifth, and reports
        // the same for the rest.
        assert_eq!(shadow(server, "alone"), [10, 6, 1, 0]);
        for rule in ["tight", "wide", "alone"] {
            let [_, _, denied, allowed] = shadow(server, rule);
            assert_eq!(changes(server, rule), [denied, allowed], "{rule}");
        }
        let siblings: Vec<Value> = server.get("/v1/rules").json()["edition"]["shadows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|shadow| shadow["shadow_of"].clone())
            .collect();
        assert_eq!(siblings, [json!("now"), json!("now"), Value::Null]);

        // Fifteen more addresses use up the rule for all addresses, so the shadow rules can allow nothing more.
        let allowed = (0..17).filter(|n| acquire(server, &format!("other-{n}"))).count();
        assert_eq!(allowed, 15);
        assert_eq!(shadow(server, "wide"), [27, 2, 0, 3]);
        assert_eq!(shadow(server, "tight"), [27, 7, 2, 0]);
    });
}

/// A new version of the rules counts from zero; counters for Prometheus continue.
#[test]
fn each_rule_version_counts_separately() {
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", ADMIN)], RULES, &[]);
    (0..5).for_each(|_| assert!(acquire(&server, "1")));
    assert_eq!(shadow(&server, "tight"), [5, 2, 2, 0]);
    let token = format!("Bearer {ADMIN}");
    let put = |rules: &str| server.send("PUT", "/v1/rules", &[("authorization", &token)], rules);
    // The output of GET can be put back, and the same rules do not create a new edition.
    assert_eq!(put(&server.get("/v1/rules").body).status, 200);
    assert_eq!(shadow(&server, "tight"), [5, 2, 2, 0]);
    assert_eq!(put(&RULES.replace("limit: 5,", "limit: 6,")).status, 200);
    assert_eq!(shadow(&server, "tight"), [0, 0, 0, 0]);
    assert!(acquire(&server, "1") && !acquire(&server, "1"));
    assert_eq!(shadow(&server, "tight"), [2, 2, 1, 0]);
    assert_eq!(shadow(&server, "wide"), [2, 0, 0, 1]);
    assert_eq!(changes(&server, "tight"), [3, 0]);
    let mistake =
        put(&RULES.replace("limit: 3, window: 1h, shadow-of: now", "limit: 3, window: 1h, shadow-of: then"));
    assert_eq!(mistake.status, 400);
    let message = mistake.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.ends_with("shadow-of names `then`, which is not a rule"), "{message}");
}

#[test]
fn shadows_are_counted_for_every_protocol() {
    let server = Server::with_rules(RULES);
    let batch = json!({ "requests": vec![json!({ "attributes": { "api": "/login", "ip": "1" } }); 10] });
    server.post("/v1/acquire/batch", &batch.to_string());
    assert_eq!((shadow(&server, "tight"), shadow(&server, "wide")), ([10, 7, 2, 0], [10, 2, 0, 3]));
    let mut client = crate::resp::Wire::connect(server.listener_address("redis"));
    for _ in 0..6 {
        client.call("SG.CHECK api /login ip 2");
    }
    assert_eq!(shadow(&server, "wide"), [16, 2, 0, 4]);
    let grpc = grpc::Client::of(&server);
    for _ in 0..6 {
        grpc.codes(grpc::rate_limit_request("shop", &[&[("api", "/login"), ("ip", "3")]]));
    }
    assert_eq!(shadow(&server, "wide"), [22, 2, 0, 5]);
}

/// A shadow rule that cannot be evaluated neither denies a request nor fails it.
#[test]
fn failing_shadow_fails_no_request() {
    let redis = RedisServer::start(Flavour::Redis7).without_ttl_check();
    let server = Server::with_rules(&format!("store: {}\nguard: {{ deadline: 20s }}{RULES}", redis.url()));
    // The key of `tight` holds a value of another program.
    redis.run("SET sg:{tight:ip=1} text");
    assert_eq!((0..10).filter(|_| acquire(&server, "1")).count(), 5);
    redis.kill();
    assert_eq!(
        (0..10).filter(|_| acquire(&server, "2")).count(),
        5,
        "the server decides by itself, with its own count"
    );
}
