//! Tests explanations of a decision, from a server and from a file.

use std::io::Write;
use std::process::{Command, Output};

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, RedisServer, process};

use crate::server::{BINARY, Server};

const RULES: &str = "
rules:
  - { name: off, mode: off, limit: 1, window: 1s }
  - { name: login, match: { api: [/login, '/v1/*'] }, key: [ip], limit: 2, window: 1h, code: 10007, overrides: [{ key: { ip: vip }, limit: 9 }] }
  - { name: user, key: [user], limit: 5, window: 1h }
  - { name: climbs, match: { api: /login }, limit: 100, window: 1h, warm-up: { from: 20%, over: 1h } }
  - { name: staff, group: g, match: { plan: staff }, unlimited: true, replaces: [user] }
  - { name: guests, group: g, match: { api: /login }, limit: 1, window: 1h, mode: shadow }
  - { name: closed, match: { api: /closed }, blocked: true, code: 403 }
";

fn explain(server: &Server, body: &Value) -> Value {
    let answer = server.post("/v1/explain", &body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

fn rule<'v>(explained: &'v Value, name: &str) -> &'v Value {
    let rules = explained["rules"].as_array().unwrap();
    rules.iter().find(|rule| rule["rule"] == name).unwrap_or_else(|| panic!("{name}: {explained}"))
}

fn verdicts(explained: &Value) -> Vec<(String, String)> {
    let word = |rule: &Value, name: &str| rule[name].as_str().unwrap().to_owned();
    let rules = explained["rules"].as_array().unwrap();
    rules.iter().map(|rule| (word(rule, "rule"), word(rule, "verdict"))).collect()
}

#[test]
fn every_rule_explains_its_match() {
    let redis = RedisServer::start(Flavour::Redis7);
    let shared = format!("store: {}\nguard: {{ deadline: 20s }}{RULES}", redis.url());
    for server in [Server::with_rules(RULES), Server::with_rules(&shared)] {
        let login = json!({ "attributes": { "api": "/login", "ip": "1.2.3.4" } });
        for _ in 0..2 {
            assert_eq!(server.post("/v1/acquire", &login.to_string()).status, 200);
        }
        let explanation = explain(&server, &login);
        assert_eq!(
            (&explanation["allowed"], &explanation["code"], &explanation["denied_by"], &explanation["never"]),
            (&json!(false), &json!(10007), &json!("login"), &json!(false))
        );
        assert!(explanation["retry_after_ms"].as_u64().unwrap() > 3_500_000, "{explanation}");
        let expected = [
            ("off", "does-not-apply"),
            ("login", "denies"),
            ("user", "does-not-apply"),
            ("climbs", "allows"),
            ("staff", "does-not-apply"),
            ("guests", "would-deny"),
            ("closed", "does-not-apply"),
        ];
        assert_eq!(verdicts(&explanation), expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
        let counted = &rule(&explanation, "login")["counted"];
        for (field, expected) in [
            ("key", json!("login:ip=1.2.3.4")),
            ("algorithm", json!("sliding-window")),
            ("count", json!("admitted")),
            ("limit", json!(2)),
            ("limit_now", json!(2)),
            ("window_ms", json!(3_600_000)),
            ("overridden", json!(false)),
            ("used", json!(2)),
            ("remaining", json!(0)),
            ("more_entries", json!(0)),
        ] {
            assert_eq!(counted[field], expected, "{field}");
        }
        let entries = counted["entries"].as_array().unwrap();
        assert_eq!(entries.len(), 2);
        for entry in entries {
            let [age, leaves] = ["age_ms", "leaves_after_ms"].map(|name| entry[name].as_u64().unwrap());
            assert_eq!(entry["permits"], 1);
            assert!((3_599_990..=3_600_010).contains(&(age + leaves)), "{entry}");
        }
        let warming_up = &rule(&explanation, "climbs")["counted"];
        assert_eq!((&warming_up["limit"], &warming_up["limit_now"]), (&json!(100), &json!(20)));
        assert_eq!(warming_up["warm_up"], json!({ "from": 20, "over_ms": 3_600_000 }));
        let reason = json!({ "kind": "key", "attribute": "user" });
        assert_eq!(rule(&explanation, "user")["reason"], reason);
        assert_eq!(rule(&explanation, "off")["reason"], json!({ "kind": "off" }));

        // Explanations charge nothing.
        assert_eq!(explain(&server, &login)["rules"][3]["counted"]["used"], 2);
        let vip = explain(&server, &json!({ "attributes": { "api": "/v1/x", "ip": "vip" }, "permits": 9 }));
        let counted = &rule(&vip, "login")["counted"];
        assert_eq!((&counted["limit"], &counted["overridden"]), (&json!(9), &json!(true)));
        assert_eq!(vip["allowed"], true);
        let staff =
            explain(&server, &json!({ "attributes": { "api": "/login", "plan": "staff", "user": "u" } }));
        assert_eq!(rule(&staff, "staff")["verdict"], "unlimited");
        assert_eq!(rule(&staff, "guests")["why"], "another rule of group `g` applies first: `staff`");
        assert_eq!(rule(&staff, "user")["reason"], json!({ "kind": "replaced", "rule": "staff" }));
    }
}

#[test]
fn impossible_and_blocked_requests_are_explained() {
    let server = Server::with_rules(RULES);
    let explanation =
        explain(&server, &json!({ "attributes": { "api": "/login", "ip": "1" }, "permits": 3 }));
    assert_eq!(
        (
            &explanation["allowed"],
            &explanation["never"],
            &explanation["denied_by"],
            &explanation["code"],
            &explanation["permits"]
        ),
        (&json!(false), &json!(true), &json!("login"), &json!(10007), &json!(3))
    );
    assert_eq!(rule(&explanation, "login")["verdict"], "denies");
    assert_eq!(rule(&explanation, "climbs")["verdict"], "allows");
    let explanation = explain(&server, &json!({ "attributes": { "api": "/closed", "user": "u" } }));
    assert_eq!(
        (&explanation["denied_by"], &explanation["code"], &explanation["source"]),
        (&json!("closed"), &json!(403), &json!("blocked"))
    );
    assert_eq!(rule(&explanation, "closed")["verdict"], "blocks");
    assert_eq!(rule(&explanation, "user")["verdict"], "not-evaluated");
    let explanation = explain(&server, &json!({ "resource": "r", "limit": 1, "window": "1h" }));
    assert_eq!(verdicts(&explanation), [("ad-hoc".to_owned(), "allows".to_owned())]);
    assert_eq!(rule(&explanation, "ad-hoc")["counted"]["overridden"], false);
}

#[test]
fn adaptive_limit_is_explained() {
    let adaptive = "adaptive: { cpu: off, memory: off, latency: { tolerance: 200% } }";
    let server = Server::with_rules(&format!("rules: [{{ name: a, limit: 10, window: 1s, {adaptive} }}]"));
    let explanation = explain(&server, &json!({ "attributes": {} }));
    let counted = &rule(&explanation, "a")["counted"];
    let fields = ["limit", "limit_now", "factor", "overridden"].map(|name| counted[name].clone());
    assert_eq!(fields, [json!(10), json!(10), json!(1.0), json!(false)], "{explanation}");
}

#[test]
fn invalid_requests_are_rejected_as_by_acquire() {
    let server = Server::with_rules(RULES);
    for body in [
        "{}".to_owned(),
        "[]".to_owned(),
        r#"{"attributes":{"api":""}}"#.to_owned(),
        r#"{"attributes":{"api":"x"},"permits":-1}"#.to_owned(),
        r#"{"resource":"r","limit":0}"#.to_owned(),
    ] {
        let [acquired, explained] = ["/v1/acquire", "/v1/explain"].map(|path| server.post(path, &body));
        assert_eq!((explained.status, &explained.body), (acquired.status, &acquired.body), "{body}");
        assert_eq!(acquired.status, 400, "{body}");
    }
    // Long values of untrusted clients are shortened, because each of thousands of rules repeats them.
    let rules: String = (0..1_500)
        .map(|n| format!("  - {{ name: r{n}, match: {{ a: x{n} }}, limit: 1, window: 1s }}\n"))
        .collect();
    let server = Server::with_rules(&format!("rules:\n{rules}"));
    let answer =
        server.post("/v1/explain", &json!({ "attributes": { "a": "y".repeat(60_000) } }).to_string());
    assert!(answer.body.len() < 1 << 20, "{}", answer.body.len());
    assert_eq!(
        (answer.json()["rules"].as_array().unwrap().len(), &answer.json()["left_out"]),
        (1_000, &json!(500))
    );
}

#[test]
fn explain_needs_the_decision_token() {
    const DATA: &str = "data-token-0123456789";
    let server = Server::with_env(&[("SLIDEGATE_TOKEN", DATA)], RULES, &[]);
    assert_eq!(server.post("/v1/explain", r#"{"attributes":{"api":"x"}}"#).status, 401);
    let url = format!("http://{}", server.address);
    let mut explain = Command::new(BINARY);
    let output =
        process::output(explain.args(["explain", "--url", &url, "api=x"]).env("SLIDEGATE_TOKEN", DATA));
    assert_eq!(output.status.code(), Some(0));
}

fn command(arguments: &[&str]) -> Output {
    process::output(Command::new(BINARY).arg("explain").args(arguments))
}

fn printed(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn text_output_is_readable() {
    let server = Server::with_rules(RULES);
    let url = format!("http://{}", server.address);
    for _ in 0..2 {
        server.post("/v1/acquire", r#"{"attributes":{"api":"/login","ip":"1.2.3.4"}}"#);
    }
    let output = command(&["--url", &url, "api=/login", "ip=1.2.3.4"]);
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("would be denied by login (code 10007): retry in 59m 5"), "{text}");
    for line in [
        "login: denies",
        "  2 of 2 used in 1h, 1 requested (sliding-window)",
        "  key login:ip=1.2.3.4",
        "  warm-up from 20% to 100 over 1h: 20 now",
        "guests (shadow): would deny",
        "do not apply:",
        "  off: it is off",
        "  user: the key needs `user`, but the request has none",
        "  staff: `match` needs `plan` to be staff, but the request has none",
    ] {
        assert!(text.lines().any(|other| other == line), "{line} is not in:\n{text}");
    }
    assert!(text.contains("    1 permit, ") && text.contains(" ago, expires in 59m 5"), "{text}");
    let json: Value = serde_json::from_slice(&command(&["--json", "--url", &url, "api=/x"]).stdout).unwrap();
    assert_eq!(json["allowed"], true);
    let never = command(&["--url", &url, "api=/login", "ip=1.2.3.4", "--permits", "3"]);
    let expected = "would be denied by login (code 10007), always: its limit is below 3 permits\n";
    assert!(printed(&never).starts_with(expected), "{}", printed(&never));
    // Control characters in a value are escaped.
    let odd = printed(&command(&["--url", &url, "api=\u{1b}[31mred\nline"]));
    assert!(odd.contains(r"but it is \u{1b}[31mred\nline"), "{odd}");
    assert!(!odd.contains('\u{1b}'));
}

#[test]
fn file_is_explained_without_a_server() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(RULES.as_bytes()).unwrap();
    let path = file.path().to_str().unwrap();
    let output = command(&["--config", path, "api=/login", "ip=1.2.3.4"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        printed(&output).starts_with("would be allowed\n\nlogin: allows\n  0 of 2 used in 1h, 1 requested"),
        "{}",
        printed(&output)
    );
    let nothing = command(&["--config", path, "x=1"]);
    let headline = "would be allowed: no rule matches it, and `unmatched` is `warn`\n";
    assert!(printed(&nothing).starts_with(headline), "{}", printed(&nothing));
    let own =
        command(&["--config", path, "--resource", "r", "--limit", "5", "--window", "1s", "--permits", "6"]);
    assert_eq!(own.status.code(), Some(1));
    for (arguments, message) in [
        (&["--config", path, "api"][..], "slidegate: `api` is not NAME=VALUE\n"),
        (&["--config", path, "a=1", "a=2"], "slidegate: `a` is given twice\n"),
        (
            &["--config", path, "--resource", "r", "--window", "soon"],
            "slidegate: --window is not a length of time such as 250ms, 5s or 1h\n",
        ),
        (
            &["--config", path, "--resource", "r", "--limit", "0"],
            "slidegate: limit must be between 1 and 100000, not 0\n",
        ),
        (
            &["--config", "/nowhere", "a=1"],
            "slidegate: cannot read /nowhere: No such file or directory (os error 2)\n",
        ),
    ] {
        let output = command(arguments);
        assert_eq!(
            (output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()),
            (Some(2), message)
        );
    }
}
