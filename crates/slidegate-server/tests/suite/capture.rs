//! Tests recordings: one line per request with its decision, from every protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use slidegate_testkit::{eventually, process};

use crate::grpc;
use crate::resp::Wire;
use crate::server::{BINARY, Server, messages};

const ADMIN: &str = "admin-token-0123456789";

const RULES: &str = "
rules:
  - { name: login, match: { api: /login }, key: [ip], limit: 2, window: 1h }
  - { name: costly, match: { api: /report }, limit: 5, window: 1h }
  - { name: staff, match: { api: /admin }, blocked: true }
";

/// Starts a server that records to `path`.
fn recording(path: &Path, more: &[&str]) -> Server {
    let path = path.to_str().unwrap();
    Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", ADMIN)], RULES, &[&["--record", path], more].concat())
}

/// Stops the server, so that the file is complete.
fn stop(mut server: Server) {
    server.terminate();
    assert!(server.wait().success());
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

fn login(server: &Server, ip: &str) -> u16 {
    let body = json!({ "attributes": { "api": "/login", "ip": ip } });
    server.post("/v1/acquire", &body.to_string()).status
}

/// Removes the instants, after asserting their order.
fn without_times(mut all: Vec<Value>) -> Vec<Value> {
    let instants: Vec<u64> = all.iter().map(|line| line["at"].as_u64().unwrap()).collect();
    assert!(instants.is_sorted(), "{instants:?}");
    assert!(instants.iter().all(|at| *at > 1_700_000_000_000_000), "microseconds since 1970");
    all.iter_mut().for_each(|line| drop(line.as_object_mut().unwrap().remove("at")));
    all
}

#[test]
fn every_protocol_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("requests.ndjson");
    let server = recording(&path, &[]);
    // Peeks and invalid requests are not recorded.
    server.post("/v1/peek", r#"{"attributes":{"api":"/login","ip":"1"}}"#);
    server.post("/v1/acquire", r#"{"attributes":{"api":""}}"#);
    login(&server, "1");
    server.post("/v1/acquire", r#"{"resource":"r","limit":1,"window":"1500ms","permits":1,"id":"a-1"}"#);
    let batch = r#"{"requests":[{"attributes":{"api":"/login","ip":"1"}},{"attributes":{"api":"/login","ip":"1"}},{"resource":""},{"attributes":{"x":"\"é\n"}}]}"#;
    server.post("/v1/acquire/batch", batch);
    server.post("/v1/acquire", r#"{"attributes":{"api":"/report"},"permits":6}"#);
    server.post("/v1/acquire", r#"{"attributes":{"api":"/admin"},"permits":0}"#);
    assert_eq!(server.get("/v1/authorize").status, 200);
    let mut client = Wire::connect(server.listener_address("redis"));
    client.call("SG.ACQUIRE r 5 1000 2");
    client.call("SG.CHECK PERMITS 3 api /report");
    client.call("CL.THROTTLE user 4 30 60 1");
    let grpc = grpc::Client::of(&server);
    grpc.codes(grpc::rate_limit_request("shop", &[&[("user", "alice")]]));
    grpc.codes(grpc::rate_limit_request("shop", &[&[("user", "alice")], &[("item", "7")]]));
    // An open connection would delay the shutdown of the server.
    drop((client, grpc));
    stop(server);
    let expected = [
        json!({ "attributes": { "api": "/login", "ip": "1" }, "permits": 1, "allowed": true }),
        json!({ "resource": "r", "limit": 1, "window": "1s 500ms", "permits": 1, "id": "a-1", "allowed": true }),
        json!({ "attributes": { "api": "/login", "ip": "1" }, "permits": 1, "allowed": true }),
        json!({ "attributes": { "api": "/login", "ip": "1" }, "permits": 1, "allowed": false, "denied_by": "login" }),
        json!({ "attributes": { "x": "\"é\n" }, "permits": 1, "allowed": true }),
        json!({ "attributes": { "api": "/report" }, "permits": 6, "allowed": false, "denied_by": "costly" }),
        json!({ "attributes": { "api": "/admin" }, "permits": 0, "allowed": false, "denied_by": "staff" }),
        json!({ "attributes": { "ip": "127.0.0.1" }, "permits": 1, "allowed": true }),
        json!({ "resource": "r", "limit": 5, "window": "1s", "permits": 2, "allowed": true }),
        json!({ "attributes": { "api": "/report" }, "permits": 3, "allowed": true }),
        json!({ "resource": "user", "limit": 30, "window": "1m", "burst": 5, "permits": 1, "allowed": true }),
        json!({ "attributes": { "domain": "shop", "user": "alice" }, "permits": 1, "allowed": true }),
        json!({ "attributes": { "domain": "shop", "user": "alice" }, "permits": 1, "allowed": true }),
        json!({ "attributes": { "domain": "shop", "item": "7" }, "permits": 1, "allowed": true }),
    ];
    let recorded = without_times(lines(&fs::read_to_string(&path).unwrap()));
    for (line, expected) in recorded.iter().zip(&expected) {
        assert_eq!(line, expected);
    }
    assert_eq!(recorded.len(), expected.len());
}

#[test]
fn gz_files_are_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("requests.ndjson.gz");
    let server = recording(&path, &[]);
    for n in 0..50 {
        login(&server, &n.to_string());
    }
    stop(server);
    let mut text = String::new();
    flate2::read::GzDecoder::new(File::open(&path).unwrap()).read_to_string(&mut text).unwrap();
    let ips: Vec<Value> = lines(&text).iter().map(|line| line["attributes"]["ip"].clone()).collect();
    assert_eq!(ips, (0..50).map(|n| json!(n.to_string())).collect::<Vec<_>>());
}

#[test]
fn recording_survives_a_killed_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("requests.ndjson.gz");
    let mut server = recording(&path, &[]);
    for n in 0..50 {
        login(&server, &n.to_string());
    }
    let readable = || {
        let mut text = Vec::new();
        let _ = flate2::read::GzDecoder::new(File::open(&path).unwrap()).read_to_end(&mut text);
        text.split(|byte| *byte == b'\n').count() - 1
    };
    eventually("all requests are in the file", || readable() == 50);
    server.signal("KILL");
    server.wait();
    assert_eq!(readable(), 50);
    let rules = folder.path().join("rules.yaml");
    std::fs::write(&rules, "rules: [{ name: per-ip, key: [ip], limit: 1, window: 1s }]").unwrap();
    let simulated = process::output(
        Command::new(BINARY)
            .args(["simulate", "--json", "--rules", rules.to_str().unwrap()])
            .args(["--trace", path.to_str().unwrap()]),
    );
    let report: Value = serde_json::from_slice(&simulated.stdout).unwrap();
    assert_eq!(report["requests"], 50);
    let note = report["notes"][0].as_str().unwrap();
    assert!(note.contains("requests.ndjson.gz after line 50: "), "{note}");
}

fn serve(arguments: &[&str]) -> Output {
    process::output(Command::new(BINARY).args(["serve", "--http", "127.0.0.1:0"]).args(arguments))
}

#[test]
fn existing_files_are_kept_unless_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("requests.ndjson");
    fs::write(&path, "mine\n").unwrap();
    let name = path.to_str().unwrap();
    let denied = serve(&["--record", name]);
    let stderr = messages(str::from_utf8(&denied.stderr).unwrap());
    let expected =
        format!("{name} already exists: record to another file, or replace it with --record-force\n");
    assert_eq!((denied.status.code(), stderr, denied.stdout.len()), (Some(2), expected, 0));
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine\n");
    let server = recording(&path, &["--record-force"]);
    login(&server, "1");
    stop(server);
    assert_eq!(lines(&fs::read_to_string(&path).unwrap()).len(), 1);
    let nowhere = folder.path().join("nowhere/requests").display().to_string();
    let denied = String::from_utf8(serve(&["--record", &nowhere]).stderr).unwrap();
    assert!(messages(&denied).starts_with(&format!("cannot record to {nowhere}: No such file")), "{denied}");
}

#[test]
fn flags_are_checked() {
    for (arguments, message) in [
        (&["--record-sample", "10%"][..], "--record <FILE>"),
        (&["--record", "x", "--record-sample", "0%"], "must be a percentage from 0.01% to 100%"),
        (
            &["--record", "x", "--record-size", "1GB"],
            "must be a number of bytes such as 500, 64KiB, 100MiB or 1GiB",
        ),
        (&["--record", "x", "--record-for", "soon"], "must be a length of time such as 30s, 10m or 1h"),
        (&["--record", "x", "--record-for", "0s"], "must be greater than zero"),
    ] {
        let output = serve(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(message), "{stderr}");
        assert!(!Path::new("x").exists());
    }
}

#[test]
fn recording_stops_at_its_size_or_duration() {
    let folder = tempfile::tempdir().unwrap();
    for (name, flags, why) in [
        ("full", ["--record-size", "1KiB"], "the size limit is reached"),
        ("time", ["--record-for", "300ms"], "the time is over"),
    ] {
        let path = folder.path().join(name);
        let log = folder.path().join(format!("{name}.log"));
        let file = path.to_str().unwrap();
        let arguments = [&["--record", file], &flags[..]].concat();
        let server = Server::logging_to(&File::create(&log).unwrap(), &[], RULES, &arguments);
        eventually("the recording has ended", || {
            login(&server, "1");
            fs::read_to_string(&log).unwrap().contains(why)
        });
        assert!(server.get("/metrics").body.contains("slidegate_recordings 0\n"));
        let before = fs::read_to_string(&path).unwrap();
        login(&server, "1");
        stop(server);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, before, "nothing comes after");
        let n = lines(&text).len();
        let log_text = fs::read_to_string(&log).unwrap();
        assert!(log_text.contains(&format!("recorded {n} requests in {file}: {why}\n")), "{log_text}");
        let line = text.lines().next().unwrap().len() as u64 + 1;
        assert!(
            name == "time" || (1_024 - line - 40..=1_024).contains(&(text.len() as u64)),
            "{}",
            text.len()
        );
    }
}

#[test]
fn sample_has_whole_clients_and_digests_hide_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("requests");
    let server = recording(
        &path,
        &[
            "--record-sample",
            "50%",
            "--record-by",
            "ip",
            "--record-digest",
            "ip,resource",
            "--record-size",
            "1MiB",
        ],
    );
    let batch = |n: usize| {
        let one = |api: &str| json!({ "attributes": { "api": api, "ip": format!("client-{n}") } });
        json!({ "requests": [one("/a"), one("/b"), one("/c")] }).to_string()
    };
    (0..100).for_each(|n| assert_eq!(server.post("/v1/acquire/batch", &batch(n)).status, 200));
    (0..20).for_each(|n| {
        drop(server.post("/v1/acquire", &json!({ "resource": format!("client-{n}") }).to_string()))
    });
    stop(server);
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains("client-"), "{text}");
    let mut apis: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in lines(&text).iter().filter(|line| line["resource"].is_null()) {
        let value = |name: &str| line["attributes"][name].as_str().unwrap().to_owned();
        apis.entry(value("ip")).or_default().insert(value("api"));
    }
    // The bounds are seven standard deviations from a half.
    assert!((15..=85).contains(&apis.len()), "{}", apis.len());
    assert!(apis.values().all(|apis| apis.len() == 3), "{apis:?}");
}

/// Streamed response to `POST /v1/record`.
struct Lines(BufReader<TcpStream>);

impl Lines {
    fn of(server: &Server, body: &str) -> Self {
        let mut stream = server.connect();
        let head = format!(
            "POST /v1/record HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut lines = Lines(BufReader::new(stream));
        let head: Vec<String> =
            std::iter::from_fn(|| Some(lines.line()).filter(|line| !line.is_empty())).collect();
        assert_eq!(head[0], "HTTP/1.1 200 OK");
        assert!(head.contains(&"content-type: application/x-ndjson".to_owned()), "{head:?}");
        lines
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Returns the lines of the next chunks, until the response ends.
    fn rest(mut self) -> Vec<Value> {
        let mut text = String::new();
        loop {
            let size = usize::from_str_radix(&self.line(), 16).unwrap();
            let mut chunk = vec![0; size + 2];
            self.0.read_exact(&mut chunk).unwrap();
            if size == 0 {
                return lines(&text);
            }
            text += str::from_utf8(&chunk[..size]).unwrap();
        }
    }
}

fn admin(server: &Server, body: &str) -> (u16, String) {
    let token = format!("Bearer {ADMIN}");
    let headers = [("content-type", "application/json"), ("authorization", token.as_str())];
    let answer = server.send("POST", "/v1/record", &headers, body);
    (answer.status, answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn recording_can_be_streamed() {
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", ADMIN)], RULES, &[]);
    login(&server, "before");
    // The recording lasts long enough for three requests on a busy machine.
    let stream = Lines::of(&server, r#"{"seconds":2}"#);
    let small = Lines::of(&server, r#"{"seconds":3600,"max_bytes":200}"#);
    for n in 0..3 {
        login(&server, &n.to_string());
    }
    let users = |lines: &[Value]| -> Vec<Value> {
        lines.iter().map(|line| line["attributes"]["ip"].clone()).collect()
    };
    assert_eq!(users(&small.rest()), ["0", "1"], "a third line would exceed `max_bytes`");
    assert_eq!(users(&stream.rest()), ["0", "1", "2"]);
    eventually("both recordings have ended", || {
        server.get("/metrics").body.contains("slidegate_recordings 0\n")
    });
    let page = server.get("/metrics").body;
    assert!(page.contains("slidegate_recorded_requests_total 5\n"), "{page}");
    assert!(page.contains("slidegate_recording_drops_total 0\n"), "{page}");
}

#[test]
fn recording_needs_a_token_and_is_bounded() {
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", ADMIN)], RULES, &[]);
    assert_eq!(server.post("/v1/record", "{}").status, 401);
    assert_eq!(Server::with_rules(RULES).post("/v1/record", "{}").status, 403);
    for (body, message) in [
        (r#"{"seconds":0}"#, "`seconds` must be between 1 and 3600, not 0"),
        (r#"{"seconds":3601}"#, "`seconds` must be between 1 and 3600, not 3601"),
        (r#"{"max_bytes":1073741825}"#, "`max_bytes` must be between 1 and 1073741824, not 1073741825"),
        (r#"{"sample":"2"}"#, "`sample` must be a percentage from 0.01% to 100%"),
        (r#"{"path":"/etc/passwd"}"#, "unknown field `path`"),
        ("[]", "the body must be an object, not a list"),
    ] {
        let (status, error) = admin(&server, body);
        assert_eq!(status, 400, "{body}");
        assert!(error.contains(message), "{body}: {error}");
    }
    let many = json!({ "by": vec!["a"; 33] }).to_string();
    assert_eq!(admin(&server, &many), (400, "`by` may name at most 32 attributes, not 33".to_owned()));
    let all: Vec<Lines> = (0..4).map(|_| Lines::of(&server, r#"{"seconds":3600}"#)).collect();
    let (status, error) = admin(&server, "{}");
    let expected = "too many recordings are in progress: end another recording, or try again later";
    assert_eq!((status, error.as_str()), (503, expected));
    drop(all);
    eventually("closed streams are noticed", || {
        login(&server, "1");
        server.get("/metrics").body.contains("slidegate_recordings 0\n")
    });
    let last = Lines::of(&server, r#"{"seconds":3600}"#);
    stop(server);
    assert!(last.rest().is_empty(), "the answer ends with the server");
}
