//! Tests `slidegate bench`: its counts add up, its latencies include stalls, and it reports invalid options.

use std::process::{Child, Command, Output, Stdio};
use std::sync::RwLock;
use std::time::Duration;

use serde_json::{Value, json};
use slidegate_testkit::{
    Flavour, RedisServer, eventually, process,
    stub::{ALLOWED, Denying, Stub, answer},
};

use crate::server::{BINARY, Server};

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(BINARY);
    command.arg("bench").args(arguments).env_remove("SLIDEGATE_URL");
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn run(arguments: &[&str]) -> Output {
    process::finish(start(arguments), &format!("slidegate bench {}", arguments.join(" ")))
}

/// Runs a benchmark and returns its figures. Asserts that they add up.
fn figures(output: &Output) -> Value {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let figures: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("not JSON: {text}{stderr}"));
    let number = |name: &str| figures[name].as_u64().unwrap();
    let sum = |name: &str| -> u64 {
        figures[name].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
    };
    assert_eq!(number("asked"), number("allowed") + number("denied") + number("errors"), "{figures}");
    assert_eq!(sum("sources"), number("allowed") + number("denied"), "{figures}");
    assert_eq!(sum("error_messages"), number("errors"), "{figures}");
    assert_eq!(output.status.code(), Some(i32::from(number("asked") == number("errors"))), "{figures}");
    figures
}

fn bench(arguments: &[&str]) -> Value {
    figures(&run(&[arguments, &["--json"]].concat()))
}

/// A thousand requests for one key, of which a hundred fit.
const HUNDRED: [&str; 8] =
    ["--requests", "1000", "--distribution", "one", "--limit", "100", "--window", "1h"];

fn exactly_a_hundred(figures: &Value) {
    let counts = ["asked", "allowed", "denied", "errors"].map(|name| figures[name].as_u64().unwrap());
    assert_eq!(counts, [1000, 100, 900, 0], "{figures}");
    // Redis may not be called again for cached denials.
    let of = |source: &str| figures["sources"][source].as_u64().unwrap_or(0);
    assert_eq!(of("store") + of("deny-cache"), 1000, "{figures}");
    assert!(of("store") > 100, "{figures}");
}

#[test]
fn bench_of_a_server_admits_exactly_the_limit() {
    let server = Server::demo();
    let url = format!("http://{}", server.address);
    exactly_a_hundred(&bench(&[&["--url", &url][..], &HUNDRED].concat()));
    // Redis counts the requests that were sent.
    let body = r#"{"resource":"bench-0","limit":100,"window":"1h"}"#;
    assert_eq!(server.post("/v1/peek", body).json()["limits"][0]["used"], 100);
    // Open loop, another resource, and a path that ends in a slash.
    let url = url + "/";
    let open = ["--url", &url, "--resource", "other \"one\"", "--rate", "5000"];
    let figures = bench(&[&open[..], &HUNDRED].concat());
    exactly_a_hundred(&figures);
    assert_eq!(figures["open_loop"]["intended_per_second"], 5000);
    assert_eq!(figures["open_loop"]["unsent"], 0);
}

#[test]
fn bench_of_a_local_store_admits_exactly_the_limit() {
    let redis = RedisServer::start(Flavour::Redis7);
    let file = tempfile::NamedTempFile::new().unwrap();
    // A long deadline: on a busy machine Redis may take longer than the default, and then the node would decide.
    let config = format!("store: {}\nguard: {{ deadline: 20s }}\nrules: []\n", redis.url());
    std::fs::write(file.path(), config).unwrap();
    let path = file.path().to_str().unwrap();
    let at_redis = format!("redis at 127.0.0.1:{}, in this process", redis.port);
    for (store, target) in [
        (&["--store", "memory"][..], "memory, in this process"),
        (&["--config", path], &at_redis),
        // A flag overrides the file.
        (&["--config", path, "--store", "memory"], "memory, in this process"),
        (&["--config", path, "--store", &redis.url(), "--resource", "other"], &at_redis),
    ] {
        let figures = bench(&[store, &["--callers", "7"], &HUNDRED].concat());
        exactly_a_hundred(&figures);
        assert_eq!(figures["target"], target);
    }
}

#[test]
fn same_seed_sends_the_same_requests() {
    let allowed = |seed: &str| {
        let keys = ["--keys", "500", "--distribution", "zipf", "--limit", "3", "--window", "1h"];
        let run = ["--store", "memory", "--requests", "2000", "--seed", seed];
        bench(&[&run[..], &keys].concat())["allowed"].as_u64().unwrap()
    };
    assert_eq!(allowed("1"), allowed("1"));
    assert_ne!(allowed("1"), allowed("2"));
}

#[test]
fn duration_ends_the_run_and_warm_up_is_not_counted() {
    let run = ["--store", "memory", "--duration", "200ms", "--callers", "2", "--distribution", "one"];
    // The warm-up uses up the limit before the measurement starts.
    let figures = bench(&[&run[..], &["--warm-up", "100ms", "--limit", "1", "--window", "1h"]].concat());
    assert_eq!(figures["allowed"], 0);
    // `seconds` ends with the last answer, which on a busy machine comes some time before the end.
    assert!(figures["seconds"].as_f64().unwrap() > 0.1, "{figures}");
    // The run ends after `--requests` or `--duration`, whichever comes first.
    assert_eq!(bench(&[&run[..], &["--requests", "5"]].concat())["asked"], 5);
    let endless = ["--requests", "1000000000000", "--warm-up", "0s"];
    assert!(bench(&[&run[..], &endless].concat())["asked"].as_u64() < Some(1_000_000_000_000));
    // Requests that an impossible rate left over from the warm-up are not counted either.
    let rate = ["--warm-up", "200ms", "--rate", "10000000", "--callers", "1"];
    let open = ["--store", "memory", "--duration", "200ms"];
    let figures = bench(&[&open[..], &rate].concat());
    let sent = figures["asked"].as_u64().unwrap();
    assert!(sent > 0);
    assert_eq!(figures["open_loop"]["unsent"], 2_000_000 - sent, "{figures}");
    assert!(figures["latency_us"]["max"].as_u64().unwrap() > 100_000, "their wait counts: {figures}");
}

/// Server that stalls once for 400 ms: requests that arrive meanwhile wait.
fn stalling() -> Stub {
    let stall = RwLock::new(());
    Stub::start(move |n| {
        if n == 300 {
            let _closed = stall.write().unwrap();
            std::thread::sleep(Duration::from_millis(400));
        }
        drop(stall.read().unwrap());
        answer(200, ALLOWED)
    })
}

#[test]
fn open_loop_charges_a_stall_to_all_due_requests() {
    let stub = stalling();
    let run = ["--callers", "4", "--requests", "1000"];
    let open = bench(&[&["--url", &stub.url, "--rate", "500"][..], &run].concat());
    // 150 requests were due in the first 300 ms of the stall, though only four could be sent.
    let slow = open["slower_than"]["100ms"].as_u64().unwrap();
    // The stall is a fifth of the run: most requests are not delayed, unless the machine stalls as well.
    assert!((145..800).contains(&slow), "{open}");
    assert!(open["latency_us"]["p90"].as_u64().unwrap() > 100_000, "{open}");
    assert!(open["latency_us"]["max"].as_u64().unwrap() > 390_000, "{open}");
    assert!(open["open_loop"]["late"].as_u64().unwrap() >= 145, "{open}");
    assert_eq!((&open["asked"], &open["open_loop"]["unsent"]), (&json!(1000), &json!(0)));
}

#[test]
fn invalid_responses_are_errors() {
    let stub = Stub::start(|n| match n % 4 {
        0 => answer(200, ALLOWED),
        1 => answer(429, r#"{"source":"a\"b","more":[1],"allowed":false}"#),
        2 => answer(503, r#"{"error":{"code":"unavailable","message":"no store"}}"#),
        _ => answer(200, "hello"),
    });
    let figures = bench(&["--url", &stub.url, "--requests", "40", "--callers", "3"]);
    assert_eq!(figures["sources"], json!({ "store": 10, "a\"b": 10 }));
    let messages = json!({ "503: no store": 10, "200: not a response of Slidegate": 10 });
    assert_eq!(figures["error_messages"], messages);
    assert_eq!((&figures["allowed"], &figures["denied"]), (&json!(10), &json!(10)));
}

#[test]
fn number_of_reported_sources_is_bounded() {
    let stub =
        Stub::start(|n| answer(200, &json!({ "allowed": true, "source": format!("{n}") }).to_string()));
    let figures = bench(&["--url", &stub.url, "--requests", "100", "--callers", "1"]);
    assert_eq!(figures["sources"].as_object().unwrap().len(), 17);
    assert_eq!(figures["sources"]["(others)"], 84);
}

#[test]
fn run_without_a_response_fails() {
    let stub = Stub::start(|_| answer(503, "{}"));
    let figures = bench(&["--url", &stub.url, "--requests", "10"]);
    assert_eq!((&figures["errors"], &figures["allowed"]), (&json!(10), &json!(0)));
}

#[test]
fn lost_connections_are_reopened() {
    let polite = answer(200, ALLOWED).replace("content-length", "connection: close\r\ncontent-length");
    let stub = Stub::start(move |n| if n % 2 == 0 { polite.clone() } else { answer(200, ALLOWED) });
    let figures = bench(&["--url", &stub.url, "--requests", "100", "--callers", "3"]);
    assert_eq!((&figures["allowed"], &figures["errors"]), (&json!(100), &json!(0)));
    // A closed connection without a response costs only its own request.
    let stub = Stub::start(|n| if n == 50 { "connection: close".into() } else { answer(200, ALLOWED) });
    let figures = bench(&["--url", &stub.url, "--requests", "100", "--callers", "3"]);
    assert_eq!((&figures["allowed"], &figures["errors"]), (&json!(99), &json!(1)), "{figures}");
}

#[test]
fn missing_response_is_an_error() {
    let stub = Stub::start(|n| {
        if n == 0 {
            std::thread::sleep(Duration::from_secs(60));
        }
        answer(200, ALLOWED)
    });
    // The timeout is long enough for the nine other requests on a busy machine.
    let figures = bench(&["--url", &stub.url, "--requests", "10", "--callers", "2", "--timeout", "2s"]);
    assert_eq!(figures["error_messages"], json!({ "no answer within 2s": 1 }));
    assert_eq!(figures["allowed"], 9);
}

/// Ctrl-C while the server hangs, after it has answered a hundred requests.
#[test]
fn interrupted_run_reports_its_results() {
    let stub = Stub::start(|n| {
        if n >= 100 {
            std::thread::sleep(Duration::from_secs(600));
        }
        answer(200, ALLOWED)
    });
    let bench =
        ["--url", &stub.url, "--duration", "1h", "--timeout", "1h", "--warm-up", "0s", "--callers", "5"];
    let child = start(&[&bench[..], &["--json"]].concat());
    eventually("five requests wait for the server that hangs", || stub.seen() == 105);
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    let figures = figures(&process::finish(child, "slidegate bench after SIGINT"));
    assert_eq!((&figures["asked"], &figures["allowed"]), (&json!(105), &json!(100)));
    assert_eq!(figures["error_messages"], json!({ "no answer before the end of the run": 5 }));
}

#[test]
fn table_describes_the_results() {
    let output = run(&[&["--store", "memory", "--rate", "10000"][..], &HUNDRED].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let starts =
        ["target    memory, in this process", "sent      1,000 in 0.10 s: ", "allowed   100 (10.0 %)"];
    let more = ["denied    900 (90.0 %)", "errors    0 (0.0 %)", "latency   p50 ", "slower    than 1 ms "];
    let last =
        ["source    store 1,000", "rate      10,000 per second intended, ", "waited    ", "generator "];
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 11, "{text}");
    for (line, start) in lines.iter().zip([&starts[..], &more, &last].concat()) {
        // The duration depends on the machine, so it is not compared.
        let start = start.strip_suffix("in 0.10 s: ").unwrap_or(start);
        assert!(line.starts_with(start), "{line:?} does not start with {start:?}");
    }
    assert!(output.stderr.is_empty(), "no progress bar without a terminal");
}

/// Options, and their error messages. No request is sent.
#[test]
fn invalid_options_are_rejected_before_the_run() {
    let denying = Denying::new();
    let free = denying.address.port();
    let (dead, no_redis) = (format!("http://127.0.0.1:{free}"), format!("redis://:hush@127.0.0.1:{free}"));
    let server = Server::demo();
    let alive = format!("http://{}", server.address);
    let foreign = Stub::start(|_| String::new());
    let elsewhere = format!("{}/elsewhere", alive);
    for (arguments, message) in [
        (&["--url", &dead][..], format!("cannot reach {dead}: Connection refused")),
        (&["--store", &no_redis], format!("Redis at 127.0.0.1:{free} cannot be reached")),
        (&["--url", "https://x"], "`https://x` is not an address such as http://127.0.0.1:8080".into()),
        (&["--url", "nonsense"], "`nonsense` is not an address such as http://127.0.0.1:8080".into()),
        (&["--url", &elsewhere], format!("{elsewhere} answers 404: unknown path")),
        (
            &["--url", &alive, "--limit", "1000000"],
            format!("{alive} answers 400: limit must be between 1 and 100000, not 1000000"),
        ),
        (&["--store", "memory", "--permits", "2000"], "memory, in this process answers 2000 permits".into()),
        (&["--store", "disk"], "the store must be `memory`, `redis`, or an address".into()),
        (&["--config", "/nowhere"], "cannot read /nowhere".into()),
        (&["--url", &foreign.url, "--store", "memory"], "cannot be used with".into()),
        (&["--rate", "0"], "0 is not in 1..=10000000".into()),
        (&["--callers", "0"], "0 is not in 1..=10000".into()),
        (&["--callers", "10001"], "10001 is not in 1..=10000".into()),
        (&["--keys", "0"], "0 is not in 1..=100000000".into()),
        (&["--requests", "0"], "0 is not in".into()),
        (&["--duration", "0s"], "--duration must be between 1ms and 1d, not 0s".into()),
        (&["--duration", "5"], "not a length of time such as 250ms, 5s or 1h".into()),
        (&["--warm-up", "25h"], "--warm-up must be between 0s and 1d, not 1d 1h".into()),
        (&["--window", "0s"], "--window must be between 1ms and 366d, not 0s".into()),
        (&["--timeout", "0s"], "--timeout must be between 1ms and 1d, not 0s".into()),
        (&["--keys", "1", "--distribution", "zipf"], "zipf needs at least 2 keys".into()),
        (&["--keys", "2", "--distribution", "one"], "--distribution one has one key, not 2".into()),
        (&["--skew", "2"], "--skew needs --distribution zipf".into()),
        (&["--skew", "11", "--distribution", "zipf"], "--skew must be between 0 and 10, not 11".into()),
        (&["--skew", "NaN", "--distribution", "zipf"], "--skew must be between 0 and 10, not NaN".into()),
    ] {
        let output = run(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(&message), "{arguments:?}: {message:?} is not in {text:?}");
        assert!(output.stdout.is_empty() && !text.contains("hush"));
    }
    assert_eq!(foreign.seen(), 0);
}

#[test]
fn help_has_examples() {
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    for word in
        ["With --rate the load is an open loop", "slidegate bench --rate 5000", "--distribution", "zipf"]
    {
        assert!(help.contains(word), "{word} is not in:\n{help}");
    }
}
