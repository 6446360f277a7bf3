//! Tests held permits and warm-up limits over the API.

use serde_json::{Value, json};
use slidegate_testkit::{FakeTime, Flavour, RedisServer, eventually, process};

use crate::server::{BINARY, Server};

const RULES: &str = "
rules:
  - { name: calls,   key: [user], limit: 100, window: 1m }
  - { name: at-once, key: [user], limit: 2, window: 30s, algorithm: concurrency }
  - { name: climbs,  match: { api: /orders }, key: [api], limit: 100, window: 1m, warm-up: { from: 20%, over: 1h } }
";

fn acquire(server: &Server, attributes: Value) -> Value {
    server.post("/v1/acquire", &json!({ "attributes": attributes }).to_string()).json()
}

fn with_reservation(server: &Server, path: &str, reservation: &Value) -> Value {
    let answer = server.post(path, &json!({ "reservation": reservation }).to_string());
    assert_eq!(answer.status, 200);
    let word = if path == "/v1/extend" { "extended" } else { "released" };
    answer.json()[word].clone()
}

/// Runs in memory, in Redis, and in Redis without scripts.
fn everywhere(show: impl Fn(&Server)) {
    show(&Server::with_rules(RULES));
    let redis = RedisServer::start(Flavour::Redis7);
    // A long deadline: on a busy machine Redis may take longer than the default, and then the node would decide.
    let failover = "guard: { deadline: 20s }";
    show(&Server::with_rules(&format!("store: {}\n{failover}{RULES}", redis.url())));
    let transactions = format!(
        "store: redis\nredis: {{ url: {}, mode: transaction, prefix: tx }}\n{failover}{RULES}",
        redis.url()
    );
    show(&Server::with_rules(&transactions));
}

#[test]
fn held_permits_are_released_once() {
    everywhere(|server| {
        let first = acquire(server, json!({ "user": "alice" }));
        let second = acquire(server, json!({ "user": "alice" }));
        assert_eq!((&first["allowed"], &second["allowed"]), (&json!(true), &json!(true)));
        let third = acquire(server, json!({ "user": "alice" }));
        assert_eq!((&third["allowed"], &third["denied_by"]), (&json!(false), &json!("at-once")));
        let reservation = &first["reservation"];
        assert_eq!(with_reservation(server, "/v1/extend", reservation), "done");
        assert_eq!(with_reservation(server, "/v1/release", reservation), "done");
        assert_eq!(with_reservation(server, "/v1/release", reservation), "already");
        assert_eq!(with_reservation(server, "/v1/extend", reservation), "already");
        let third = acquire(server, json!({ "user": "alice" }));
        let used = |rule: usize| third["limits"][rule]["used"].clone();
        assert_eq!((used(0), used(1)), (json!(3), json!(2)), "a release does not refund the call");
    });
}

#[test]
fn invalid_reservations_are_rejected() {
    let server = Server::with_rules(RULES);
    for (body, message) in [
        (r#"{"reservation":"h"}"#, "invalid reservation: send it exactly as it was received"),
        (r#"{"reservation":"h1.2.3.4.nonsense"}"#, "invalid reservation: send it exactly as it was received"),
        (r#"{}"#, "missing field `reservation` at line 1 column 2"),
    ] {
        for path in ["/v1/release", "/v1/extend"] {
            let answer = server.post(path, body);
            assert_eq!(answer.status, 400, "{path} {body}");
            let text = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(text.contains(message), "{path} {body}: {text}");
        }
    }
}

#[test]
fn climbing_limit_is_reported() {
    everywhere(|server| {
        for n in 1..=20 {
            let answer = acquire(server, json!({ "api": "/orders" }));
            let limit = &answer["limits"][0];
            assert_eq!((&answer["allowed"], &limit["used"]), (&json!(true), &json!(n)), "{answer}");
            assert_eq!(limit["limit"], 20, "{answer}");
        }
        let denied = acquire(server, json!({ "api": "/orders" }));
        assert_eq!((&denied["allowed"], &denied["denied_by"]), (&json!(false), &json!("climbs")));
        // The metric is updated within about a second.
        let line = "slidegate_rule_effective_limit{rule=\"climbs\"} 20\n";
        eventually("the effective limit is shown", || server.get("/metrics").body.contains(line));
        // The limit reaches 21 of 100 after an eightieth of the hour.
        let wait = denied["retry_after_ms"].as_u64().unwrap();
        assert!((35_000..=45_000).contains(&wait), "{wait}");
    });
}

/// A rules file comes back as it was written.
#[test]
fn rules_show_their_warm_up_settings() {
    let server = Server::with_rules(RULES);
    let rules = server.get("/v1/rules").json();
    assert_eq!(rules["rules"][1]["algorithm"], "concurrency");
    assert_eq!(
        rules["rules"][2]["warm-up"],
        json!({ "from": "20%", "over": "1h", "idle": "1m", "shape": "linear" })
    );
    let yaml = server.get("/v1/rules?format=yaml").body;
    assert!(yaml.contains("warm-up:"), "{yaml}");
    slidegate::Rules::from_yaml(&yaml).unwrap();
}

/// Three servers decide in turns, by the clock of their Redis, which the test moves. They admit 20, 50, 80 and 100 in a
/// second, as the source documents say, and every response contains the limit of its instant.
#[test]
fn three_servers_follow_one_warm_up_curve() {
    const SECOND: u64 = 1_000_000;
    let time = FakeTime::start();
    let redis = time.stopped();
    // A long deadline, because the machine may be busy. No deny cache, because it uses another clock.
    let rules = format!(
        "store: {}
guard: {{ deadline: 20s }}
hot-keys: {{ deny-cache: 0 }}
rules: [{{ name: orders, limit: 100, window: 1s, warm-up: {{ from: 20%, over: 4s, idle: 60s, shape: steps }} }}]",
        redis.url()
    );
    let servers = [(); 3].map(|()| Server::with_rules(&rules));
    let seconds = |start: u64, curve: [u64; 5]| {
        for (second, limit) in curve.into_iter().enumerate() {
            let mut admitted = 0;
            // Each server gets a request every 25 milliseconds.
            for step in 0..40 {
                time.stop_at(start + second as u64 * SECOND + step * 25_000);
                for server in &servers {
                    let answer = acquire(server, json!({}));
                    assert_eq!(answer["limits"][0]["limit"], limit, "{answer}");
                    admitted += u64::from(answer["allowed"] == true);
                }
            }
            assert_eq!(admitted, limit, "in second {second}");
        }
    };
    seconds(10 * SECOND, [20, 50, 80, 100, 100]);
    // After a minute the limit is cold again.
    seconds((15 + 61) * SECOND, [20, 50, 80, 100, 100]);
}

const TOKEN: &str = "admin-token-0123456789";

/// Rates that are so slow that nothing refills during the test.
fn buckets(ip: &str, user: &str, vip: &str) -> String {
    format!(
        "rules:
  - {{ name: per-ip, key: [ip], window: 1d, algorithm: token-bucket, {ip} }}
  - {{ name: per-user, key: [user], window: 1d, algorithm: token-bucket, {user},
      overrides: [{{ key: {{ user: vip }}, {vip} }}] }}
"
    )
}

/// Rates and bursts of addresses and users change while the server runs, and each bucket keeps its level, to the permit.
#[test]
fn buckets_keep_their_level_when_rules_change() {
    let redis = RedisServer::start(Flavour::Redis7);
    for store in ["memory".to_owned(), redis.url()] {
        let first = buckets("limit: 1, burst: 10", "limit: 2, burst: 20", "limit: 5, burst: 100");
        let config = |rules: &str| format!("store: {store}\nguard: {{ deadline: 20s }}\n{rules}");
        let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", TOKEN)], &config(&first), &[]);
        let put = |rules: &str| {
            let admin = [("authorization", format!("Bearer {TOKEN}"))];
            let admin = admin.each_ref().map(|(name, value)| (*name, value.as_str()));
            assert_eq!(server.send("PUT", "/v1/rules", &admin, rules).status, 200);
        };
        // Levels of the address, of alice, and of a user with an override.
        let levels = || {
            let attributes =
                [json!({ "ip": "192.0.2.1" }), json!({ "user": "alice" }), json!({ "user": "vip" })];
            attributes.map(|attributes| level(&server, &attributes))
        };
        assert_eq!(levels(), [(10, 10), (20, 20), (100, 100)]);
        for _ in 0..4 {
            acquire(&server, json!({ "ip": "192.0.2.1", "user": "alice" }));
            acquire(&server, json!({ "user": "vip" }));
        }
        assert_eq!(levels(), [(10, 6), (20, 16), (100, 96)]);

        // A larger burst and another rate add no permits.
        put(&buckets("limit: 3, burst: 50", "limit: 7, burst: 40", "limit: 11, burst: 1000"));
        assert_eq!(levels(), [(50, 6), (40, 16), (1000, 96)]);
        // A smaller burst drops the permits that no longer fit.
        put(&buckets("limit: 1, burst: 5", "limit: 2, burst: 30", "limit: 5, burst: 50"));
        assert_eq!(levels(), [(5, 5), (30, 16), (50, 50)]);
        put(&buckets("limit: 1, burst: 10", "limit: 2, burst: 20", "limit: 5, burst: 100"));
        assert_eq!(levels(), [(10, 5), (20, 16), (100, 50)]);

        // The same holds for rules from a file. Without its override, the user has the limit of all users; with it, the
        // old limit.
        let file = "rules: [{ name: per-user, key: [user], window: 1d, algorithm: token-bucket, limit: 2, burst: 60 }]";
        std::fs::write(server.config(), config(file)).unwrap();
        let [alice, vip] = ["alice", "vip"].map(|user| json!({ "user": user }));
        eventually("the file is followed", || level(&server, &vip).0 == 60);
        assert_eq!(level(&server, &vip), (60, 50));
        assert_eq!(level(&server, &alice), (60, 16));

        // Only the remaining permits can be taken. Then the bucket refills at the newest rate, up to its burst.
        let take =
            || (0..100).filter(|_| acquire(&server, json!({ "user": "alice" }))["allowed"] == true).count();
        assert_eq!(take(), 16);
        let fast = "rules: [{ name: per-user, key: [user], window: 1s, algorithm: token-bucket, limit: 100000, burst: 25 }]";
        put(fast);
        assert_eq!(level(&server, &alice), (25, 0), "at the old rate until the next request");
        eventually("the bucket is full", || level(&server, &alice) == (25, 25));
    }
}

/// Returns the limit and the remaining permits.
fn level(server: &Server, attributes: &Value) -> (u64, u64) {
    let body = json!({ "attributes": attributes }).to_string();
    let answer = server.post("/v1/peek", &body).json();
    let number = |name: &str| answer["limits"][0][name].as_u64().unwrap();
    (number("limit"), number("remaining"))
}

/// The files in `examples/rules` are valid, and a server starts with each.
#[test]
fn presets_are_valid() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/rules");
    let mut found = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let path = path.to_str().unwrap();
        let output = process::output(std::process::Command::new(BINARY).args(["validate", path]));
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
        let text = std::fs::read_to_string(path).unwrap();
        let rules = Server::start(&["--config", path]).get("/v1/rules").json();
        let names = text.lines().filter_map(|line| line.trim().strip_prefix("- name: "));
        let shown = rules["rules"].as_array().unwrap().iter().map(|rule| rule["name"].as_str().unwrap());
        assert!(names.eq(shown), "{path}: {rules}");
        found += 1;
    }
    assert!(found >= 3);
}
