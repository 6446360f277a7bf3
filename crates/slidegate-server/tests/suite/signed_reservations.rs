//! Tests that a server settles only reservations that a server with the same key has signed.

use std::process::Command;

use serde_json::{Value, json};
use slidegate_testkit::process;

use crate::server::{Answer, BINARY, Server};

const MESSAGE: &str = "invalid reservation: send it exactly as it was received";

const RULES: &str = "
rules:
  - { name: login, match: { api: /login }, key: [ip], limit: 3, window: 1h, count: attempts }
  - { name: a, key: [user], limit: 1000, window: 1h }
  - { name: bucket, key: [tenant], limit: 10, window: 10s, algorithm: token-bucket, burst: 20 }
";

/// Starts a server with these keys, or with a random key if there are none.
fn server(keys: &[&str]) -> Server {
    match keys {
        [] => Server::with_rules(RULES),
        [first] => Server::with_env(&[("SLIDEGATE_RESERVATION_KEY", first)], RULES, &[]),
        [first, others @ ..] => {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("keys");
            std::fs::write(&file, others.join("\n")).unwrap();
            let rules = format!("reservations: {{ keys-file: {} }}\n{RULES}", file.display());
            Server::with_env(&[("SLIDEGATE_RESERVATION_KEY", first)], &rules, &[])
        }
    }
}

fn acquire(server: &Server, attributes: Value, permits: u64) -> Value {
    let answer =
        server.post("/v1/acquire", &json!({ "attributes": attributes, "permits": permits }).to_string());
    answer.json()
}

fn reserve(server: &Server) -> String {
    acquire(server, json!({ "user": "b" }), 3)["reservation"].as_str().unwrap().to_owned()
}

fn settle(server: &Server, reservation: &str, permits: u64) -> Answer {
    server.post("/v1/settle", &json!({ "reservation": reservation, "permits": permits }).to_string())
}

fn assert_rejected(server: &Server, reservation: &str) {
    for path in ["/v1/settle", "/v1/release", "/v1/extend"] {
        let body = match path {
            "/v1/settle" => json!({ "reservation": reservation, "permits": 0 }),
            _ => json!({ "reservation": reservation }),
        };
        let answer = server.post(path, &body.to_string());
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["message"]), (400, &json!(MESSAGE)), "{path} {reservation:.200}");
    }
}

fn used(server: &Server, key: &str) -> u64 {
    server.get(&format!("/v1/keys/{key}")).json()["used"].as_u64().unwrap_or(0)
}

#[test]
fn altered_reservation_is_rejected() {
    let server = server(&[]);
    let reservation = reserve(&server);
    let (text, signature) = reservation.split_at(reservation.len() - 33);
    assert!(text.ends_with(".3.8.a:user=b"), "{text}");
    let altered = [
        text.to_owned(),
        format!("{text}."),
        format!("{text}.{}", "0".repeat(32)),
        format!("{text}{}", signature.to_uppercase().replace('0', "1")),
        reservation.replace(".3.8.", ".2.8."),
        reservation.replace("user=b", "user=c"),
        format!("{text}{reservation}"),
        format!("h{reservation}"),
    ];
    for altered in altered {
        assert_rejected(&server, &altered);
    }
    assert_eq!(used(&server, "a:user=b"), 3);
    assert_eq!(settle(&server, &reservation, 1_000_000_000_001).status, 400);
    assert_eq!(settle(&server, &reservation, 1).json(), json!({ "settled": "done" }));
    assert_eq!(settle(&server, &reservation, 0).json(), json!({ "settled": "already" }));
    assert_eq!(used(&server, "a:user=b"), 1);
}

/// 1,300 charges of one admission fit into one body.
#[test]
fn many_forged_reservations_are_rejected() {
    let server = server(&[]);
    let reservation = reserve(&server);
    let at = reservation.split('.').next().unwrap();
    let forged: String = (0..1_300u64).map(|n| format!("{at}.{}.1.8.a:user=b", 10u64.pow(18) + n)).collect();
    assert!(forged.len() < 65_000);
    assert_rejected(&server, &forged);
    assert_eq!(used(&server, "a:user=b"), 3);
}

/// `GET /v1/keys` shows the instant of an admission, to the microsecond. That is not enough to settle it.
#[test]
fn key_details_do_not_forge_a_reservation() {
    let server = server(&[]);
    for _ in 0..3 {
        let answer = acquire(&server, json!({ "api": "/login", "ip": "1.2.3.4" }), 1);
        assert_eq!((&answer["allowed"], &answer["reservation"]), (&json!(true), &Value::Null), "attempts");
    }
    reserve(&server);
    for (key, used_before) in [("login:ip=1.2.3.4", 3), ("a:user=b", 3)] {
        let shown = server.get(&format!("/v1/keys/{key}")).json();
        let entries = shown["entries"].as_array().unwrap();
        assert!(!entries.is_empty());
        for entry in entries {
            let at = (entry["at_ms"].as_f64().unwrap() * 1_000.0).round();
            for (generation, place) in
                (0..4u64).flat_map(|generation| [0u64, 1, 2].map(|place| (generation, place)))
            {
                let seq = (generation << 40) + place;
                assert_rejected(&server, &format!("{at}.{seq}.{}.{}.{key}", entry["permits"], key.len()));
            }
        }
        assert_eq!(used(&server, key), used_before);
    }
    let again = acquire(&server, json!({ "api": "/login", "ip": "1.2.3.4" }), 1);
    assert_eq!(again["denied_by"], "login");
}

#[test]
fn settling_a_higher_cost_locks_no_bucket() {
    let server = server(&[]);
    let tenant = || json!({ "tenant": "t" });
    let reservation = acquire(&server, tenant(), 1)["reservation"].as_str().unwrap().to_owned();
    assert_eq!(settle(&server, &reservation, 1_000_000_000_000).json(), json!({ "settled": "done" }));
    let denied = acquire(&server, tenant(), 1);
    assert_eq!(denied["denied_by"], "bucket");
    let wait = denied["retry_after_ms"].as_u64().unwrap();
    assert!(wait <= 21_000, "20 permits are owed, and one comes a second: {wait} ms");
}

#[test]
fn servers_with_the_same_key_accept_each_other() {
    let [old, new] = ["the old key of this deployment", "the new key of this deployment"];
    let (random, another) = (server(&[]), server(&[]));
    assert_rejected(&another, &reserve(&random));
    let (one, two) = (server(&[old]), server(&[old]));
    let from_one = reserve(&one);
    assert_rejected(&random, &from_one);
    assert_eq!(
        settle(&two, &from_one, 0).json(),
        json!({ "settled": "gone" }),
        "the admission is in the memory of the other server"
    );
    // The key is replaced: a server signs with its first key, and accepts all its keys.
    let both = server(&[new, old]);
    assert_eq!(settle(&both, &from_one, 0).status, 200);
    let from_both = reserve(&both);
    assert_rejected(&one, &from_both);
    let replaced = server(&[new]);
    assert_eq!(settle(&replaced, &from_both, 0).status, 200);
    assert_rejected(&replaced, &from_one);
}

#[test]
fn invalid_signing_key_is_reported() {
    let serve = |variable: &str, config: &str| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.yaml"), config).unwrap();
        std::fs::write(folder.path().join("empty"), "\n\n").unwrap();
        let mut command = Command::new(BINARY);
        command.current_dir(folder.path()).args([
            "serve",
            "--config",
            "config.yaml",
            "--http",
            "127.0.0.1:0",
        ]);
        command.args(["--grpc", "off", "--resp", "off"]);
        if !variable.is_empty() {
            command.env("SLIDEGATE_RESERVATION_KEY", variable);
        }
        let output = process::output(&mut command);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    for (variable, config, message) in [
        (
            " ",
            "rules: []",
            "SLIDEGATE_RESERVATION_KEY is empty: set a reservation key, or unset the variable",
        ),
        ("short", "rules: []", "a reservation key needs at least 16 characters: try `openssl rand -hex 32`"),
        (
            "",
            "reservations: { keys-file: empty }\nrules: []",
            "empty has no reservation key: write one per line",
        ),
        ("", "reservations: { keys-file: missing }\nrules: []", "cannot read missing: No such file"),
        ("", "rules: []\nreservations: {}", "2:15: reservations needs `keys-file`"),
        ("", "rules: []\nreservations: { key: x }", "2:17: unknown field `key` in reservations"),
    ] {
        let stderr = serve(variable, config);
        assert!(stderr.contains(message), "{stderr}");
    }
}
