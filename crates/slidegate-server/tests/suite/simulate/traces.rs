//! Tests traces: every format gives the same requests, and errors are reported with their line.

use std::io::Write;
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use slidegate_testkit::process;

use super::{Bench, denial, json as read, number, stderr, stdout};
use crate::server::BINARY;

const RULES: &str = "rules: [{ name: per-ip, match: { api: /a* }, key: [ip], limit: 2, window: 10s }]";

/// Three requests of one address in ten seconds, one of another address, and one that no rule matches.
const LOG: &str = "\
1.2.3.4 - - [17/Nov/2026:01:50:50 +0000] \"GET /a?x=1 HTTP/1.1\" 200 5 \"-\" \"curl\"
1.2.3.4 - alice [17/Nov/2026:01:50:51 +0000] \"POST /a/b HTTP/1.1\" 200 5
5.6.7.8 - - [17/Nov/2026:01:50:51 +0000] \"GET /a HTTP/2.0\" 200 5 \"https://x/\" \"a \\\"b\\\" c\"
1.2.3.4 - - [17/Nov/2026:02:50:52 +0100] \"GET /a HTTP/1.1\" 200 5 \"-\" \"-\"
1.2.3.4 - - [17/Nov/2026:01:50:53 +0000] \"GET /b HTTP/1.1\" 200 5 \"-\" \"-\"
";

const JSON: &str = r#"{"time":"2026-11-17T01:50:50Z","request":{"remote_ip":"1.2.3.4"},"uri":"/a"}
{"time":1794880251,"request":{"remote_ip":"1.2.3.4"},"uri":"/a/b"}
{"time":1794880251000,"request":{"remote_ip":"5.6.7.8"},"uri":"/a"}
{"time":"1794880252.000","request":{"remote_ip":"1.2.3.4"},"uri":"/a"}
{"time":"2026-11-17 01:50:53","request":{"remote_ip":"1.2.3.4"},"uri":"/b"}
"#;

const CSV: &str = "when,client,\"the api\"\r
2026-11-17T01:50:50Z,1.2.3.4,/a\r
2026-11-17T01:50:51Z,1.2.3.4,\"/a,\"\"b\"\"\"\r
2026-11-17T01:50:51Z,5.6.7.8,/a\r
2026-11-17T01:50:52Z,1.2.3.4,/a\r
2026-11-17T01:50:53Z,1.2.3.4,/b\r
";

const RECORDING: &str = r#"{"at":1794880250000000,"attributes":{"api":"/a","ip":"1.2.3.4"},"permits":1,"allowed":true}
{"at":1794880251000000,"attributes":{"api":"/a/b","ip":"1.2.3.4"},"allowed":true,"denied_by":null}
{"at":1794880251000000,"attributes":{"api":"/a","ip":"5.6.7.8"}}
{"at":1794880252000000,"attributes":{"ip":"1.2.3.4","api":"/a"},"allowed":false,"denied_by":"per-ip"}
{"at":1794880253000000,"attributes":{"api":"/b","ip":"1.2.3.4"},"permits":3,"allowed":true}
"#;

const ACCESS: [&str; 2] = ["--attribute", "api=path"];
const LINES: [&str; 4] = ["--field", "ip=request.remote_ip", "--attribute", "api=uri"];
const TABLE: [&str; 6] = ["--time", "when", "--attribute", "ip=client", "--attribute", "api=the api"];

fn gzipped(text: &str) -> Vec<u8> {
    // Two gzip members, as in rotated logs that were concatenated.
    let (one, two) = text.split_at(text.len() / 2);
    let pack = |text: &str| {
        let mut packer = GzEncoder::new(Vec::new(), Compression::default());
        packer.write_all(text.as_bytes()).unwrap();
        packer.finish().unwrap()
    };
    [pack(one), pack(two)].concat()
}

#[track_caller]
fn assert_the_five(report: &Value, format: &str) {
    assert_eq!(report["format"], format);
    assert_eq!((number(report, "requests"), number(report, "denied"), number(report, "unruled")), (5, 1, 1));
    let rule = &report["rules"][0];
    assert_eq!((number(rule, "asked"), number(rule, "allowed"), number(rule, "denied")), (4, 3, 1));
    assert_eq!((number(rule, "keys"), number(rule, "denied_keys")), (2, 1));
    let hit = &rule["hardest_hit"][0];
    assert_eq!(
        (&hit["key"], &hit["asked"], &hit["denied"]),
        (&json!("per-ip:ip=1.2.3.4"), &json!(3), &json!(1))
    );
    let worst = &rule["worst_window"];
    assert_eq!(
        (number(worst, "admitted"), number(worst, "limit"), number(worst, "until_us")),
        (2, 2, 1_794_880_251_000_000)
    );
    assert_eq!(report["from"], "2026-11-17T01:50:50Z");
    assert_eq!(report["to"], "2026-11-17T01:50:53Z");
    assert_eq!(report["bad_lines"]["count"], 0);
}

#[test]
fn every_format_compressed_or_not_from_file_or_pipe() {
    let bench = Bench::new(RULES);
    let formats: [(&str, &str, &[&str]); 4] = [
        ("combined", LOG, &ACCESS),
        ("json", JSON, &LINES),
        ("csv", CSV, &TABLE),
        ("recording", RECORDING, &[]),
    ];
    for (format, text, mapping) in formats {
        let packed = gzipped(text);
        for content in [text.as_bytes(), &packed] {
            bench.file("trace", content);
            assert_the_five(&bench.report(&[mapping, &["--trace", "trace"]].concat()), format);
            let piped = [mapping, &["--trace", "-", "--format", format, "--json"]].concat();
            assert_the_five(&read(&bench.fed(&piped, content)), format);
        }
    }
}

#[test]
fn recording_is_compared_with_its_decisions() {
    let bench = Bench::new(RULES);
    bench.file("trace", RECORDING);
    let report = bench.report(&["--trace", "trace"]);
    assert_eq!(report["recorded"], json!({ "compared": 4, "differences": 0, "first": [] }));
    bench.file("trace", RECORDING.replace("\"allowed\":false,\"denied_by\":\"per-ip\"", "\"allowed\":true"));
    let recorded = &bench.report(&["--trace", "trace"])["recorded"];
    assert_eq!(recorded["differences"], 1);
    assert_eq!(recorded["first"], json!([{ "request": 4, "then": "allowed", "now": "denied by per-ip" }]));
    bench.file("trace", RECORDING.replace("\"denied_by\":\"per-ip\"", "\"denied_by\":\"other\""));
    assert_eq!(bench.report(&["--trace", "trace"])["recorded"]["differences"], 1);
}

#[test]
fn recording_may_have_ad_hoc_limits() {
    let bench = Bench::new("rules: []");
    let line = |ms: u64| {
        format!(
            "{{\"at\":{},\"resource\":\"user123\",\"limit\":2,\"window\":\"1s\",\"permits\":1}}\n",
            1_000_000 + ms * 1_000
        )
    };
    bench.file("trace", [0, 500, 999, 1_000, 1_400].map(line).concat());
    let report = bench.report(&["--trace", "trace", "--decisions", "decisions"]);
    assert_eq!((number(&report, "allowed"), number(&report, "denied")), (3, 2));
    assert_eq!((&report["rules"][0]["rule"], &report["rules"][0]["denied"]), (&json!("ad-hoc"), &json!(2)));
    let decisions = std::fs::read_to_string(bench.path("decisions")).unwrap();
    let lines: Vec<&str> = decisions.lines().collect();
    assert_eq!(lines[0], r#"{"at":1000000,"allowed":true,"retry_after_us":0}"#);
    assert_eq!(lines[2], r#"{"at":1999000,"allowed":false,"denied_by":"ad-hoc","retry_after_us":1000}"#);
    // Impossible requests get the same messages as over HTTP.
    bench.file(
        "trace",
        "{\"at\":5,\"resource\":\"r\",\"limit\":0,\"window\":\"1s\"}\n{\"at\":6,\"resource\":\"r\"}",
    );
    let report = bench.report(&["--trace", "trace"]);
    assert_eq!(
        report["bad_lines"]["first"],
        json!([{ "line": 1, "why": "limit must be between 1 and 100000, not 0" }])
    );
}

#[test]
fn invalid_lines_are_counted_and_shown() {
    let bench = Bench::new(RULES);
    let mut log = "\u{1b}[31mnot a line\n\n".to_owned();
    log.push_str(LOG);
    log.push_str(&"x".repeat(100_000));
    log.push_str("\n1.2.3.4 - - [99/Nov/2026:01:50:53 +0000] \"GET /b HTTP/1.1\" 200 5\n");
    log.push_str("1.2.3.4 - - [17/Nov/2026:01:50:59 +0000] \"GET /b");
    bench.file("access.log", &log);
    let report = bench.report(&["--trace", "access.log", "--attribute", "api=path"]);
    let line = |line: u64, why: &str| json!({ "line": line, "why": why });
    let log_line = "not a line of an access log";
    assert_eq!(
        report["bad_lines"]["first"],
        json!([
            line(1, log_line),
            line(8, "the line is longer than 65536 bytes"),
            line(9, "the time is not in the format of an access log"),
            line(10, log_line),
        ])
    );
    assert_eq!((number(&report, "requests"), number(&report["bad_lines"], "count")), (5, 4));
    let text = bench.run(&["--trace", "access.log", "--attribute", "api=path"]);
    assert!(stdout(&text).contains("bad lines 4\n          line 1: not a line"), "{}", stdout(&text));
    let strict = bench.run(&["--trace", "access.log", "--attribute", "api=path", "--strict"]);
    assert_eq!(denial(&strict), format!("access.log:1: {log_line}"));
}

#[test]
fn control_characters_of_a_trace_are_escaped() {
    let bench = Bench::new("rules: [{ name: per-ip, key: [ip], limit: 1, window: 10s }]");
    let line = "{\"time\":1,\"ip\":\"\\u001b[2J<script>\\u0007\"}\n{\"time\":\"\\u001b]0;x\",\"ip\":\"1\"}\n";
    bench.file("trace", line.repeat(3));
    let output = bench.run(&["--trace", "trace"]);
    let text = stdout(&output);
    assert!(text.contains("per-ip:ip=%1B[2J<script>%07"), "{text}");
    assert!(text.contains("line 2: \"\\u{1b}]0;x\" is not a time"), "{text}");
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
}

#[test]
fn invalid_options_are_rejected() {
    let bench = Bench::new(RULES);
    bench.file("access.log", LOG);
    bench.file("table", CSV);
    bench.file("recording", RECORDING);
    bench.file("empty", "");
    bench.file("words", "hello\nworld\n");
    bench.file("bad.yaml", "rules:\n  - { name: a, limit: 0, window: 1s }\n  - { name: a, limit: 1 }\n");
    let says = |arguments: &[&str]| denial(&bench.run(arguments));
    assert!(says(&["--trace", "missing"]).starts_with("cannot read missing: "));
    assert_eq!(
        says(&["--trace", "access.log", "--attribute", "api=pth"]),
        "--attribute names the field `pth`, which an access log does not have: it has `ip`, `user`, `method`, `path`, `host`, \
         `referer`, `user-agent`"
    );
    assert_eq!(
        says(&["--trace", "table", "--time", "when", "--attribute", "api=uri"]),
        "--attribute names the field `uri`, which the header of the table does not have: it has `when`, `client`, `the api`"
    );
    assert_eq!(
        says(&["--trace", "table"]),
        "the header of the table has no time field (one of time, timestamp, @timestamp, ts, at, date): name it with --time"
    );
    assert!(
        says(&["--trace", "recording", "--constant", "a=b"])
            .starts_with("a recording contains time, attributes and permits")
    );
    assert_eq!(
        says(&["--trace", "words"]),
        "cannot detect the format of words: set --format to combined, json, csv or recording"
    );
    assert_eq!(
        says(&["--trace", "words", "--format", "json"]),
        "words has no valid line (expected JSON lines with a time): line 1: not JSON: expected value at column 1"
    );
    assert_eq!(
        says(&["--trace", "empty", "--format", "combined"]),
        "empty has no valid line (expected an access log): all lines are empty"
    );
    assert_eq!(says(&["--trace", "empty"]), "empty is empty");
    assert_eq!(says(&[]), "no traffic: set --trace or --pattern");
    assert_eq!(
        says(&["--trace", "access.log", "--attribute", "api=path", "--constant", "api=/a"]),
        "`api` is given twice by --attribute and --constant"
    );
    let mistakes = super::run_in(bench.folder.path(), &["--rules", "bad.yaml", "--trace", "access.log"], b"");
    assert_eq!(
        denial(&mistakes).lines().collect::<Vec<_>>(),
        [
            "bad.yaml has mistakes:",
            "  bad.yaml:2:23: limit must be between 1 and 1000000000000, not 0",
            "  bad.yaml:3:5: rule `a` needs `window`",
            "  bad.yaml:3:13: another rule is already named `a`",
        ]
    );
    let unknown = bench.run(&["--pattern", "tsunami"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("flash-sale"), "{}", stderr(&unknown));
}

#[test]
fn conflicting_options_are_rejected() {
    let bench = Bench::new(RULES);
    bench.file("access.log", LOG);
    let trace = ["--trace", "access.log"];
    let pattern = ["--pattern", "steady"];
    for (traffic, more) in [
        (trace, ["--rate", "5"]),
        (trace, ["--duration", "5s"]),
        (trace, ["--clients", "5"]),
        (trace, ["--seed", "5"]),
        (trace, ["--at", "1s=5"]),
        (pattern, ["--format", "json"]),
        (pattern, ["--attribute", "api=path"]),
        (pattern, ["--time", "when"]),
        (pattern, ["--permits", "n"]),
    ] {
        let says = denial(&bench.run(&[traffic, more].concat()));
        assert!(says.contains("cannot be used with"), "{says}");
    }
    let says = denial(&bench.run(&["--trace", "access.log", "--suggest", "1%", "--decisions", "x"]));
    assert!(says.contains("cannot be used with"), "{says}");
}

#[test]
fn input_file_is_not_overwritten() {
    let bench = Bench::new(RULES);
    bench.file("access.log", LOG);
    bench.file("old.yaml", RULES);
    std::os::unix::fs::symlink(bench.path("access.log"), bench.path("link")).unwrap();
    let trace = ["--trace", "access.log", "--against", "old.yaml"];
    for (more, says) in [
        (&["--decisions", "access.log"][..], "--decisions would overwrite the file of --trace: access.log"),
        (&["--html", "link"], "--html would overwrite the file of --trace: link"),
        (&["--html", "./rules.yaml"], "--html would overwrite the file of --rules: ./rules.yaml"),
        (&["--decisions", "old.yaml"], "--decisions would overwrite the file of --against: old.yaml"),
        (&["--html", "new", "--decisions", "./new"], "--decisions would overwrite the file of --html: ./new"),
    ] {
        assert_eq!(denial(&bench.run(&[&trace, more].concat())), says);
    }
    let read = |name| std::fs::read_to_string(bench.path(name)).unwrap();
    assert_eq!(
        (read("access.log"), read("rules.yaml"), read("old.yaml")),
        (LOG.into(), RULES.into(), RULES.into())
    );
    assert!(!bench.path("new").exists());
}

/// A request that repeats an id is not charged again, for every algorithm.
#[test]
fn repeated_ids_are_not_over_the_limit() {
    let line = |n: u64, id: &str| format!("{{\"at\":{n},\"attributes\":{{\"ip\":\"1\"}},\"id\":\"{id}\"}}\n");
    let trace: String =
        [(5, "a"), (5, "a"), (6, "a"), (7, "b"), (8, "c"), (8, "b")].map(|(n, id)| line(n, id)).concat();
    for quota in [
        "limit: 2, window: 60s",
        "limit: 2, window: 60s, count: attempts",
        "limit: 2, window: 60s, algorithm: fixed-window",
        "limit: 2, window: 60s, algorithm: time-slice, slices: 6",
        "limit: 2, window: 60s, algorithm: token-bucket, burst: 2",
    ] {
        let bench = Bench::new(&format!("rules: [{{ name: per-ip, key: [ip], {quota} }}]"));
        bench.file("trace", &trace);
        let report = bench.report(&["--trace", "trace"]);
        assert_eq!((number(&report, "allowed"), number(&report, "denied")), (5, 1), "{quota}");
        assert_eq!(report["rules"][0]["worst_window"]["admitted"], 2, "{quota}");
    }
}

#[test]
fn times_far_back_are_reported() {
    let bench = Bench::new("rules: [{ name: per-ip, key: [ip], limit: 1, window: 10s }]");
    bench.file("trace", "time,ip\n2026-11-17T00:00:00Z,1\n2099-01-01T00:00:00Z,1\n2026-11-17T00:00:01Z,1\n");
    let report = bench.report(&["--trace", "trace"]);
    let note = report["notes"][0].as_str().unwrap();
    assert!(
        note.starts_with("times run back by up to ") && note.ends_with("check the times of the trace"),
        "{note}"
    );
}

#[test]
fn truncated_file_is_read_as_far_as_possible() {
    let bench = Bench::new("rules: [{ name: per-ip, key: [ip], limit: 1, window: 10s }]");
    let lines: String =
        (0..5_000).map(|n| format!("{{\"time\":{n},\"ip\":\"{}\"}}\n", n * 7919 % 1_000)).collect();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(lines.as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    bench.file("trace.gz", &packed[..packed.len() / 2]);
    let report = bench.report(&["--trace", "trace.gz"]);
    let requests = number(&report, "requests");
    assert!((1_000..4_000).contains(&requests), "{requests}");
    let note = report["notes"][0].as_str().unwrap();
    assert!(note.starts_with(&format!("cannot read trace.gz after line {requests}: ")), "{note}");
    assert!(denial(&bench.run(&["--trace", "trace.gz", "--strict"])).starts_with("cannot read trace.gz: "));
}

#[test]
fn attribute_without_a_field_uses_a_well_known_other_name() {
    let bench = Bench::new(RULES);
    let mapped = |pairs: &[(&str, &str)]| -> Value {
        pairs.iter().map(|(attribute, field)| json!({ "attribute": attribute, "field": field })).collect()
    };
    bench.file("access.log", LOG);
    bench.file("log.json", JSON);
    bench.file("table.csv", CSV.replace("when,client,\"the api\"", "time,remote_addr,uri"));
    for (trace, format, pairs) in [
        ("access.log", "combined", &[("api", "path")][..]),
        ("log.json", "json", &[("api", "uri"), ("ip", "request.remote_ip")]),
        ("table.csv", "csv", &[("api", "uri"), ("ip", "remote_addr")]),
    ] {
        let report = bench.report(&["--trace", trace]);
        assert_the_five(&report, format);
        assert_eq!(report["mapped"], mapped(pairs), "{trace}");
    }
    let text = stdout(&bench.run(&["--trace", "access.log"]));
    let line =
        "\nattribute `api` is the field `path`, because the trace has no `api`; --attribute names another\n";
    assert!(text.contains(line), "{text}");
    // Options come first.
    for (option, unruled) in [(["--attribute", "api=method"], 5), (["--constant", "api=/a"], 0)] {
        let report = bench.report(&[&["--trace", "access.log"][..], &option].concat());
        assert_eq!((&report["mapped"], number(&report, "unruled")), (&json!([]), unruled), "{option:?}");
    }
    // A suggestion reads the trace in the same way.
    let suggest = ["--trace", "access.log", "--suggest", "0%"];
    assert_eq!(bench.report(&suggest)["mapped"], mapped(&[("api", "path")]));
    let text = stdout(&bench.run(&suggest));
    assert!(text.contains(line), "{text}");
    // A field of the attribute's own name comes first. If only later lines have it, the report says so.
    let lines = ["\"path\":\"/a\",\"api\":\"/b\"", "\"path\":\"/a\""];
    let trace = |lines: [&str; 2]| {
        let line = |line: &str| format!("{{\"time\":1,\"ip\":\"1\",{line}}}\n");
        bench.file("mixed.json", lines.map(line).concat());
        bench.report(&["--trace", "mixed.json"])
    };
    let report = trace(lines);
    assert_eq!((&report["mapped"], number(&report, "unruled")), (&json!([]), 2), "{report}");
    let report = trace([lines[1], lines[0]]);
    assert_eq!((&report["mapped"], number(&report, "unruled")), (&json!([]), 1), "{report}");
    assert_eq!(
        report["notes"][0],
        "`api` is the field `path` in the lines before the first line with `api` (lines: 1): --attribute api=FIELD names one field for \
         all lines"
    );
    // A name with a meaning of its own in the rules is not another name of `api`.
    let bench = Bench::new("rules: [{ name: a, match: { api: /a, path: /a }, limit: 1, window: 1s }]");
    bench.file("access.log", LOG);
    let report = bench.report(&["--trace", "access.log"]);
    assert_eq!((&report["mapped"], number(&report, "unruled")), (&json!([]), 5), "{report}");
}

#[test]
fn unknown_attribute_is_reported() {
    let bench = Bench::new(&RULES.replace("api: /a*", "plan: free"));
    bench.file("access.log", LOG);
    let report = bench.report(&["--trace", "access.log"]);
    let note = "an access log has no `plan`, which the rules use: set --attribute plan=path, or --constant plan=VALUE";
    assert!(report["notes"].as_array().unwrap().contains(&json!(note)), "{report}");
    assert_eq!(number(&report, "unruled"), 5);
    let report = bench.report(&["--trace", "access.log", "--constant", "plan=free"]);
    assert_eq!(number(&report, "unruled"), 0);
    let bench = Bench::new("rules: [{ name: a, key: [host, ip], limit: 1, window: 1s }]");
    let note = |trace: &str| bench.report(&["--trace", trace])["notes"][0].clone();
    bench.file("access.log", LOG);
    assert_eq!(note("access.log"), "no line has the field `host`");
    bench.file("log.json", "{\"time\":1,\"ip\":\"1\",\"host\":[\"a\"]}");
    assert_eq!(note("log.json"), "no line has the field `host`");
}

#[test]
fn interrupted_simulation_prints_a_report() {
    let bench = Bench::new("rules: [{ name: per-ip, key: [ip], limit: 1, window: 10s }]");
    let mut child = Command::new(BINARY)
        .args(["simulate", "--rules", "rules.yaml", "--trace", "-", "--format", "json", "--json"])
        .current_dir(bench.folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let lines = "{\"time\":1,\"ip\":\"1.2.3.4\"}\n".repeat(10_000);
    // The input is larger than the buffer of the pipe, so the program has started to read.
    input.write_all(lines.as_bytes()).unwrap();
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    // The program ends although the input never ends.
    let writer = std::thread::spawn(move || while input.write_all(lines.as_bytes()).is_ok() {});
    let report = read(&process::finish(child, "slidegate simulate after SIGINT"));
    writer.join().unwrap();
    assert_eq!(report["interrupted"], true);
    assert_eq!(number(&report, "allowed"), 1);
    assert!(number(&report, "requests") > 1);
}

#[test]
fn same_seed_generates_the_same_pattern() {
    let bench = Bench::new("rules: [{ name: per-user, key: [user], limit: 20, window: 1s }]");
    for pattern in ["steady", "poisson", "flash-sale", "ramp", "hammering", "zipf"] {
        let report = |seed: &str| {
            let mut report =
                bench.report(&["--pattern", pattern, "--rate", "200", "--duration", "30s", "--seed", seed]);
            // Fields that may differ from run to run.
            for name in ["seconds", "requests_per_second", "traffic"] {
                report[name] = Value::Null;
            }
            report
        };
        let (one, again, other) = (report("1"), report("1"), report("2"));
        assert_eq!(one, again, "{pattern}");
        assert_eq!(one == other, pattern == "steady", "{pattern}");
        let expected = match pattern {
            "ramp" => 3_000,
            "flash-sale" => 1_300,
            _ => 6_000,
        };
        let requests = number(&one, "requests");
        assert!(requests.abs_diff(expected) < expected / 5, "{pattern}: {requests}");
    }
    let bench = Bench::new("rules: [{ name: per-user, key: [user], limit: 50, window: 1s }]");
    let hammering = bench.report(&["--pattern", "hammering", "--rate", "200", "--duration", "30s"]);
    assert_eq!(hammering["rules"][0]["hardest_hit"][0]["key"], "per-user:user=user-0");
    assert_eq!(number(&hammering["rules"][0], "denied_keys"), 1);
}
