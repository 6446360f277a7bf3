//! Tests that invalid input of untrusted clients is rejected with a clear message, and changes nothing.

use std::process::Command;

use serde_json::json;
use slidegate_testkit::process;

use crate::resp::raw_client::{Wire, encode};
use crate::server::{BINARY, Server, messages};

/// Path, body, and the exact response.
pub(crate) const REQUESTS: &[(&str, &str, u16, &str, &str)] = &[
    ("/v1/acquire", "", 400, "invalid_json", "invalid body: EOF while parsing a value at line 1 column 0"),
    ("/v1/acquire", "{", 400, "invalid_json", "invalid body: EOF while parsing an object at line 1 column 1"),
    (
        "/v1/acquire",
        "null",
        400,
        "invalid_json",
        "invalid body: invalid type: null, expected an object with `attributes` or `resource` at line 1 column 4",
    ),
    ("/v1/acquire", "[]", 400, "invalid_json", "the body must be an object, not a list"),
    (
        "/v1/acquire",
        "{}",
        400,
        "invalid_request",
        "set `attributes`, or `resource` with `limit` and `window`",
    ),
    ("/v1/acquire", "nonsense", 400, "invalid_json", "invalid body: expected ident at line 1 column 2"),
    (
        "/v1/acquire",
        r#"{"attributes":{"user":"a"},"permits":NaN}"#,
        400,
        "invalid_json",
        "invalid body: expected value at line 1 column 38",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"user":"a"},"permits":-1}"#,
        400,
        "invalid_json",
        "invalid body: invalid type: integer `-1`, expected a whole number from 0 to 1000000000000 at line 1 column 39",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"user":"a"},"permits":1.5}"#,
        400,
        "invalid_json",
        "invalid body: invalid type: floating point `1.5`, expected a whole number from 0 to 1000000000000 at line 1 column 40",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"user":"a"},"permits":"1"}"#,
        400,
        "invalid_json",
        r#"invalid body: invalid type: string "1", expected a whole number from 0 to 1000000000000 at line 1 column 40"#,
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"user":"a"},"permits":1000000000001}"#,
        400,
        "invalid_request",
        "permits must be at most 1000000000000, not 1000000000001",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"user":"a"},"permits":99999999999999999999}"#,
        400,
        "invalid_json",
        "invalid body: invalid type: floating point `1e+20`, expected a whole number from 0 to 1000000000000 at line 1 column 57",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"api":"/chat","user":"a"},"permits":10001}"#,
        400,
        "permits_exceed_limit",
        "10001 permits exceed the limit of rule `llm-tokens`, which is 10000: waiting does not help",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"user":"a"},"permit":1}"#,
        400,
        "invalid_json",
        "invalid body: unknown field `permit`, expected one of `attributes`, `resource`, `limit`, `window`, `permits`, `id` at line 1 column 35",
    ),
    (
        "/v1/acquire",
        r#"{"\u001b[1m\n":5}"#,
        400,
        "invalid_json",
        r"invalid body: unknown field `\u{1b}[1m\n`, expected one of `attributes`, `resource`, `limit`, `window`, `permits`, `id` at line 1 column 14",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"user":"a"},"permits":1,"permits":2}"#,
        400,
        "invalid_json",
        "invalid body: duplicate field `permits` at line 1 column 48",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":["user"]}"#,
        400,
        "invalid_json",
        "invalid body: invalid type: sequence, expected an object with string values at line 1 column 14",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"user":5}}"#,
        400,
        "invalid_json",
        "invalid body: invalid type: integer `5`, expected a string at line 1 column 23",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"user":null}}"#,
        400,
        "invalid_json",
        "invalid body: invalid type: null, expected a string at line 1 column 26",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"user":""}}"#,
        400,
        "invalid_request",
        "attribute `user` is empty: leave it out instead",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"":"a"}}"#,
        400,
        "invalid_request",
        "an attribute name must be 1 to 64 letters, digits or any of `_-.`",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"a b":"a"}}"#,
        400,
        "invalid_request",
        "an attribute name must be 1 to 64 letters, digits or any of `_-.`",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"user\n":"a"}}"#,
        400,
        "invalid_request",
        "an attribute name must be 1 to 64 letters, digits or any of `_-.`",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"user":"a","user":"b"}}"#,
        400,
        "invalid_request",
        "attribute `user` is given twice",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"user":"a"},"id":""}"#,
        400,
        "invalid_request",
        "id must be 1 to 64 letters, digits or any of `._:-`",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"user":"a"},"id":"a b"}"#,
        400,
        "invalid_request",
        "id must be 1 to 64 letters, digits or any of `._:-`",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"user":"a"},"id":5}"#,
        400,
        "invalid_json",
        "invalid body: invalid type: integer `5`, expected a string at line 1 column 33",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"user":"a"},"resource":"b"}"#,
        400,
        "invalid_request",
        "set `attributes` or `resource`, not both",
    ),
    (
        "/v1/acquire",
        r#"{"attributes":{"user":"a"},"limit":5}"#,
        400,
        "invalid_request",
        "`limit` and `window` need `resource`; `attributes` are limited by the rules",
    ),
    (
        "/v1/acquire",
        r#"{"resource":""}"#,
        400,
        "invalid_request",
        "`resource` is empty: leave it out instead",
    ),
    (
        "/v1/acquire",
        r#"{"resource":"a","limit":0}"#,
        400,
        "invalid_request",
        "limit must be between 1 and 100000, not 0",
    ),
    (
        "/v1/acquire",
        r#"{"resource":"a","limit":100001}"#,
        400,
        "invalid_request",
        "limit must be between 1 and 100000, not 100001",
    ),
    (
        "/v1/acquire",
        r#"{"resource":"a","limit":-5}"#,
        400,
        "invalid_json",
        "invalid body: invalid type: integer `-5`, expected a whole number from 0 to 1000000000000 at line 1 column 26",
    ),
    (
        "/v1/acquire",
        r#"{"resource":"a","window":"0s"}"#,
        400,
        "invalid_request",
        "window must be between 1s and 1h, not 0s",
    ),
    (
        "/v1/acquire",
        r#"{"resource":"a","window":"100y"}"#,
        400,
        "invalid_request",
        "window must be between 1s and 1h, not 36525d",
    ),
    (
        "/v1/acquire",
        r#"{"resource":"a","window":"soon"}"#,
        400,
        "invalid_request",
        "`window` must be a length of time such as 250ms, 5s or 1h",
    ),
    (
        "/v1/acquire",
        r#"{"resource":"a","window":5}"#,
        400,
        "invalid_json",
        "invalid body: invalid type: integer `5`, expected a string at line 1 column 26",
    ),
    (
        "/v1/acquire",
        r#"{"resource":"a","limit":5,"permits":6}"#,
        400,
        "permits_exceed_limit",
        "6 permits exceed the limit of rule `ad-hoc`, which is 5: waiting does not help",
    ),
    (
        "/v1/peek",
        r#"{"attributes":{"user":""}}"#,
        400,
        "invalid_request",
        "attribute `user` is empty: leave it out instead",
    ),
    ("/v1/acquire/batch", "[]", 400, "invalid_json", "the body must be an object, not a list"),
    (
        "/v1/acquire/batch",
        r#"{"requests":5}"#,
        400,
        "invalid_json",
        "invalid body: invalid type: integer `5`, expected a list of at most 1000 requests at line 1 column 13",
    ),
    (
        "/v1/acquire/batch",
        r#"{"requests":[{"attributes":{"user":""}},5]}"#,
        400,
        "invalid_json",
        "invalid body: invalid type: integer `5`, expected an object with `attributes` or `resource` at line 1 column 41",
    ),
    ("/v1/settle", "{}", 400, "invalid_json", "invalid body: missing field `reservation` at line 1 column 2"),
    (
        "/v1/settle",
        r#"{"reservation":"x"}"#,
        400,
        "invalid_json",
        "invalid body: missing field `permits` at line 1 column 19",
    ),
    (
        "/v1/settle",
        r#"{"reservation":"","permits":0}"#,
        400,
        "invalid_request",
        "invalid reservation: send it exactly as it was received",
    ),
    (
        "/v1/settle",
        r#"{"reservation":"1.2.3.4.","permits":0}"#,
        400,
        "invalid_request",
        "invalid reservation: send it exactly as it was received",
    ),
    (
        "/v1/settle",
        r#"{"reservation":"1.2.3.99999999999.k","permits":0}"#,
        400,
        "invalid_request",
        "invalid reservation: send it exactly as it was received",
    ),
    (
        "/v1/settle",
        r#"{"reservation":"1.2.3.1.k","permits":-1}"#,
        400,
        "invalid_json",
        "invalid body: invalid type: integer `-1`, expected a whole number from 0 to 1000000000000 at line 1 column 39",
    ),
    (
        "/v1/settle",
        r#"{"reservation":"1.2.3.1.k","permits":0}"#,
        400,
        "invalid_request",
        "invalid reservation: send it exactly as it was received",
    ),
    (
        "/v1/settle",
        r#"{"reservation":"1.18446744073709551615.3.1.k","permits":0}"#,
        400,
        "invalid_request",
        "invalid reservation: send it exactly as it was received",
    ),
    ("/v1/nothing", "{}", 404, "not_found", "unknown path: see GET /"),
    ("/v1/rules", "{}", 405, "method_not_allowed", "this path does not accept this method: see GET /"),
];

/// Arguments, and the first line of the error.
const COMMANDS: &[(&[&str], &str)] = &[
    (&["bogus"], "error: unrecognized subcommand 'bogus'"),
    (&["acquire"], "error: the following required arguments were not provided:"),
    (&["acquire", "ip"], "slidegate: `ip` is not NAME=VALUE"),
    (&["acquire", "ip=1", "ip=2"], "slidegate: `ip` is given twice"),
    (
        &["acquire", "--permits", "-1", "a=b"],
        "error: invalid value '-1' for '--permits <PERMITS>': invalid digit found in string",
    ),
    (
        &["acquire", "--permits", "many", "a=b"],
        "error: invalid value 'many' for '--permits <PERMITS>': invalid digit found in string",
    ),
    (
        &["acquire", "--resource", "x", "a=b"],
        "error: the argument '--resource <RESOURCE>' cannot be used with '[NAME=VALUE]...'",
    ),
    (
        &["acquire", "--limit", "5", "a=b"],
        "slidegate: --limit and --window need --resource; attributes are limited by the server's rules",
    ),
    (
        &["acquire", "--url", "http://127.0.0.1:1", "a=b"],
        "slidegate: no answer from http://127.0.0.1:1/v1/acquire: Connection refused (os error 111)",
    ),
    (
        &["acquire", "--url", "nonsense", "a=b"],
        "slidegate: `nonsense` is not an address such as http://127.0.0.1:8080",
    ),
    (
        &["acquire", "--url", "https://127.0.0.1:1", "a=b"],
        "slidegate: `https://127.0.0.1:1` is not an address such as http://127.0.0.1:8080",
    ),
    (&["validate"], "error: the following required arguments were not provided:"),
    (
        &["validate", "/nonexistent"],
        "slidegate: cannot read /nonexistent: No such file or directory (os error 2)",
    ),
    (
        &["serve", "--http", "here"],
        "error: invalid value 'here' for '--http <ADDR>': must be an address and a port such as 127.0.0.1:8080, a port such as 8080 for this machine only, :8080 for every interface, or `off`, not \"here\"",
    ),
    (
        &["serve", "--store", "memcached"],
        "error: invalid value 'memcached' for '--store <STORE>': the store must be `memory`, `redis`, or an address such as redis://127.0.0.1:6379",
    ),
    (
        &["--http", "127.0.0.1:99999"],
        "error: invalid value '127.0.0.1:99999' for '--http <ADDR>': must be an address and a port such as 127.0.0.1:8080, a port such as 8080 for this machine only, :8080 for every interface, or `off`, not \"127.0.0.1:99999\"",
    ),
];

/// Errors after the server has read its flags: they are lines of its log.
const START_ERRORS: &[(&[&str], &str)] = &[
    (
        &["serve", "--config", "/nonexistent"],
        "cannot read /nonexistent: No such file or directory (os error 2)",
    ),
    (
        &["serve", "--http", "1.1.1.1:80"],
        "cannot listen on 1.1.1.1:80: Cannot assign requested address (os error 99); choose another with --http, or port 0 for a free one",
    ),
];

/// Arguments to `acquire` that a server rejects.
const DENIED: &[(&[&str], &str)] = &[
    (&["user="], "slidegate: attribute `user` is empty: leave it out instead"),
    (
        &["api=/chat", "user=a", "--permits", "10001"],
        "slidegate: 10001 permits exceed the limit of rule `llm-tokens`, which is 10000: waiting does not help",
    ),
    (&["user=a", "--id", "a b"], "slidegate: id must be 1 to 64 letters, digits or any of `._:-`"),
];

#[test]
fn invalid_requests_are_rejected() {
    let server = Server::demo();
    for (path, body, status, code, message) in REQUESTS {
        expect(&server, path, body, *status, code, message);
    }
    let many: serde_json::Map<_, _> = (0..33).map(|n| (format!("a{n}"), json!("x"))).collect();
    let many = json!({ "attributes": many }).to_string();
    expect(
        &server,
        "/v1/acquire",
        &many,
        400,
        "invalid_request",
        "a request may have at most 32 attributes, not 33",
    );
    let megabyte = json!({ "attributes": { "user": "x".repeat(1 << 20) } }).to_string();
    let message = "the body is too large: 65536 bytes at most, 1048576 for a batch";
    expect(&server, "/v1/acquire", &megabyte, 413, "too_large", message);
    expect(&server, "/v1/acquire/batch", &megabyte, 413, "too_large", message);
    let batch = json!({ "requests": vec![json!({ "attributes": {} }); 1_001] }).to_string();
    let message =
        "invalid body: invalid length 1001, expected a list of at most 1000 requests at line 1 column 18031";
    expect(&server, "/v1/acquire/batch", &batch, 400, "invalid_json", message);
    for kind in
        [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("application/json+x")]
    {
        let headers: Vec<_> = kind.map(|kind| ("content-type", kind)).into_iter().collect();
        let answer = server.send("POST", "/v1/acquire", &headers, "{}");
        assert_eq!(
            (answer.status, answer.json()["error"]["code"].as_str()),
            (415, Some("unsupported_media_type"))
        );
        let message = "the body must be JSON: send `content-type: application/json`";
        assert_eq!(answer.json()["error"]["message"], message);
    }
    nothing_was_charged(&server);
    eprintln!("{} bad requests, each answered exactly", REQUESTS.len() + 8);
}

fn expect(server: &Server, path: &str, body: &str, status: u16, code: &str, message: &str) {
    let answer = server.post(path, body);
    let body: String = body.chars().take(200).collect();
    assert_eq!(answer.status, status, "{path} {body}");
    assert_eq!(answer.json(), json!({ "error": { "code": code, "message": message } }), "{path} {body}");
}

/// The keys in the invalid requests have not changed.
fn nothing_was_charged(server: &Server) {
    for request in [
        json!({ "attributes": { "api": "/chat", "user": "a" } }),
        json!({ "attributes": { "api": "/login", "user": "a", "ip": "1" } }),
        json!({ "resource": "a" }),
        json!({ "resource": "a", "limit": 5 }),
    ] {
        let answer = server.post("/v1/peek", &request.to_string()).json();
        let limits = answer["limits"].as_array().unwrap();
        assert!(!limits.is_empty() && limits.iter().all(|limit| limit["used"] == 0), "{answer}");
    }
}

#[test]
fn unusual_values_have_their_own_keys() {
    let server = Server::with_rules("rules: [{ name: r, key: [a, b], limit: 1, window: 1h }]");
    let values = [
        ("{}", ":"),
        ("{", "}:"),
        ("%7B", "x"),
        ("{", "x"),
        ("a:b", "c"),
        ("a", "b:c"),
        ("\u{1}\n", "\u{7f}"),
        ("é", "日本"),
    ];
    for (a, b) in values {
        let body = json!({ "attributes": { "a": a, "b": b } }).to_string();
        assert_eq!(server.post("/v1/acquire", &body).status, 200, "{a:?} {b:?}");
        assert_eq!(server.post("/v1/acquire", &body).status, 429, "{a:?} {b:?}");
    }
}

/// Every call that takes JSON matches patterns against the whole value, for any length.
#[test]
fn long_value_matches_its_rule() {
    let server = Server::with_rules(
        "rules: [{ name: login, match: { api: \"/login*\" }, key: [ip], limit: 2, window: 1h }]",
    );
    let body = |n: usize| json!({ "attributes": { "api": format!("/login?{}", "x".repeat(n)), "ip": "1" } });
    let statuses = [0, 9_000, 60_000].map(|n| server.post("/v1/acquire", &body(n).to_string()).status);
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(server.post("/v1/peek", &body(9_000).to_string()).status, 429);
    let batch = server.post("/v1/acquire/batch", &json!({ "requests": [body(9_000)] }).to_string()).json();
    assert_eq!(batch["results"][0]["denied_by"], "login", "{batch}");
    let explained = server.post("/v1/explain", &body(9_000).to_string()).json();
    assert_eq!(explained["denied_by"], "login", "{explained}");
}

/// Many rules that match every request.
fn many_rules() -> Server {
    let rules = (0..500).map(|n| format!("  - {{ name: r{n}, key: [user], limit: 1000000, window: 1h }}\n"));
    Server::with_rules(&format!("rules:\n{}", rules.collect::<String>()))
}

/// A small batch cannot cause a huge response.
#[test]
fn batch_with_too_many_limits_is_rejected_and_charges_nothing() {
    let server = many_rules();
    let batch = |requests: usize| {
        let requests: Vec<_> = (0..requests).map(|_| json!({ "attributes": { "user": "a" } })).collect();
        json!({ "requests": requests }).to_string()
    };
    let message = "the requests of one call may have at most 10000 checks, one for each rule that applies to a request: send fewer requests";
    expect(&server, "/v1/acquire/batch", &batch(1_000), 400, "invalid_request", message);
    expect(&server, "/v1/acquire/batch", &batch(21), 400, "invalid_request", message);
    let peek = server.post("/v1/peek", r#"{"attributes":{"user":"a"}}"#).json();
    assert_eq!(peek["limits"][0]["used"], 0, "{}", peek["limits"][0]);
    let answer = server.post("/v1/acquire/batch", &batch(20));
    assert_eq!(answer.status, 200);
    assert!(answer.body.len() < 4 << 20, "an answer of {} bytes", answer.body.len());
    assert_eq!(answer.json()["results"][19]["limits"][499]["used"], 20);
}

/// A pipeline whose commands have many limits is decided in several calls.
#[test]
fn pipeline_with_many_limits_is_split() {
    let server = many_rules();
    let mut client = Wire::connect(server.listener_address("redis"));
    client.send(&encode("SG.CHECK user a").repeat(300));
    let left: Vec<i64> = (0..300).map(|_| client.read().unwrap().numbers()[2]).collect();
    assert_eq!(left, (0..300).map(|n| 999_999 - n).collect::<Vec<i64>>());
    let page = server.get("/metrics").body;
    let failures = "slidegate_failures_total{protocol=\"resp\",kind=\"invalid\"} 0";
    assert!(page.lines().any(|line| line == failures), "{page}");
}

#[test]
fn invalid_command_lines_are_rejected() {
    for (arguments, message) in COMMANDS {
        let output = process::output(Command::new(BINARY).args(*arguments).env_remove("SLIDEGATE_URL"));
        assert_first_line(&output, arguments, message);
    }
    for (arguments, message) in START_ERRORS {
        let output = process::output(Command::new(BINARY).args(*arguments));
        assert_eq!(messages(str::from_utf8(&output.stderr).unwrap()), format!("{message}\n"));
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{arguments:?}");
    }
    let server = Server::demo();
    for (arguments, message) in DENIED {
        assert_first_line(&server.acquire(arguments), arguments, message);
    }
    eprintln!("{} bad command lines, each answered exactly", COMMANDS.len() + DENIED.len());
}

fn assert_first_line(output: &std::process::Output, arguments: &[&str], message: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(error.lines().next(), Some(message), "{arguments:?}");
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
}
