//! Tests requests that no rule matches: allowed, logged, or denied; and denials while the store cannot decide.

use std::fs::File;
use std::process::Command;

use serde_json::json;
use slidegate_testkit::{eventually, lasting_port, process};

use crate::grpc::{Client, rate_limit_request};
use crate::resp::raw_client::Wire;
use crate::server::{BINARY, Server};

const RULES: &str = "
rules:
  - { name: per-user, key: [user], limit: 2, window: 1h }
  - { name: staff, match: { team: staff }, unlimited: true }
  - { name: paused, match: { plan: old }, limit: 1, window: 1h, mode: off }
";

fn with(policy: &str) -> Server {
    Server::with_rules(&format!("unmatched: {policy}{RULES}"))
}

/// A request with a typo: the rule counts by `user`.
const TYPO: &str = r#"{"attributes":{"usr":"alice"}}"#;

fn count(server: &Server, protocol: &str) -> String {
    let page = server.get("/metrics").body;
    let start = format!("slidegate_unmatched_requests_total{{protocol=\"{protocol}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_else(|| panic!("{page}")).to_owned()
}

#[test]
fn deny_denies_over_http() {
    let server = with("deny");
    let denied = server.post("/v1/acquire", TYPO);
    assert_eq!(denied.status, 429, "{}", denied.body);
    let expected = json!({
        "allowed": false, "code": 429, "denied_by": null, "retry_after_ms": 86_400_000, "limits": [],
        "reservation": null, "source": "no-rule",
    });
    assert_eq!(denied.json(), expected);
    assert_eq!(denied.header("retry-after"), Some("86400"));
    assert_eq!((denied.header("ratelimit"), denied.header("ratelimit-policy")), (None, None));
    assert_eq!(server.post("/v1/peek", TYPO).status, 429);
    let batch =
        json!({ "requests": [{ "attributes": { "user": "bob" } }, { "attributes": { "usr": "bob" } }] });
    let results = server.post("/v1/acquire/batch", &batch.to_string()).json();
    assert_eq!(
        (&results["results"][0]["allowed"], &results["results"][1]["allowed"]),
        (&json!(true), &json!(false))
    );
    // A rule that counts nothing matches too. A rule that is off does not.
    assert_eq!(server.post("/v1/acquire", r#"{"attributes":{"team":"staff"}}"#).status, 200);
    assert_eq!(server.post("/v1/acquire", r#"{"attributes":{"plan":"old"}}"#).status, 429);
    assert_eq!(server.post("/v1/acquire", r#"{"attributes":{"user":"alice"}}"#).status, 200);
    // A request that brings its own limit needs no rule.
    assert_eq!(server.post("/v1/acquire", r#"{"resource":"r","limit":5,"window":"1s"}"#).status, 200);
    let authorized = server.send("GET", "/v1/authorize?deny=403", &[("x-forwarded-uri", "/x")], "");
    assert_eq!((authorized.status, &authorized.json()["code"]), (403, &json!(429)));
    assert_eq!(count(&server, "http"), "4", "peeks are not decisions");
}

#[test]
fn deny_denies_over_grpc_and_charges_nothing() {
    let server = with("deny");
    let client = Client::of(&server);
    assert_eq!(client.codes(rate_limit_request("d", &[&[("usr", "alice")]])), [2, 2]);
    // A descriptor that no rule matches denies the whole request, and the others are not charged.
    for _ in 0..3 {
        assert_eq!(
            client.codes(rate_limit_request("d", &[&[("user", "alice")], &[("usr", "alice")]])),
            [2, 1, 2]
        );
    }
    assert_eq!(client.codes(rate_limit_request("d", &[&[("user", "alice")]])), [1, 1]);
    assert_eq!(client.codes(rate_limit_request("d", &[&[("user", "alice")]])), [1, 1]);
    assert_eq!(count(&server, "grpc"), "4");
}

#[test]
fn deny_denies_over_resp() {
    let server = with("deny");
    let mut client = Wire::connect(server.listener_address("redis"));
    assert_eq!(client.call("SG.CHECK usr alice").numbers(), [0, -1, -1, 86_400_000, 0]);
    assert_eq!(client.call("SG.PEEK CHECK usr alice").numbers()[0], 0);
    assert_eq!(client.call("SG.CHECK user alice").numbers()[0], 1);
    assert_eq!(client.call("SG.ACQUIRE r 5 1000").numbers()[0], 1);
    assert_eq!(count(&server, "resp"), "1");
}

#[test]
fn warn_is_the_default_and_logs_attribute_names_only() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let server = Server::logging_to(&File::create(file.path()).unwrap(), &[], RULES, &[]);
    for n in 0..100 {
        let body = json!({ "attributes": { "usr": format!("secret-{n}"), "zone": "secret" } });
        let answer = server.post("/v1/acquire", &body.to_string());
        assert_eq!((answer.status, &answer.json()["source"]), (200, &json!("no-rule")));
    }
    assert_eq!(count(&server, "http"), "100");
    let log = || std::fs::read_to_string(file.path()).unwrap();
    eventually("the warning is logged", || log().contains("no rule matches"));
    let warning = "no rule matches 1 requests since the last warning; they were allowed (`unmatched: warn`); the last \
                   one has the attributes [usr, zone]: `slidegate explain` says why no rule matches";
    assert!(log().contains(warning), "{}", log());
    assert_eq!(log().matches("since the last warning").count(), 1, "once a minute at most: {}", log());
    assert!(!log().contains("secret"), "{}", log());
}

#[test]
fn allow_counts_without_a_warning() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let server = Server::logging_to(
        &File::create(file.path()).unwrap(),
        &[],
        &format!("unmatched: allow{RULES}"),
        &[],
    );
    assert_eq!(server.post("/v1/acquire", TYPO).status, 200);
    assert_eq!(count(&server, "http"), "1");
    // The log is read after another request was answered and the server has stopped, so it is complete.
    let put = server.get("/v1/rules").body;
    assert!(put.contains(r#""unmatched":"allow""#), "{put}");
    drop(server);
    assert!(!std::fs::read_to_string(file.path()).unwrap().contains("no rule matches"));
}

#[test]
fn policy_is_shown_and_replaced_with_the_rules() {
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", "a-token-of-an-admin")], RULES, &[]);
    assert_eq!(server.get("/v1/rules").json()["unmatched"], "warn");
    assert!(server.get("/v1/rules?format=yaml").body.contains("unmatched: warn"));
    let put = |text: &str| {
        let headers = [("authorization", "Bearer a-token-of-an-admin"), ("content-type", "application/yaml")];
        server.send("PUT", "/v1/rules", &headers, text)
    };
    let before = server.get("/v1/rules").json()["edition"]["hash"].clone();
    assert_eq!(put(&format!("unmatched: deny{RULES}")).json()["unmatched"], "deny");
    assert_ne!(server.get("/v1/rules").json()["edition"]["hash"], before);
    assert_eq!(server.post("/v1/acquire", TYPO).status, 429);
    let wrong = put("unmatched: block\nrules: []");
    assert_eq!(wrong.status, 400);
    assert_eq!(
        wrong.json()["error"]["message"],
        "1:12: unmatched must be one of allow, warn, deny, not \"block\""
    );
    // The output of GET can be put back.
    let shown = server.get("/v1/rules").body;
    assert_eq!(put(&shown).json()["unmatched"], "deny");
}

#[test]
fn commands_use_the_policy() {
    let server = with("deny");
    let url = format!("http://{}", server.address);
    let run = |arguments: &[&str]| {
        let output = process::output(Command::new(BINARY).args(arguments));
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(
        run(&["acquire", "--url", &url, "usr=alice"]),
        (Some(1), "denied (code 429): no rule matches the request\n".to_owned())
    );
    let (code, text) = run(&["explain", "--url", &url, "usr=alice"]);
    let headline = "would be denied (code 429): no rule matches it, and `unmatched` is `deny`\n";
    assert!(code == Some(1) && text.starts_with(headline), "{text}");
    assert!(text.contains("per-user: the key needs `user`, but the request has none"), "{text}");
    let config = server.config().to_str().unwrap();
    assert_eq!(run(&["explain", "--config", config, "usr=alice"]), (code, text));
    let explained = server.post("/v1/explain", TYPO).json();
    assert_eq!((&explained["unmatched"], &explained["allowed"]), (&json!("deny"), &json!(false)));
    assert!(server.post("/v1/explain", r#"{"attributes":{"user":"a"}}"#).json()["unmatched"].is_null());
    // A simulation denies the same.
    let trace = tempfile::NamedTempFile::with_suffix(".jsonl").unwrap();
    std::fs::write(
        trace.path(),
        "{\"at\":1000000,\"attributes\":{\"usr\":\"a\"}}\n{\"at\":2000000,\"attributes\":{\"user\":\"a\"}}\n",
    )
    .unwrap();
    let (code, text) =
        run(&["simulate", "--rules", config, "--trace", trace.path().to_str().unwrap(), "--json"]);
    assert!(code == Some(0) && text.contains("\"denied\":1"), "{text}");
}

#[test]
fn file_with_shared_rules_has_no_policy() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "store: redis\nrules: redis\nunmatched: deny\n").unwrap();
    let output = process::output(Command::new(BINARY).arg("validate").arg(file.path()));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("3:12: `unmatched` must be stored with the rules, which are in Redis: include it in `PUT /v1/rules`"),
        "{stderr}"
    );
}

/// envoyproxy/ratelimit decides the same.
#[test]
fn envoy_files_allow_unmatched_requests() {
    let folder = tempfile::tempdir().unwrap();
    let text = "domain: d\ndescriptors: [{ key: user, rate_limit: { unit: hour, requests_per_unit: 1 } }]";
    std::fs::write(folder.path().join("d.yaml"), text).unwrap();
    let server = Server::start(&["--envoy-config", folder.path().to_str().unwrap()]);
    assert_eq!(server.get("/v1/rules").json()["unmatched"], "allow");
    let client = Client::of(&server);
    assert_eq!(client.codes(rate_limit_request("d", &[&[("usr", "alice")]])), [1, 1]);
    assert_eq!([(); 2].map(|()| client.codes(rate_limit_request("d", &[&[("user", "alice")]]))[0]), [1, 2]);
}

/// A denial because the store cannot decide reports no remaining permits.
#[test]
fn fail_closed_reports_no_remaining_permits() {
    let server = Server::with_rules(&format!(
        "store: redis://127.0.0.1:{}\nguard: {{ on-error: closed }}\nrules:\n\
         - {{ name: strict, key: [user], limit: 9, window: 1m, code: 7 }}\n\
         - {{ name: fair, key: [user], limit: 5, window: 1m, on-error: local }}\n",
        lasting_port()
    ));
    let denied = server.post("/v1/acquire?headers=x-ratelimit", r#"{"attributes":{"user":"alice"}}"#);
    let answer = denied.json();
    assert_eq!((denied.status, &answer["source"], &answer["code"]), (429, &json!("fail-closed"), &json!(7)));
    let limits = answer["limits"].as_array().unwrap();
    assert_eq!(limits.len(), 1, "only the rule that denies is listed: {answer}");
    let numbers = ["limit", "used", "remaining"].map(|name| limits[0][name].as_u64().unwrap());
    assert_eq!(numbers, [9, 9, 0], "{answer}");
    assert!(denied.header("ratelimit").unwrap().starts_with("\"strict\";r=0;t="), "{}", denied.head);
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));

    let client = Client::of(&server);
    let response = client.call(rate_limit_request("d", &[&[("user", "alice")]])).unwrap();
    assert_eq!((response.overall_code, response.statuses[0].limit_remaining), (2, 0));
    let mut client = Wire::connect(server.listener_address("redis"));
    assert_eq!(client.call("SG.CHECK user alice").numbers()[..3], [0, 9, 0]);
    assert_eq!(client.call("SG.ACQUIRE r 5 1000").numbers()[..3], [0, 5, 0]);
    assert_eq!(client.call("CL.THROTTLE r 4 5 1").numbers()[..3], [1, 5, 0]);
}
