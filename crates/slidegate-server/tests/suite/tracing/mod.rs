//! Tests logs: text and JSON, one line per decision, and no secrets.

#[cfg(feature = "otel")]
mod otlp; // export of spans to a collector

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use slidegate_server::messages::{Entry, RateLimitDescriptor, RateLimitRequest};
use slidegate_testkit::{eventually, process};
use tonic::transport::Endpoint;

use crate::server::{BINARY, Server, messages};

const RULES: &str = "
ad-hoc: { limit: { default: 10, min: 1, max: 100 } }
rules: [{ name: one, key: [user], limit: 2, window: 1h }]
";

/// Server, and its log.
struct Logged {
    server: Server,
    log: tempfile::NamedTempFile,
}

impl Logged {
    fn new(variables: &[(&str, &str)], rules: &str, arguments: &[&str]) -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        let file: &File = log.as_file();
        Logged { server: Server::logging_to(file, variables, rules, arguments), log }
    }

    /// Returns the log so far.
    fn so_far(&self) -> String {
        fs::read_to_string(self.log.path()).unwrap()
    }

    fn until(&self, text: &str) -> String {
        eventually(&format!("the log has {text:?}"), || self.so_far().contains(text));
        self.so_far()
    }

    /// Stops the server. Returns its whole log, without the steps of the shutdown.
    fn stop(mut self) -> String {
        self.server.terminate();
        assert!(self.server.wait().success());
        let is_step = |line: &&str| {
            ["listeners closed: ", "all requests are answered"].iter().any(|step| line.contains(step))
        };
        self.so_far().lines().filter(|line| !is_step(line)).map(|line| format!("{line}\n")).collect()
    }

    /// Stops the server. Returns the log lines of decisions, without their durations.
    fn decisions(self) -> Vec<Value> {
        let lines = objects(&self.stop());
        let mut decisions: Vec<Value> =
            lines.into_iter().filter(|line| line["message"] == "decision").collect();
        for decision in &mut decisions {
            let decision = decision.as_object_mut().unwrap();
            assert!(decision.remove("took_us").unwrap().as_u64().unwrap() < 10_000_000);
            assert_eq!(decision.remove("level").unwrap(), "DEBUG");
            decision.remove("timestamp").unwrap();
            decision.remove("message").unwrap();
        }
        decisions
    }
}

/// Parses the log. Every line is an object with a time, a level and a message.
fn objects(log: &str) -> Vec<Value> {
    let object = |line: &str| {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let timestamp = object["timestamp"].as_str().unwrap();
        assert!(timestamp.len() == 27 && timestamp.ends_with('Z'), "{line}");
        assert!(["ERROR", "WARN", "INFO", "DEBUG"].contains(&object["level"].as_str().unwrap()), "{line}");
        assert!(!object["message"].as_str().unwrap().is_empty(), "{line}");
        object
    };
    log.lines().map(object).collect()
}

/// A key as it is logged.
fn digest(key: &str) -> String {
    let rule = key.split(':').next().unwrap();
    let digest = Sha256::digest(key);
    digest[..8].iter().fold(format!("{rule}:#"), |text, byte| text + &format!("{byte:02x}"))
}

/// Sends a request by the fast path, unless a header sends it to hyper.
fn post(stream: &mut TcpStream, path: &str, headers: &str, body: &str) -> u16 {
    let length = body.len();
    let head = "HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    // Head and body are sent in one write, so that a request that is rejected by its head has arrived completely.
    let request = format!("POST {path} {head}{headers}content-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    while !head.ends_with("\r\n\r\n") {
        let at = head.len();
        assert!(reader.read_line(&mut head).unwrap() > 0, "no answer after {head:?}");
        if let Some(value) = head[at..].strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
    }
    reader.read_exact(&mut vec![0; length]).unwrap();
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Sends commands in one write, and reads until the replies end with `last`.
fn redis(address: &str, commands: &str, last: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(commands.as_bytes()).unwrap();
    let mut answers = Vec::new();
    while !answers.ends_with(last.as_bytes()) {
        let mut some = [0; 1024];
        let n = stream.read(&mut some).unwrap();
        assert!(n > 0, "{}", String::from_utf8_lossy(&answers));
        answers.extend_from_slice(&some[..n]);
    }
    String::from_utf8(answers).unwrap()
}

/// Sends commands that end with QUIT, and reads until the server closes the connection, after it has executed all of
/// them.
fn redis_until_closed(address: &str, commands: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(commands.as_bytes()).unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
}

/// Sends one request with a descriptor for each user, as Envoy does. Returns whether the server answered without an
/// error.
fn envoy(address: &str, users: &[&str], headers: &[(&'static str, &str)]) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let call = async {
        let channel = Endpoint::new(format!("http://{address}")).unwrap().connect().await.unwrap();
        let descriptor = |user: &&str| {
            let entry = Entry { key: "user".into(), value: (*user).into() };
            RateLimitDescriptor { entries: vec![entry], ..Default::default() }
        };
        let descriptors = users.iter().map(descriptor).collect();
        let request = RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 0 };
        let mut request = tonic::Request::new(request);
        for (name, value) in headers {
            request.metadata_mut().insert(*name, value.parse().unwrap());
        }
        crate::grpc::should_rate_limit(channel, request).await.is_ok()
    };
    let limited = async { tokio::time::timeout(Duration::from_secs(60), call).await };
    runtime.block_on(limited).expect("an answer by gRPC within 60 s")
}

const BODY: &str = r#"{"attributes":{"user":"ann"}}"#;

#[test]
fn text_logs_have_time_and_level() {
    let logged = Logged::new(&[], RULES, &[]);
    assert!(logged.server.greeting.ends_with("ready\n"));
    assert_eq!(logged.server.post("/v1/acquire", BODY).status, 200);
    assert_eq!(logged.so_far(), "", "nothing has happened that must be logged");
    let config = logged.server.config().to_owned();
    let name = config.display();
    fs::write(&config, RULES.replace("limit: 2", "limit: 3")).unwrap();
    let log = logged.until("\n");
    assert!(log[27..].starts_with("  INFO rules: version 2, hash "), "{log}");
    assert!(log.ends_with(&format!(", count 1, from {name}\n")), "{log}");
    fs::write(&config, "rules: [{ name: one, limit: 0, window: 1m }]").unwrap();
    let log = logged.until("mistakes");
    let expected = format!("  WARN the new rules are not used: {name} has mistakes:\n  {name}:1:");
    assert!(log.contains(&expected), "{log}");
    let log = messages(&logged.stop());
    assert!(log.ends_with("\nreceived SIGTERM: stopping\nstopped\n"), "{log}");

    // The server prints the error that ends it at every log level.
    let mut command = Command::new(BINARY);
    let broken = process::output(command.args(["serve", "--log-level", "error", "--config", "/nowhere"]));
    let stderr = String::from_utf8(broken.stderr).unwrap();
    assert!(stderr[27..].starts_with(" ERROR cannot read /nowhere: "), "{stderr}");
    assert_eq!(messages(&stderr).lines().count(), 1, "{stderr}");
}

/// Removes the fields that every event has, and checks the level and the message.
fn fields(mut event: Value, level: &str, message: &str) -> Value {
    let object = event.as_object_mut().unwrap();
    object.remove("timestamp").unwrap();
    assert_eq!(object.remove("level").unwrap(), level, "{object:?}");
    let said = object.remove("message").unwrap();
    assert!(said.as_str().unwrap().starts_with(message), "{said}");
    event
}

#[test]
fn json_logs_are_one_object_per_line() {
    let logged = Logged::new(&[("SLIDEGATE_LOG", "json")], RULES, &[]);
    let config = logged.server.config().to_owned();
    let name = config.to_str().unwrap();
    let address = |scheme: &str| logged.server.listener_address(scheme).to_owned();
    let [http, grpc, resp] = ["http", "grpc", "redis"].map(address);
    fs::write(&config, RULES.replace("limit: 2", "limit: 3")).unwrap();
    logged.until("rules_changed");
    fs::write(&config, "rules: [{ name: one, limit: 0, window: 1m }]").unwrap();
    logged.until("rules_rejected");
    let hash = logged.server.get("/v1/rules").json()["edition"]["hash"].clone();
    let mut lines = objects(&logged.stop()).into_iter();
    let mut next = |level, message| fields(lines.next().expect("another line"), level, message);
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        next("INFO", "slidegate "),
        json!({ "event": "start", "version": version, "rules": name, "store": "memory" })
    );
    for (protocol, address) in [("http", http), ("grpc", grpc), ("resp", resp)] {
        let expected = json!({ "event": "listen", "protocol": protocol, "address": address, "tls": false });
        assert_eq!(next("INFO", "listening on "), expected);
    }
    assert_eq!(next("INFO", "ready"), json!({ "event": "ready" }));
    assert_eq!(
        next("INFO", "rules: version 2, hash "),
        json!({ "event": "rules_changed", "version": 2, "hash": hash, "count": 1, "source": name })
    );
    let mut rejected = next("WARN", "the new rules are not used: ");
    let error = rejected.as_object_mut().unwrap().remove("error").unwrap();
    assert!(error.as_str().unwrap().starts_with(&format!("{name} has mistakes:\n  ")), "{error}");
    assert_eq!(rejected, json!({ "event": "rules_rejected", "source": name }));
    assert_eq!(next("INFO", "received SIGTERM"), json!({ "event": "signal", "signal": "SIGTERM" }));
    let stopped = next("INFO", "stopped");
    assert!(stopped["event"] == "stopped" && stopped["uptime_ms"].as_u64() > Some(0), "{stopped}");
    assert_eq!(lines.next(), None);

    // Flags override environment variables.
    let arguments = ["serve", "--log", "json", "--config", "/nowhere"];
    let broken = process::output(Command::new(BINARY).args(arguments).env("SLIDEGATE_LOG", "text"));
    let lines = objects(str::from_utf8(&broken.stderr).unwrap());
    assert_eq!((lines.len(), &lines[0]["level"], broken.stdout.len()), (1, &json!("ERROR"), 0));

    // Other commands print errors as text, because people run them.
    let variables = [("SLIDEGATE_LOG", "json"), ("SLIDEGATE_LOG_LEVEL", "error")];
    let check = process::output(Command::new(BINARY).args(["validate", "/nowhere"]).envs(variables));
    assert_eq!(check.status.code(), Some(2));
    assert!(String::from_utf8(check.stderr).unwrap().starts_with("slidegate: cannot read /nowhere: "));
}

/// A program that collects the logs reads nothing but JSON.
#[test]
fn json_server_prints_nothing_on_standard_output() {
    let mut config = tempfile::NamedTempFile::new().unwrap();
    // It has a warning: the pattern is compared literally.
    let rules = "rules: [{ name: one, match: { api: '/a*/b' }, limit: 2, window: 1h }]";
    config.write_all(rules.as_bytes()).unwrap();
    let any = "127.0.0.1:0";
    let mut command = Command::new(BINARY);
    command
        .args(["--log", "json", "--http", any, "--grpc", "off", "--resp", "off", "--admin", any, "--config"]);
    let mut child = command.arg(config.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = process::Lines::of(child.stderr.take().unwrap());
    let mut log = String::new();
    while !log.contains(r#""event":"ready""#) {
        log += &(lines.next("the server is ready").expect("the server starts") + "\n");
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    let output = process::finish(child, "the server");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    while let Some(line) = lines.next("the end of the log") {
        log += &(line + "\n");
    }
    let events = objects(&log);
    assert!(events.iter().any(|event| event["level"] == "WARN"), "{log}");
    let names: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    let stop = ["signal", "listeners_closed", "connections_closed", "stopped"];
    assert_eq!(names, [["start", "listen", "listen", "ready"], stop].concat());
    assert!(log.contains(r#""protocol":"admin""#) && log.contains(r#""signal":"SIGINT""#), "{log}");
}

#[test]
fn messages_below_the_level_are_not_logged() {
    let logged = Logged::new(&[("SLIDEGATE_LOG_LEVEL", "warn")], RULES, &[]);
    let config = logged.server.config().to_owned();
    fs::write(&config, RULES.replace("limit: 2", "limit: 3")).unwrap();
    eventually("the limit is 3", || logged.server.get("/v1/rules").json()["rules"][0]["limit"] == 3);
    fs::write(&config, "rules: [{ name: one, limit: 0, window: 1m }]").unwrap();
    logged.until("mistakes");
    let log = logged.stop();
    let first: Vec<&str> = log.lines().filter(|line| !line.starts_with("  ")).collect();
    assert!(first.len() == 1 && first[0].contains("  WARN "), "{log}");
}

#[test]
fn each_decision_is_one_line_for_every_protocol() {
    let logged = Logged::new(&[], RULES, &["--log", "json", "--log-level", "debug"]);
    let server = &logged.server;
    let mut stream = server.connect();
    // Three requests on the fast path: the third is denied.
    let statuses = [(); 3].map(|()| post(&mut stream, "/v1/acquire", "", BODY));
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(post(&mut stream, "/v1/peek", "", r#"{"attributes":{"user":"bob"},"permits":2}"#), 200);
    // A request that hyper handles.
    assert_eq!(post(&mut stream, "/v1/acquire", "upgrade: none\r\n", BODY), 429);
    assert_eq!(post(&mut stream, "/v1/acquire", "", r#"{"attributes":{"user":"bob"},"permits":3}"#), 400);
    assert_eq!(post(&mut stream, "/v1/acquire", "", r#"{"attributes":{"other":"bob"}}"#), 200);
    // A request that the router handles.
    let batch = r#"{"requests":[{"attributes":{"user":"cid"}},{"resource":"r","limit":5,"window":"1s","permits":3}]}"#;
    assert_eq!(post(&mut stream, "/v1/acquire/batch", "", batch), 200);
    // Other calls, without a decision, are not logged.
    assert_eq!(post(&mut stream, "/v1/acquire", "", "{"), 400);
    assert_eq!(server.get("/v1/rules").status, 200);
    // Pipelined.
    let commands = "SG.CHECK user dan\r\nSG.CHECK user dan\r\nPING\r\nSG.CHECK user dan\r\nSG.PEEK ACQUIRE r 5 1000\r\nECHO end\r\n";
    redis(server.listener_address("redis"), commands, "end\r\n");
    assert!(envoy(server.listener_address("grpc"), &["eve"], &[]));
    assert!(envoy(server.listener_address("grpc"), &["ann", "eve"], &[]));

    let key = |user: &str| digest(&format!("one:user={user}"));
    let own = digest("ad-hoc:resource=r:window=1s");
    let allowed = |protocol: &str, keys: &str| json!({ "protocol": protocol, "kind": "acquire", "permits": 1, "allowed": true, "source": "store", "keys": keys });
    let denied = |protocol: &str, keys: &str| {
        let mut line = allowed(protocol, keys);
        line["allowed"] = false.into();
        line["denied_by"] = "one".into();
        line
    };
    let with = |mut line: Value, name: &str, value: Value| {
        line[name] = value;
        line
    };
    let expected = [
        allowed("http", &key("ann")),
        allowed("http", &key("ann")),
        denied("http", &key("ann")),
        with(with(allowed("http", &key("bob")), "kind", "peek".into()), "permits", 2.into()),
        denied("http", &key("ann")),
        json!({ "protocol": "http", "kind": "acquire", "error": "permits_exceed_limit" }),
        json!({ "protocol": "http", "kind": "acquire", "allowed": true, "source": "no-rule" }),
        allowed("http", &key("cid")),
        with(allowed("http", &own), "permits", 3.into()),
        allowed("resp", &key("dan")),
        allowed("resp", &key("dan")),
        denied("resp", &key("dan")),
        with(allowed("resp", &own), "kind", "peek".into()),
        allowed("grpc", &key("eve")),
        with(denied("grpc", &format!("{} {}", key("ann"), key("eve"))), "requests", 2.into()),
    ];
    let decisions = logged.decisions();
    for (decision, expected) in decisions.iter().zip(&expected) {
        assert_eq!(decision, expected);
    }
    assert_eq!(decisions.len(), expected.len(), "{decisions:#?}");
}

#[test]
fn each_call_after_a_decision_is_one_line() {
    let logged = Logged::new(&[], RULES, &["--log", "json", "--log-level", "debug"]);
    let server = &logged.server;
    let decision = server.post("/v1/acquire", BODY).json();
    let reservation = decision["reservation"].as_str().unwrap();
    let settle = json!({ "reservation": reservation, "permits": 0 }).to_string();
    assert_eq!(server.post("/v1/settle", &settle).status, 200);
    assert_eq!(server.post("/v1/report", r#"{"attributes":{"user":"ann"},"latency_ms":5}"#).status, 200);
    let commands = format!("SG.RELEASE {reservation}\r\nSG.SETTLE forged 0\r\nECHO end\r\n");
    redis(server.listener_address("redis"), &commands, "end\r\n");
    let key = digest("one:user=ann");
    let expected = [
        json!({ "protocol": "http", "kind": "acquire", "permits": 1, "allowed": true, "source": "store", "keys": key }),
        json!({ "protocol": "http", "kind": "settle", "outcome": "done", "keys": key }),
        json!({ "protocol": "http", "kind": "report", "outcome": "ignored" }),
        json!({ "protocol": "resp", "kind": "release", "outcome": "gone", "keys": key }),
        json!({ "protocol": "resp", "kind": "settle", "error": "invalid_request" }),
    ];
    assert_eq!(logged.decisions(), expected);
}

/// Names that would break a line, or a terminal.
const NASTY: &str =
    r#"{"attributes":{"user":"ann\nslidegate: forged\r\u001b[2J\u009b31m\u202e\u2028\u0000 \"'"}}"#;

#[test]
fn keys_are_logged_only_if_configured() {
    for (arguments, plain) in
        [(&["--log-level", "debug"][..], false), (&["--log-level", "debug", "--log-keys"], true)]
    {
        let logged = Logged::new(&[], RULES, arguments);
        assert_eq!(logged.server.post("/v1/acquire", BODY).status, 200);
        assert_eq!(logged.server.post("/v1/acquire", NASTY).status, 200);
        let log = messages(&logged.stop());
        let log = log.strip_suffix("received SIGTERM: stopping\nstopped\n").unwrap();
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines.len(), 2, "{log:?}");
        assert!(
            !log.chars().any(|c| c.is_control() && c != '\n' || "\u{202e}\u{2028}".contains(c)),
            "{log:?}"
        );
        let shown = if plain { "one:user=ann".to_owned() } else { digest("one:user=ann") };
        let start = format!(
            "decision protocol=http kind=acquire permits=1 allowed=true source=store keys={shown} took_us="
        );
        assert!(lines[0].starts_with(&start), "{log}");
        assert!(lines.iter().all(|line| line.starts_with("decision ")), "{log}");
        assert_eq!(log.contains("ann"), plain, "{log}");

        let logged = Logged::new(&[("SLIDEGATE_LOG", "json")], RULES, arguments);
        assert_eq!(logged.server.post("/v1/acquire", NASTY).status, 200);
        let mut lines = objects(&logged.stop());
        lines.retain(|line| line["message"] == "decision");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(lines[0]["keys"].as_str().unwrap().contains("ann"), plain, "{lines:?}");
    }
}

#[test]
fn tokens_are_never_logged() {
    const DATA: &str = "data-token-0123456789";
    const ADMIN: &str = "admin-token-0123456789";
    const WRONG: &str = "wrong-token-0123456789";
    let variables = [("SLIDEGATE_TOKEN", DATA), ("SLIDEGATE_ADMIN_TOKEN", ADMIN)];
    for format in ["text", "json"] {
        let logged = Logged::new(&variables, RULES, &["--log", format, "--log-level", "debug", "--log-keys"]);
        let server = &logged.server;
        for token in [DATA, ADMIN, WRONG] {
            let shown = format!("Bearer {token}");
            let mut stream = server.connect();
            for way in ["", "upgrade: none\r\n"] {
                post(&mut stream, "/v1/acquire", &format!("authorization: {shown}\r\n{way}"), BODY);
            }
            server.send("PUT", "/v1/rules", &[("authorization", &shown)], "rules: nonsense");
            server.send(
                "PUT",
                "/v1/rules",
                &[("authorization", &shown)],
                &RULES.replace("limit: 2", "limit: 3"),
            );
            let commands = format!("AUTH {token}\r\nSG.CHECK user ann\r\nAUTH {token} {token}\r\nQUIT\r\n");
            redis_until_closed(server.listener_address("redis"), &commands);
            envoy(server.listener_address("grpc"), &["ann"], &[("authorization", &shown)]);
        }
        let log = logged.stop();
        assert!(
            log.contains("decision") && log.contains("one:user=ann") && log.contains("version 2"),
            "{log}"
        );
        for token in [DATA, ADMIN, WRONG] {
            assert!(!log.contains(token), "{log}");
        }
    }
}
