//! Permits that are held, and limits that climb, from the door.

use serde_json::{Value, json};

use crate::redis_server::{Flavour, Server as Redis};
use crate::server::Server;

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
    answer.json()["settled"].clone()
}

/// In memory, in Redis, and in Redis without scripts.
fn everywhere(show: impl Fn(&Server)) {
    show(&Server::with_rules(RULES));
    let redis = Redis::start(Flavour::Redis7);
    show(&Server::with_rules(&format!("store: {}{RULES}", redis.url())));
    let transactions =
        format!("store: redis\nredis: {{ url: {}, mode: transaction, prefix: tx }}{RULES}", redis.url());
    show(&Server::with_rules(&transactions));
}

#[test]
fn what_is_held_is_given_back_once() {
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
        assert_eq!((used(0), used(1)), (json!(3), json!(2)), "what was called stays called");
    });
}

#[test]
fn bad_reservations_are_refused() {
    let server = Server::with_rules(RULES);
    for (body, message) in [
        (
            r#"{"reservation":"h"}"#,
            "reservation is not one that was given out: send it back as it was received",
        ),
        (
            r#"{"reservation":"h1.2.3.4.nonsense"}"#,
            "reservation is not one that was given out: send it back as it was received",
        ),
        (r#"{}"#, "missing field `reservation` at line 1 column 2"),
    ] {
        for path in ["/v1/release", "/v1/extend"] {
            let answer = server.post(path, body);
            assert_eq!(answer.status, 400, "{path} {body}");
            let said = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(said.contains(message), "{path} {body}: {said}");
        }
    }
}

#[test]
fn a_limit_that_climbs_is_said_with_its_height() {
    everywhere(|server| {
        for n in 1..=20 {
            let answer = acquire(server, json!({ "api": "/orders" }));
            let limit = &answer["limits"][0];
            assert_eq!((&answer["allowed"], &limit["used"]), (&json!(true), &json!(n)), "{answer}");
            assert_eq!(limit["limit"], 20, "{answer}");
        }
        let refused = acquire(server, json!({ "api": "/orders" }));
        assert_eq!((&refused["allowed"], &refused["denied_by"]), (&json!(false), &json!("climbs")));
        // 21 of 100 are there when a eightieth of the hour has passed, or the first has left.
        let wait = refused["retry_after_ms"].as_u64().unwrap();
        assert!((35_000..=45_000).contains(&wait), "{wait}");
    });
}

/// A rules file comes back as it was written.
#[test]
fn rules_say_how_they_climb() {
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
