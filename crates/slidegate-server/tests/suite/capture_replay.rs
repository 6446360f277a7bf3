//! Tests that `slidegate simulate` repeats the decisions of a server from its recording, request by request.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use slidegate_testkit::process;

use crate::resp::Wire;
use crate::server::{BINARY, Server};

/// Rules with every algorithm, and with windows that are much shorter than the test.
const RULES: &str = "
rules:
  - { name: banned, match: { ip: ip-0 }, blocked: true }
  - { name: staff, group: g, match: { user: user-0 }, unlimited: true }
  - { name: exact, group: g, match: { api: /exact }, key: [ip], limit: 4, window: 150ms }
  - { name: attempts, match: { api: /attempts }, key: [ip, user], limit: 3, window: 200ms, count: attempts }
  - { name: fixed, match: { api: /fixed }, key: [ip], limit: 5, window: 250ms, algorithm: fixed-window }
  - { name: sliced, match: { api: '/s*' }, key: [user], limit: 6, window: 200ms, algorithm: time-slice, slices: 4 }
  - { name: bucket, match: { api: /bucket }, key: [ip], limit: 20, window: 1s, algorithm: token-bucket, burst: 7 }
  - { name: held, match: { api: /held }, key: [user], limit: 3, window: 120ms, algorithm: concurrency }
  - { name: climbs, match: { api: /climbs }, limit: 9, window: 100ms, warm-up: { from: 20%, over: 300ms, idle: 150ms } }
  - { name: watched, match: { api: /exact }, key: [user], limit: 2, window: 100ms, mode: shadow }
  - { name: tried, match: { api: /exact }, key: [ip], limit: 6, window: 150ms, shadow-of: exact }
  - { name: all, limit: 250, window: 100ms }
";

const APIS: [&str; 8] =
    ["/exact", "/attempts", "/fixed", "/sliced", "/bucket", "/held", "/climbs", "/unlimited"];

/// Random requests, one after the other.
struct Traffic {
    random: Xoshiro256PlusPlus,
    client: Wire,
}

impl Traffic {
    fn pick(&mut self, n: usize) -> usize {
        self.random.random_range(0..n)
    }

    fn attributes(&mut self) -> Vec<(&'static str, String)> {
        let api = APIS[self.pick(APIS.len())].to_owned();
        let mut attributes = vec![("api", api), ("ip", format!("ip-{}", self.pick(5)))];
        if self.pick(4) > 0 {
            attributes.push(("user", format!("user-{}", self.pick(4))));
        }
        attributes
    }

    /// Formats the request for HTTP.
    fn body(&mut self) -> Value {
        let permits = 1 + self.pick(6) / 5;
        let mut body = if self.pick(5) == 0 {
            let window = ["1s", "1s 500ms"][self.pick(2)];
            json!({ "resource": format!("r-{}", self.pick(3)), "limit": 5, "window": window, "permits": permits })
        } else {
            let attributes: BTreeMap<_, _> = self.attributes().into_iter().collect();
            json!({ "attributes": attributes, "permits": permits })
        };
        if self.pick(6) == 0 {
            body["id"] = format!("id-{}", self.pick(40)).into();
        }
        body
    }

    /// Formats the request for the Redis protocol.
    fn command(&mut self) -> String {
        match self.pick(4) {
            0 => format!("SG.ACQUIRE r-{} 5 1000 1", self.pick(3)),
            1 => format!("CL.THROTTLE t-{} 3 20 1 1", self.pick(3)),
            _ => {
                let attributes = self.attributes();
                attributes.iter().fold("SG.CHECK".to_owned(), |mut command, (name, value)| {
                    let _ = write!(command, " {name} {value}");
                    command
                })
            }
        }
    }

    /// Sends one request, or several at one instant. Returns their number.
    fn send(&mut self, server: &Server) -> usize {
        let several = 1 + self.pick(12);
        match self.pick(8) {
            0..=2 => {
                let body = self.body().to_string();
                assert!([200, 429].contains(&server.post("/v1/acquire", &body).status), "{body}");
                1
            }
            3 => {
                let requests: Vec<Value> = (0..several).map(|_| self.body()).collect();
                let answer = server.post("/v1/acquire/batch", &json!({ "requests": requests }).to_string());
                assert!(!answer.body.contains("error"), "{}", answer.body);
                several
            }
            4..=6 => {
                let command = self.command();
                assert!(!self.client.call(&command).numbers().is_empty());
                1
            }
            _ => {
                let pipeline: Vec<u8> =
                    (0..several).flat_map(|_| crate::resp::encode(&self.command())).collect();
                self.client.send(&pipeline);
                (0..several).for_each(|_| assert!(!self.client.read().unwrap().numbers().is_empty()));
                several
            }
        }
    }
}

fn simulate(rules: &Path, trace: &Path) -> Value {
    let mut command = Command::new(BINARY);
    command.arg("simulate").arg("--rules").arg(rules).arg("--trace").arg(trace).arg("--json");
    let output = process::output(&mut command);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// One connection after the other, so that the order of the decisions is known.
#[test]
fn simulation_repeats_decisions_of_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let trace = path("requests.ndjson.gz");
    let mut server = Server::with_env(&[], RULES, &["--record", trace.to_str().unwrap()]);
    let random = Xoshiro256PlusPlus::seed_from_u64(9);
    let mut traffic = Traffic { random, client: Wire::connect(server.listener_address("redis")) };
    let mut sent = 0;
    while sent < 6_000 {
        sent += traffic.send(&server);
    }
    let edition = server.get("/v1/rules").json()["edition"].clone();
    server.terminate();
    assert!(server.wait().success());
    fs::write(path("rules.yaml"), RULES).unwrap();
    let report = simulate(&path("rules.yaml"), &trace);
    let recorded = &report["recorded"];
    assert_eq!(
        (&recorded["compared"], &recorded["differences"], &report["late"]["requests"]),
        (&json!(sent), &json!(0), &json!(0)),
        "{recorded}"
    );
    // The load depends on the machine. Most rules had to deny, and none denied everything.
    let rules = report["rules"].as_array().unwrap();
    let denying = rules.iter().filter(|rule| rule["mode"] == "enforce" && rule["denied"] != 0).count();
    assert!(denying >= 6, "{report}");
    let open = |rule: &Value| rule["allowed"] != 0 || rule["rule"] == "banned" || rule["rule"] == "staff";
    assert!(rules.iter().all(open), "{report}");
    // Verdicts of shadow rules are equal, too. (`tried` is requested separately, a moment later.)
    let live = edition["shadows"].as_array().unwrap().iter().find(|shadow| shadow["rule"] == "watched");
    let watched = rules.iter().find(|rule| rule["rule"] == "watched").unwrap();
    for (live_name, name) in [
        ("decisions", "asked"),
        ("would_deny", "denied"),
        ("newly_denied", "newly_denied"),
        ("newly_allowed", "newly_allowed"),
    ] {
        assert_eq!(live.unwrap()[live_name], watched[name], "{live:?} {watched}");
    }
    assert!(watched["denied"] != 0 && watched["newly_denied"] != 0, "{watched}");
    // A single different decision is detected.
    fs::write(path("others.yaml"), RULES.replace("limit: 4, window: 150ms", "limit: 5, window: 150ms"))
        .unwrap();
    let others = simulate(&path("others.yaml"), &trace);
    assert_ne!(others["recorded"]["differences"], 0);
    eprintln!("{sent} requests, {} denied, 0 decided otherwise", report["denied"]);
}
