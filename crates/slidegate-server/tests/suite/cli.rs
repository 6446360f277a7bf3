//! Tests the output and the exit codes of the commands.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use slidegate_testkit::process;

use crate::server::{BINARY, Server, messages};

fn run(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(BINARY)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    process::finish(child, &format!("slidegate {}", arguments.join(" ")))
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn serve_prints_addresses_and_an_example() {
    let server = Server::demo();
    let address = &server.address;
    assert!(server.greeting.starts_with("slidegate "), "{}", server.greeting);
    assert!(server.greeting.contains("rules: demo rules  store: memory"));
    // The commands that the greeting prints work.
    let lines: Vec<&str> = server.greeting.lines().filter(|line| line.contains("curl")).collect();
    assert_eq!(lines.len(), 2);
    for line in lines {
        assert!(line.contains(address.as_str()));
        let output = process::output(Command::new("sh").args(["-c", line]));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["allowed"], true, "{line}");
    }
}

#[test]
fn acquire_exits_with_the_decision() {
    let server = Server::demo();
    let own = ["--resource", "r", "--limit", "1", "--window", "1h"];
    let first = server.acquire(&own);
    assert_eq!((first.status.code(), stdout(&first).lines().next()), (Some(0), Some("allowed")));
    let second = server.acquire(&own);
    assert_eq!(second.status.code(), Some(1));
    assert!(stdout(&second).starts_with("denied by ad-hoc (code 429): retry in "), "{}", stdout(&second));
    assert!(stdout(&second).contains("  ad-hoc: 1 of 1 used"));
    let json = server.acquire(&["--json", "--peek", "api=/login", "ip=1.2.3.4"]);
    let json: Value = serde_json::from_str(&stdout(&json)).unwrap();
    assert_eq!((&json["allowed"], &json["limits"][0]["used"]), (&Value::Bool(true), &Value::from(0)));
}

#[test]
fn validate_lists_every_error() {
    let good = run(&["validate", "-"], slidegate_server::DEMO);
    assert_eq!((good.status.code(), stdout(&good).as_str()), (Some(0), "-: ok, 4 rules\n"));
    let bad = "listen: { http: here, htp: x }\nstore: rediss\nlisten2: 5\nrules:\n  - { name: a, limit: 0, window: 1s }\n";
    let bad = run(&["validate", "-"], bad);
    assert_eq!(bad.status.code(), Some(1));
    let stderr = String::from_utf8(bad.stderr).unwrap();
    assert_eq!(
        stderr.lines().collect::<Vec<_>>(),
        [
            "-:1:17: http must be an address and a port such as 127.0.0.1:8080, a port such as 8080 for this machine only, :8080 for every interface, or `off`, not \"here\"",
            "-:1:23: unknown field `htp` in listen: did you mean `http`?",
            "-:2:8: the store must be `memory`, `redis`, or an address such as redis://127.0.0.1:6379",
            "-:3:1: unknown field `listen2` in the file: did you mean `listen`?",
            "-:5:23: limit must be between 1 and 1000000000000, not 0",
        ]
    );
}

#[test]
fn validate_reports_several_files_as_text_and_json() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = path("good.yaml", "rules:\n  - { name: a, match: { api: /y/*/z }, limit: 5, window: 1s }\n");
    let bad = path("bad.yaml", "rules:\n  - { name: a, limit: 0, window: 1s }\n");
    let text = run(&["validate", &good, &bad], "");
    assert_eq!(text.status.code(), Some(1));
    assert_eq!(stdout(&text), format!("{good}: ok, 1 rule\n"));
    let warning = "match `api`: `*` stands for any text only at the end of a pattern; elsewhere it is compared as it is";
    let mistake = "limit must be between 1 and 1000000000000, not 0";
    assert_eq!(
        String::from_utf8(text.stderr).unwrap(),
        format!("{good}:2:30: warning: {warning}\n{bad}:2:23: {mistake}\n")
    );
    let json = run(&["validate", "--json", &good, &bad, "/nonexistent"], "");
    assert_eq!(json.status.code(), Some(2));
    let files: Value = serde_json::from_str(&stdout(&json)).unwrap();
    assert_eq!(
        files[0],
        serde_json::json!({
            "file": good, "valid": true, "rules": 1, "problems": [],
            "warnings": [{ "line": 2, "column": 30, "message": warning }],
        })
    );
    assert_eq!(files[1]["problems"][0], serde_json::json!({ "line": 2, "column": 23, "message": mistake }));
    assert_eq!((&files[2]["valid"], files[2]["error"].is_string()), (&Value::Bool(false), true));
}

#[test]
fn validate_warns_of_regular_expressions() {
    let rules = "rules:\n  - { name: a, match: { api: [~^/x, ^/y, /z*] }, limit: 5, window: 1s }\n";
    let output = run(&["validate", "-"], rules);
    assert_eq!(output.status.code(), Some(0));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let warning = "warning: match `api`: regular expressions are not supported, so this is compared character by character";
    assert_eq!(stderr, format!("-:2:31: {warning}\n-:2:37: {warning}\n"));
}

#[test]
fn validate_reports_a_wrong_url_beside_a_conflict() {
    let redis = "redis:\n  url: http://a\n  cluster: [redis://b]\n  tls: { cert: c }\nrules: []\n";
    let stderr = String::from_utf8(run(&["validate", "-"], redis).stderr).unwrap();
    assert_eq!(
        stderr.lines().collect::<Vec<_>>(),
        [
            "-:2:8: url must look like redis://[user:password@]host:port[/db], or rediss:// for TLS",
            "-:3:12: `redis` has both `url` and `cluster`: set only one of them",
            "-:4:8: tls needs both `cert` and `key`, or neither",
        ]
    );
}

#[test]
fn listeners_take_ports_and_localhost() {
    let with = |http: &str| run(&["validate", "-"], &format!("listen: {{ http: {http} }}\nrules: []\n"));
    for http in ["8080", "\"8080\"", "\":8080\"", "localhost:8080", "127.0.0.1:0", "\"[::1]:8080\"", "off"] {
        assert_eq!(with(http).status.code(), Some(0), "{http}");
    }
    for http in ["80800", "-1", "\"\"", "\":\"", "example:80", "true"] {
        assert_eq!(with(http).status.code(), Some(1), "{http}");
    }
}

/// A resource without `--limit` gets the default of the server, and the command prints a note.
#[test]
fn acquire_names_the_default_it_uses() {
    let server = Server::demo();
    let stderr = |args: &[&str]| String::from_utf8(server.acquire(args).stderr).unwrap();
    let note = stderr(&["--resource", "a"]);
    assert!(note.contains("without --limit and --window the server uses its default"), "{note}");
    assert_eq!(stderr(&["--resource", "a", "--limit", "5", "--window", "1s"]), "");
    assert_eq!(stderr(&["api=/login", "ip=1.2.3.4"]), "");
}

#[test]
fn invalid_listen_limits_are_reported_with_their_lines() {
    let bad = "listen:
  limits:
    connections: 0
    connections-per-address: 1000001
    first-byte: 1ms
    unfinished-bytes: 4096
    grpc-streams: many
    grpc-streams-per-connection: 1001
    conections: 5
rules: []";
    let stderr = String::from_utf8(run(&["validate", "-"], bad).stderr).unwrap();
    assert_eq!(
        stderr.lines().collect::<Vec<_>>(),
        [
            "-:3:18: connections must be between 1 and 1000000, not 0",
            "-:4:30: connections-per-address must be between 1 and 1000000, not 1000001",
            "-:5:17: first-byte must be between 10ms and 1h, not 1ms",
            "-:6:23: unfinished-bytes must be between 8388608 and 1099511627776, not 4096",
            "-:7:19: grpc-streams must be a whole number, not \"many\"",
            "-:8:34: grpc-streams-per-connection must be between 0 and 1000, not 1001",
            "-:9:5: unknown field `conections` in limits: did you mean `connections`?",
        ]
    );
}

#[test]
fn invalid_file_prevents_the_start() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"rules: [{ name: a, window: 1s }]").unwrap();
    let path = file.path().to_str().unwrap();
    let output = run(&["--config", path], "");
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let expected = format!("{path} has mistakes:\n  {path}:1:9: rule `a` needs `limit`\n");
    assert_eq!(messages(&stderr), expected);
}

#[test]
fn flags_override_listeners_of_the_file() {
    let server = Server::with_rules("listen: { http: 127.0.0.1:1 }\nstore: memory\nrules: []\n");
    assert!(!server.address.ends_with(":1"));
    assert_eq!(server.get("/readyz").json()["rules"], 0);
}

#[test]
fn schema_accepts_valid_and_rejects_invalid_files() {
    let schema: Value = serde_json::from_slice(&run(&["schema"], "").stdout).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let full = include_str!("../../../slidegate/tests/suite/full.yaml");
    let limits = "listen: { limits: { connections: 5, connections-per-address: 2, first-byte: 1s, unfinished-bytes: 8388608, grpc-streams: 0, grpc-streams-per-connection: 1 } }\nrules: []";
    for good in
        [slidegate_server::DEMO, full, limits, "listen: { http: 127.0.0.1:0 }\nstore: memory\nrules: []"]
    {
        slidegate_server::Config::parse(good).unwrap();
        let good: Value = yaml(good);
        assert!(validator.is_valid(&good), "{:?}", validator.iter_errors(&good).next());
    }
    for bad in [
        "{}",
        "rules: 5",
        "rules: [], other: 1",
        "rules: [{ limit: 5, window: 1s }]",
        "rules: [{ name: a, limit: 0, window: 1s }]",
        "rules: [{ name: a, limit: 5, window: 5 }]",
        "rules: [{ name: a, limit: 5, window: 1s, mode: maybe }]",
        "rules: [{ name: a, limit: 5, window: 1s, windw: 1s }]",
        "rules: [{ name: a, limit: 5, window: 1s, algorithm: time-slice, slices: 1 }]",
        "rules: [{ name: a, limit: 5, window: 1s, match: { api: [] } }]",
        "rules: [{ name: a }]",
        "rules: [{ name: a, limit: 5 }]",
        "rules: [{ name: a, limit: 5, window: 1s, unlimited: true }]",
        "rules: [{ name: a, unlimited: true, blocked: true }]",
        "rules: [{ name: a, unlimited: false }]",
    ] {
        let bad = format!("{{ {} }}", bad.trim_matches(['{', '}']));
        assert!(slidegate_server::Config::parse(&bad).is_err(), "{bad}");
        assert!(!validator.is_valid(&yaml(&bad)), "{bad}");
    }
}

/// YAML as JSON.
fn yaml(text: &str) -> Value {
    serde_saphyr::from_str_with_options(text, serde_saphyr::options! { strict_booleans: true }).unwrap()
}

#[test]
fn help_has_examples() {
    let help = stdout(&run(&["--help"], ""));
    for word in [
        "serve",
        "validate",
        "schema",
        "acquire",
        "explain",
        "bench",
        "simulate",
        "import",
        "--config",
        "--envoy-config",
        "--http",
        "--store",
        "slidegate acquire api=/login",
    ] {
        assert!(help.contains(word), "{word} is not in:\n{help}");
    }
}
