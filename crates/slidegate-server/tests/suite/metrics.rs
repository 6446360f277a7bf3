//! Tests the metrics for Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use slidegate_testkit::{Flavour, RedisServer, eventually};

use crate::fast_path::{KeepAlive, TO_HYPER, request};
use crate::server::Server;

const RULES: &str = "
rules:
  - { name: login, match: { api: /login }, key: [ip], limit: 3, window: 1h }
  - { name: watched, match: { api: /login }, key: [user], limit: 1, window: 1h, mode: shadow }
  - { name: never, match: { plan: none }, blocked: true }
";

const LOGIN: &str = r#"{"attributes":{"api":"/login","ip":"1.2.3.4","user":"alice"}}"#;

/// A metric's type, its help, and the names of its labels.
type Families = BTreeMap<String, (String, String, BTreeSet<String>)>;

fn parse_page(page: &str) -> Families {
    let mut all = Families::new();
    let mut helps = BTreeMap::new();
    for line in page.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            helps.insert(name.to_owned(), help.trim_end_matches('.').to_owned());
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            all.insert(name.to_owned(), (kind.to_owned(), helps[name].clone(), BTreeSet::new()));
        } else if let Some((name, labels)) = line.split_once('{') {
            let family = all.keys().rfind(|other| name.starts_with(other.as_str())).unwrap().clone();
            let labels = labels.split_once('}').unwrap().0;
            let names = labels.split("\",").map(|pair| pair.split_once('=').unwrap().0.to_owned());
            all.get_mut(&family).unwrap().2.extend(names.filter(|name| name != "le"));
        }
    }
    all
}

/// Rows of the table in docs/reference/metrics.md.
fn documented() -> Families {
    let page = include_str!("../../../../docs/reference/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let row = |row: &str| {
        let cells: Vec<&str> = row.trim_end_matches(" |").split(" | ").collect();
        let [name, kind, labels, help] = cells[..] else { panic!("a row has four cells: {row}") };
        let labels = labels.split(", ").map(|label| label.trim_matches('`').to_owned());
        let labels = labels.filter(|label| !label.is_empty()).collect();
        let name = name.trim_end_matches('`');
        // The page has the names of the series, and the server describes the families.
        let suffix = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let family = name.strip_suffix(suffix).unwrap_or_else(|| panic!("{name} ends in {suffix}"));
        (family.to_owned(), (kind.to_owned(), help.to_owned(), labels))
    };
    rows.map(row).collect()
}

/// Adaptive rule. A rule that is not adaptive has no factor.
const ADAPTIVE: &str = "  - { name: follows, limit: 100, window: 1s, adaptive: {} }";

#[test]
fn metrics_page_matches_its_documentation() {
    let redis = RedisServer::start(Flavour::Redis7);
    let memory = Server::with_rules(&format!("{}\n{ADAPTIVE}\n", RULES.trim_end()));
    let url = redis.url();
    let monitor = format!("monitor: {{ accuracy: {{ every: 100ms }} }}\n{RULES}");
    let shared = Server::with_env(&[], &monitor, &["--store", &url]);
    let mut all = Families::new();
    for server in [&memory, &shared] {
        server.post("/v1/acquire", LOGIN);
        eventually("counts are checked", || {
            server.address == memory.address
                || server.get("/metrics").body.contains("slidegate_accuracy_ratio 1")
        });
        let answer = server.get("/metrics");
        assert_eq!(
            answer.header("content-type"),
            Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
        );
        assert!(answer.body.ends_with("# EOF\n"));
        for (name, (kind, help, labels)) in parse_page(&answer.body) {
            let family = all.entry(name).or_insert((kind, help, BTreeSet::new()));
            family.2.extend(labels);
        }
    }
    let documented = documented();
    for (name, description) in &all {
        assert_eq!(documented.get(name), Some(description), "{name} in docs/reference/metrics.md");
    }
    let gone: Vec<&String> = documented.keys().filter(|name| !all.contains_key(*name)).collect();
    assert!(gone.is_empty(), "{gone:?} is not a metric");
}

/// Returns the value of the series with all of these labels.
fn value(page: &str, parts: &[&str]) -> f64 {
    let line =
        page.lines().find(|line| !line.starts_with('#') && parts.iter().all(|part| line.contains(part)));
    line.unwrap_or_else(|| panic!("{parts:?}: {page}")).rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn decisions_are_counted_for_every_protocol() {
    let server = Server::with_rules(RULES);
    for _ in 0..5 {
        server.post("/v1/acquire", LOGIN);
        server.post("/v1/peek", LOGIN);
    }
    server.post("/v1/acquire", r#"{"attributes":{"plan":"none"}}"#);
    server.post("/v1/acquire", r#"{"attributes":{"other":"one"}}"#);
    server.post("/v1/acquire", r#"{"attributes":{"api":"/login","ip":"1","user":"u"},"permits":9}"#);
    let mut resp = TcpStream::connect(server.listener_address("redis")).unwrap();
    resp.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let commands = b"SG.ACQUIRE bob 2 60000\r\nSG.ACQUIRE bob 2 60000\r\nSG.ACQUIRE bob 2 60000\r\nQUIT\r\n";
    resp.write_all(commands).unwrap();
    resp.read_to_end(&mut Vec::new()).unwrap();
    let page = server.get("/metrics").body;
    let decisions = "slidegate_decisions_total";
    for (parts, count) in [
        ([decisions, "rule=\"login\"", "verdict=\"allowed\",source=\"store\""], 3.0),
        ([decisions, "rule=\"login\"", "verdict=\"denied\",source=\"store\""], 2.0),
        ([decisions, "rule=\"watched\"", "verdict=\"would-deny\",source=\"store\""], 4.0),
        ([decisions, "rule=\"never\"", "verdict=\"denied\",source=\"blocked\""], 1.0),
        ([decisions, "rule=\"ad-hoc\"", "verdict=\"denied\",source=\"store\""], 1.0),
        (["slidegate_requests_total", "protocol=\"http\",verdict=\"allowed\"", "source=\"store\""], 3.0),
        (["slidegate_requests_total", "protocol=\"http\",verdict=\"denied\"", "source=\"store\""], 2.0),
        (["slidegate_requests_total", "protocol=\"http\",verdict=\"allowed\"", "source=\"no-rule\""], 1.0),
        (["slidegate_requests_total", "protocol=\"resp\",verdict=\"allowed\"", "source=\"store\""], 2.0),
        (["slidegate_decision_duration_seconds_count", "protocol=\"resp\"", "source=\"store\""], 3.0),
        (["slidegate_failures_total", "protocol=\"http\"", "kind=\"invalid\""], 1.0),
    ] {
        assert_eq!(value(&page, &parts), count, "{parts:?}");
    }
    assert_eq!(value(&page, &["slidegate_rule_limit{rule=\"login\"}"]), 3.0);
}

const HELD: &str = "
rules:
  - { name: held, match: { api: /job }, key: [user], limit: 9, window: 1h, algorithm: concurrency }
  - { name: follows, match: { api: /load }, limit: 100, window: 1s, adaptive: {} }
";

/// Every call that follows a decision is counted by its outcome and timed: on the fast path, by hyper, and over RESP.
#[test]
fn follow_ups_are_counted_for_every_protocol() {
    let server = Server::with_rules(HELD);
    let reserve = || {
        let decision = server.post("/v1/acquire", r#"{"attributes":{"api":"/job","user":"ann"}}"#).json();
        decision["reservation"].as_str().unwrap().to_owned()
    };
    let mut timed = BTreeMap::new();
    let mut assert_counted = |protocol: &str, operation: &str, outcome: &str, count: f64| {
        let page = server.get("/metrics").body;
        let labels = format!("protocol=\"{protocol}\",operation=\"{operation}\"");
        let series = ["slidegate_follow_ups_total", &labels, &format!("outcome=\"{outcome}\"")];
        assert_eq!(value(&page, &series), count, "{series:?}");
        let calls = timed.entry((protocol.to_owned(), operation.to_owned())).or_insert(0.0);
        *calls += 1.0;
        let series = ["slidegate_follow_up_duration_seconds_count", &labels];
        assert_eq!(value(&page, &series), *calls, "{series:?}");
    };
    let bodies = |reservation: &str| {
        [
            ("extend", "extended", format!(r#"{{"reservation":"{reservation}"}}"#)),
            ("release", "released", format!(r#"{{"reservation":"{reservation}"}}"#)),
            ("settle", "settled", format!(r#"{{"reservation":"{reservation}","permits":0}}"#)),
        ]
    };
    for (count, header) in [(1.0, ""), (2.0, TO_HYPER)] {
        let mut connection = KeepAlive::new(&server);
        let mut post = |operation: &str, body: &str| {
            connection.call(&request(&format!("/v1/{operation}"), header, body))
        };
        for (operation, field, body) in bodies(&reserve()) {
            let answer = post(operation, &body).json();
            let outcome = answer[field].as_str().unwrap_or_else(|| panic!("{operation}: {answer}"));
            assert_counted("http", operation, outcome, count);
        }
        for (operation, _, body) in bodies("forged") {
            assert_eq!(post(operation, &body).status, 400);
            assert_counted("http", operation, "invalid", count);
        }
        for (api, outcome) in [("/load", "done"), ("/job", "ignored")] {
            let body = format!(r#"{{"attributes":{{"api":"{api}","user":"ann"}},"latency_ms":5}}"#);
            assert_eq!(post("report", &body).status, 200);
            assert_counted("http", "report", outcome, count);
        }
    }
    let reservation = reserve();
    for (command, operation) in [
        (format!("SG.EXTEND {reservation}"), "extend"),
        (format!("SG.RELEASE {reservation}"), "release"),
        (format!("SG.SETTLE {reservation} 0"), "settle"),
        ("SG.SETTLE forged 0".to_owned(), "settle"),
    ] {
        let mut resp = TcpStream::connect(server.listener_address("redis")).unwrap();
        resp.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        resp.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).unwrap();
        let mut replies = String::new();
        resp.read_to_string(&mut replies).unwrap();
        let outcome = replies.lines().next().unwrap().strip_prefix('+').unwrap_or("invalid");
        assert_counted("resp", operation, outcome, 1.0);
    }
}

const KEYS: usize = 100_000;

/// Number of keys in one write; they are decided together.
const TOGETHER: usize = 1_000;

/// The number of series does not depend on the requests of callers.
#[test]
fn number_of_series_is_independent_of_keys() {
    let rules = "rules: [{ name: one, key: [resource], limit: 1, window: 1h }]";
    let server = Server::with_rules(rules);
    let series = || server.get("/metrics").body.lines().filter(|line| !line.starts_with('#')).count();
    server.post("/v1/acquire", r#"{"resource":"first"}"#);
    let before = series();
    let mut stream = TcpStream::connect(server.listener_address("redis")).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut reader = stream.try_clone().unwrap();
    let read = std::thread::spawn(move || {
        let mut answers = Vec::new();
        reader.read_to_end(&mut answers).unwrap();
        answers.iter().filter(|byte| **byte == b'*').count()
    });
    for batch in 0..KEYS / TOGETHER {
        let commands: String =
            (0..TOGETHER).map(|n| format!("SG.ACQUIRE key-{batch}-{n} 5 60000\r\n")).collect();
        stream.write_all(commands.as_bytes()).unwrap();
    }
    stream.write_all(b"QUIT\r\n").unwrap();
    assert_eq!(read.join().unwrap(), KEYS);
    // The series of the RESP protocol did not exist before.
    let after = series();
    assert!(after <= before + 2, "{before} series, then {after}");
    assert!(server.get("/v1/top").body.len() < 10_000);
    assert_eq!(
        value(&server.get("/metrics").body, &["rule=\"ad-hoc\"", "verdict=\"allowed\""]),
        (KEYS + 1) as f64
    );
}
