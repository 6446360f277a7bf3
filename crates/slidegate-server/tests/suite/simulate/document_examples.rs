//! Tests the examples of the source documents with the program: exact counts.

use serde_json::Value;

use super::{Bench, json, number, run_in};

const PER_SECOND: &str = "rules: [{ name: api, limit: 100, window: 1s }]";

/// Result of each algorithm for a timeline: its name, the allowed requests, and the most over the limit in any window.
fn compared(rules: &str, at: &str, algorithms: &str) -> Vec<(String, u64, u64)> {
    let report = Bench::new(rules).report(&["--pattern", "timeline", "--at", at, "--algorithms", algorithms]);
    let row = |row: &Value| {
        (row["algorithm"].as_str().unwrap().to_owned(), number(row, "allowed"), number(row, "overshoot"))
    };
    report["algorithms"].as_array().unwrap().iter().map(row).collect()
}

#[track_caller]
fn assert_lets_through(rules: &str, at: &str, expected: &[(&str, u64, u64)]) {
    let names: Vec<&str> = expected.iter().map(|(name, ..)| *name).collect();
    let expected: Vec<_> = expected.iter().map(|(name, n, over)| (name.to_string(), *n, *over)).collect();
    assert_eq!(compared(rules, at, &names.join(",")), expected);
}

/// Returns the allowed requests of a timeline, second by second.
fn by_second(rules: &str, arguments: &[&str], seconds: usize) -> Vec<u64> {
    let bench = Bench::new(rules);
    bench.report(&[arguments, &["--decisions", "decisions"]].concat());
    let mut counts = vec![0; seconds];
    for line in std::fs::read_to_string(bench.path("decisions")).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let second = (number(&line, "at") - 946_684_800_000_000) / 1_000_000;
        counts[usize::try_from(second).unwrap()] += u64::from(line["allowed"] == true);
    }
    counts
}

/// Problem 1: 200 in 0.02 s at "100 a second".
#[test]
fn boundary_burst() {
    let expected = [
        ("sliding-window", 100, 0),
        ("fixed-window", 200, 100),
        ("sliding-counter", 101, 1),
        ("time-slice", 100, 0),
        ("token-bucket", 102, 2),
    ];
    assert_lets_through(PER_SECOND, "0.99s=100,1.01s=100", &expected);
    // The pattern `boundary-burst` has the same requests.
    let report =
        Bench::new(PER_SECOND).report(&["--pattern", "boundary-burst", "--algorithms", "fixed-window"]);
    let rows = report["algorithms"].as_array().unwrap();
    let counts: Vec<_> =
        rows.iter().map(|row| (number(row, "allowed"), number(row, "allowed_beyond"))).collect();
    assert_eq!(counts, [(100, 0), (200, 100)], "the exact algorithm is added for comparison");
}

/// Problem 1, its milder form: 50 at 0.9 s and 50 at 1.1 s are 100 in a second, which is the limit. With 60 and 60
/// requests the algorithms differ.
#[test]
fn fixed_window_edge() {
    let same = [
        ("sliding-window", 100, 0),
        ("fixed-window", 100, 0),
        ("time-slice", 100, 0),
        ("token-bucket", 100, 0),
    ];
    assert_lets_through(PER_SECOND, "0.9s=50,1.1s=50", &same);
    assert_lets_through(
        PER_SECOND,
        "0.9s=60,1.1s=60",
        &[("sliding-window", 100, 0), ("fixed-window", 120, 20)],
    );
}

/// Problem 2: a fixed window starts at the same moment for all clients, so the limit does not hold in other intervals
/// of a second.
#[test]
fn time_alignment() {
    let rush = "0.0s=100,1.0s=100,2.0s=100";
    assert_lets_through(PER_SECOND, rush, &[("sliding-window", 300, 0), ("fixed-window", 300, 0)]);
    let rush = "0.5s=100,1.0s=100,1.5s=100";
    assert_lets_through(PER_SECOND, rush, &[("sliding-window", 200, 0), ("fixed-window", 200, 100)]);
}

/// Problem 3: 80 at once and 20 soon after leave nothing for the rest of the window; a bucket refills meanwhile.
#[test]
fn burst_within_a_window() {
    let at =
        "0.0s=80,0.1s=20,0.2s=10,0.3s=10,0.4s=10,0.5s=10,0.6s=10,0.7s=10,0.8s=10,0.9s=10,1.0s=80,1.1s=20";
    let expected = [("sliding-window", 200, 0), ("fixed-window", 200, 0), ("token-bucket", 205, 5)];
    let rows = compared(PER_SECOND, at, "sliding-window,fixed-window,token-bucket");
    assert_eq!(
        rows[..2],
        expected[..2].iter().map(|(name, n, over)| (name.to_string(), *n, *over)).collect::<Vec<_>>()
    );
    assert!(rows[2].1 > 200, "a bucket grants the refilled permits: {rows:?}");
}

/// Problem 4: "1000 a minute" may be all used in ten seconds, by any algorithm; a second rule with a shorter window
/// prevents that.
#[test]
fn precision_of_the_window() {
    let steady = ["--pattern", "steady", "--rate", "100", "--duration", "1m"];
    let minute = "rules: [{ name: minute, limit: 1000, window: 60s }]";
    for algorithm in ["sliding-window", "fixed-window"] {
        let rules = minute.replace("60s", &format!("60s, algorithm: {algorithm}"));
        let counts = by_second(&rules, &steady, 60);
        assert_eq!(
            (counts[..10].iter().sum::<u64>(), counts[10..].iter().sum::<u64>()),
            (1_000, 0),
            "{algorithm}"
        );
    }
    let both = "rules: [{ name: second, limit: 20, window: 1s }, { name: minute, limit: 1000, window: 60s }]";
    let counts = by_second(both, &steady, 60);
    assert!(counts[..50].iter().all(|n| *n == 20), "{counts:?}");
    assert_eq!(counts.iter().sum::<u64>(), 1_000);
}

/// Problem 5: unused permits of a window are lost, unless a bucket keeps them.
#[test]
fn unused_quota() {
    let at = "0.0s=30,1.0s=170";
    assert_lets_through(PER_SECOND, at, &[("sliding-window", 130, 0), ("fixed-window", 130, 0)]);
    let bucket = "rules: [{ name: api, limit: 100, window: 1s, algorithm: token-bucket, burst: 200 }]";
    let report = Bench::new(bucket).report(&["--pattern", "timeline", "--at", at]);
    assert_eq!(number(&report, "allowed"), 200);
}

/// Problem 6: nodes whose clocks differ. A trace of two nodes, one of them 200 ms behind, is evaluated with one clock
/// that never runs back.
#[test]
fn node_clocks_differ() {
    let bench = Bench::new("rules: [{ name: api, limit: 1, window: 1s }]");
    bench.file("trace.csv", "time\n10.500\n10.300\n11.499\n11.300\n11.500\n");
    let report = bench.report(&["--trace", "trace.csv"]);
    assert_eq!((number(&report, "allowed"), number(&report, "denied")), (2, 3));
    assert_eq!((number(&report["late"], "requests"), number(&report["late"], "most_us")), (2, 200_000));
}

/// Problem 7: 20, 50, 80, 100.
#[test]
fn warm_up() {
    let rules = "rules: [{ name: orders, limit: 100, window: 1s, algorithm: fixed-window, \
                 warm-up: { from: 20%, over: 4s, idle: 60s, shape: steps } }]";
    let steady = ["--pattern", "steady", "--rate", "1000", "--duration", "5s"];
    assert_eq!(by_second(rules, &steady, 5), [20, 50, 80, 100, 100]);
    let exact = rules.replace(", algorithm: fixed-window", "");
    assert_eq!(by_second(&exact, &steady, 5), [20, 50, 80, 100, 100]);
    let cold = by_second(PER_SECOND, &steady, 5);
    assert_eq!(cold, [100; 5]);
}

/// Document 004: three in five seconds by address, first with attempts counted, and then with admissions only.
#[test]
fn ip_timeline() {
    let rules = |count: &str| {
        format!(
            "rules: [{{ name: ip, match: {{ api: /login }}, key: [ip], limit: 3, window: 5s, count: {count}, code: 10007 }}]"
        )
    };
    let allowed = |count: &str| decisions(&rules(count), "0s,2s,3s,4s,5.1s,6s,6.5s");
    assert_eq!(allowed("attempts"), [true, true, true, false, false, false, false]);
    assert_eq!(allowed("admitted"), [true, true, true, false, true, false, false]);
}

/// Document 004: five in sixty seconds by user.
#[test]
fn user_timeline() {
    let rules = "rules: [{ name: user, key: [user], limit: 5, window: 60s, code: 10008 }]";
    let allowed = decisions(rules, "0s,2s,4s,6s,8s,9s,60s");
    assert_eq!(allowed, [true, true, true, true, true, false, true]);
}

/// Document 004, both rules at once: an address over its limit does not change the user's count.
#[test]
fn ip_and_user() {
    let bench = Bench::new(slidegate_server::DEMO);
    let lines = ["1.2.3.4", "1.2.3.4", "1.2.3.4", "1.2.3.4", "1.2.3.5", "1.2.3.5", "1.2.3.5"];
    let line = |ip: &&str| {
        format!(r#"{{"at":1794774215407676,"attributes":{{"api":"/login","ip":"{ip}","user":"alice"}}}}"#)
            + "\n"
    };
    bench.file("trace", lines.iter().map(line).collect::<String>());
    bench.report(&["--trace", "trace", "--decisions", "decisions"]);
    let decisions = std::fs::read_to_string(bench.path("decisions")).unwrap();
    let denied =
        |line: &str| serde_json::from_str::<Value>(line).unwrap()["denied_by"].as_str().map(str::to_owned);
    let denied: Vec<_> = decisions.lines().map(denied).collect();
    let [none, ip, user] = [None, Some("login-per-ip".to_owned()), Some("login-per-user".to_owned())];
    assert_eq!(denied, [none.clone(), none.clone(), none.clone(), ip, none.clone(), none, user]);
}

fn decisions(rules: &str, at: &str) -> Vec<bool> {
    let bench = Bench::new(rules);
    bench.report(&["--pattern", "timeline", "--at", at, "--decisions", "decisions"]);
    let lines = std::fs::read_to_string(bench.path("decisions")).unwrap();
    lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["allowed"] == true).collect()
}

/// The first example of docs/reference/simulate.md prints the output that it shows.
#[test]
fn suggest_needs_no_rules_file() {
    let folder = tempfile::TempDir::new().unwrap();
    let arguments =
        ["--suggest", "0%", "--pattern", "timeline", "--at", "0s=7,1s=3", "--window", "1s,1m", "--json"];
    let found = json(&run_in(folder.path(), &arguments, b""));
    let limits: Vec<u64> =
        found["suggestions"].as_array().unwrap().iter().map(|s| number(s, "limit")).collect();
    assert_eq!(limits, [7, 10]);
}
