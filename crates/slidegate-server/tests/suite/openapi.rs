//! Tests with Schemathesis that every response is as `/openapi.json` describes, for described and for undescribed
//! requests.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use slidegate_testkit::process;

use crate::server::Server;

const ADMIN: &str = "admin-token-0123456789";
const DEMO: &str = include_str!("../../src/config/demo.yaml");
const SETTINGS: &str = include_str!("schemathesis.toml");

/// Runs every check of schemathesis against `server`, except those that its settings exclude with a reason.
fn schemathesis(server: &Server, settings: &str) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("schemathesis.toml"), format!("{SETTINGS}\n{settings}")).unwrap();
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
    let program = tools.join("schemathesis/bin/schemathesis");
    let program = program.canonicalize().expect("scripts/tools.sh installs schemathesis");
    let run = process::output(
        Command::new(program)
            .current_dir(folder.path())
            .args(["run", &format!("http://{}/openapi.json", server.address)])
            .args(["--phases", "examples,coverage,fuzzing", "--max-examples", "10", "--seed", "1"])
            .args([
                "--generation-database",
                "none",
                "--continue-on-failure",
                "--no-color",
                "--warnings",
                "off",
            ]),
    );
    let [report, errors] = [&run.stdout, &run.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(run.status.success(), "{report}\n{errors}");
    let paths = server.get("/openapi.json").json()["paths"].clone();
    let calls: usize = paths.as_object().unwrap().values().map(|path| path.as_object().unwrap().len()).sum();
    // All operations except TRACE and the one that the settings exclude.
    let calls = calls - 2;
    assert!(report.contains(&format!("Tested: {calls}")), "all {calls} operations are called: {report}");
}

#[test]
fn responses_match_the_description_without_token() {
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", ADMIN)], DEMO, &[]);
    schemathesis(&server, "");
    assert_eq!(
        server.get("/v1/rules").json()["edition"]["version"],
        1,
        "without a token the rules cannot be changed"
    );
}

#[test]
fn responses_match_the_description_with_token() {
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", ADMIN)], DEMO, &[]);
    schemathesis(&server, &format!("[auth.openapi.token]\nbearer = \"{ADMIN}\"\n"));
    assert_ne!(
        server.get("/v1/rules").json()["edition"]["version"],
        1,
        "schemathesis has replaced the rules"
    );
}

/// Both HTTP listeners serve the description to clients with the token.
#[test]
fn description_needs_the_decision_token() {
    const DATA: &str = "data-token-0123456789";
    let server = Server::with_env(&[("SLIDEGATE_TOKEN", DATA)], DEMO, &["--admin", "127.0.0.1:0"]);
    for address in [server.address.as_str(), server.listener_address("admin http")] {
        let listener = Server::at(address);
        assert_eq!(listener.get("/openapi.json").status, 401);
        let token = format!("Bearer {DATA}");
        let answer = listener.send("GET", "/openapi.json", &[("authorization", &token)], "");
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
        assert_eq!(answer.json()["openapi"], "3.1.0");
        let index = listener.send("GET", "/", &[("authorization", &token)], "");
        assert!(index.body.contains("/openapi.json"), "{}", index.body);
    }
}

/// The examples of decisions are the answers of a server with the demo rules, except for times and the reservation.
#[test]
fn decision_examples_are_real_answers() {
    fn masked(value: Value) -> Value {
        let masked_field = |(name, value): (String, Value)| match name.as_str() {
            "retry_after_ms" | "reset_after_ms" => (name, Value::Null),
            "reservation" => (name, json!(value.is_string())),
            _ => (name, masked(value)),
        };
        match value {
            Value::Object(fields) => fields.into_iter().map(masked_field).collect(),
            Value::Array(items) => items.into_iter().map(masked).collect(),
            value => value,
        }
    }
    let server = Server::demo();
    let operation = server.get("/openapi.json").json()["paths"]["/v1/acquire"]["post"].clone();
    let example = |body: &Value, n: usize| {
        body["content"]["application/json"]["examples"][n.to_string()]["value"].clone()
    };
    let acquire = |n| server.post("/v1/acquire", &example(&operation["requestBody"], n).to_string());
    for n in 1..=2 {
        assert_eq!(masked(acquire(n).json()), masked(example(&operation["responses"]["200"], n)));
    }
    // The demo rules allow three logins.
    acquire(1);
    acquire(1);
    assert_eq!(masked(acquire(1).json()), masked(example(&operation["responses"]["429"], 1)));
}

/// Errors are JSON, also those that axum detects.
#[test]
fn errors_match_the_description() {
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", ADMIN)], DEMO, &[]);
    let token = format!("Bearer {ADMIN}");
    let large = "#".repeat((4 << 20) + 1);
    for (method, path, body, status, code) in [
        ("GET", "/v1/authorize?permits=some", "", 400, "invalid_request"),
        ("GET", "/v1/keys/%ff", "", 400, "invalid_key"),
        ("PUT", "/v1/rules", large.as_str(), 413, "too_large"),
        ("PUT", "/v1/acquire", "", 405, "method_not_allowed"),
        ("GET", "/nowhere", "", 404, "not_found"),
    ] {
        let answer = server.send(method, path, &[("authorization", &token)], body);
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (status, &code.into()),
            "{method} {path}"
        );
        assert_eq!(answer.header("allow").is_some(), status == 405, "{method} {path}");
    }
}
