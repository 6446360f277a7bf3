//! Tests comparisons of algorithms and rules, and suggested limits, which must hold when they are simulated.

use serde_json::{Value, json};

use super::{Bench, denial, number, stdout};

const FIVE: &str = "rules: [{ name: per-user, key: [user], limit: 5, window: 1s }]";
const TEN: &str = "rules: [{ name: per-user, key: [user], limit: 10, window: 1s }]";
const ZIPF: [&str; 8] = ["--pattern", "zipf", "--rate", "100", "--duration", "20s", "--clients", "50"];

#[test]
fn compares_every_algorithm() {
    let bench = Bench::new(TEN);
    let algorithms = ["--algorithms", "token-bucket,sliding-window,fixed-window,time-slice"];
    let report = bench.report(&[&ZIPF[..], &algorithms].concat());
    let rows = report["algorithms"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["algorithm"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["sliding-window", "token-bucket", "fixed-window", "time-slice"],
        "the exact algorithm comes first"
    );
    for row in rows {
        assert_eq!(number(row, "allowed") + number(row, "denied"), number(&report, "requests"), "{row}");
        let (exact, here) = (number(&rows[0], "denied"), number(row, "denied"));
        assert_eq!(exact + number(row, "denied_needlessly"), here + number(row, "allowed_beyond"), "{row}");
        // An algorithm decides the same alone and beside others.
        let rules = TEN.replace("1s", &format!("1s, algorithm: {}", row["algorithm"].as_str().unwrap()));
        assert_eq!(number(&Bench::new(&rules).report(&ZIPF), "denied"), here, "{row}");
    }
    assert_eq!((number(&rows[0], "overshoot"), number(&rows[3], "overshoot")), (0, 0));
    assert!(number(&rows[2], "overshoot") > 0 && number(&rows[1], "overshoot") > 0);
    assert_eq!((number(&rows[0], "denied_needlessly"), number(&rows[0], "allowed_beyond")), (0, 0));
    assert!(
        number(&rows[0], "bytes") > number(&rows[2], "bytes"),
        "an exact window remembers every admission"
    );
    let text = stdout(&bench.run(&[&ZIPF[..], &algorithms].concat()));
    assert!(
        text.contains(
            "algorithm            allowed       denied   worst over   needlessly  let through     memory"
        ),
        "{text}"
    );
}

#[test]
fn algorithm_that_conflicts_with_a_rule_is_reported() {
    let bench = Bench::new("rules: [{ name: a, limit: 10, window: 1s, warm-up: { from: 20%, over: 4s } }]");
    let says = denial(&bench.run(&[&ZIPF[..], &["--algorithms", "token-bucket"]].concat()));
    assert_eq!(
        says,
        "rule `a` as token-bucket: `warm-up` cannot be combined with algorithm: token-bucket: use `burst` instead"
    );
}

#[test]
fn other_rules_report_affected_clients() {
    let bench = Bench::new(FIVE);
    bench.file("old.yaml", TEN);
    let report = bench.report(&[&ZIPF[..], &["--against", "old.yaml", "--top", "50"]].concat());
    let difference = &report["difference"];
    let (denied, allowed) = (number(difference, "newly_denied"), number(difference, "newly_allowed"));
    let before = number(&Bench::new(TEN).report(&ZIPF), "denied");
    let now = number(&Bench::new(FIVE).report(&ZIPF), "denied");
    assert_eq!((number(difference, "denied_before"), number(&report, "denied")), (before, now));
    assert_eq!(now + allowed, before + denied);
    assert!(denied > 0, "{difference}");
    // Every changed decision belongs to a client.
    let sum = |list: &str, name: &str| -> u64 {
        difference[list].as_array().unwrap().iter().map(|row| number(row, name)).sum()
    };
    for list in ["rules", "keys"] {
        assert_eq!(
            (sum(list, "newly_denied"), sum(list, "newly_allowed")),
            (denied, allowed),
            "{difference}"
        );
    }
    assert_eq!(difference["keys"][0]["name"], "per-user:user=user-0");
    // With the rules exchanged, the two counts are exchanged.
    let bench = Bench::new(TEN);
    bench.file("old.yaml", FIVE);
    let back = bench.report(&[&ZIPF[..], &["--against", "old.yaml"]].concat());
    assert_eq!(
        (number(&back["difference"], "newly_allowed"), number(&back["difference"], "newly_denied")),
        (denied, allowed)
    );
    // Equal rules have no difference.
    bench.file("old.yaml", TEN);
    let same = bench.report(&[&ZIPF[..], &["--against", "old.yaml"]].concat());
    assert_eq!((&same["difference"]["newly_denied"], &same["difference"]["keys"]), (&json!(0), &json!([])));
}

/// The suggested limit meets the target and one permit less does not: both are simulated with real rules.
#[test]
fn suggested_limit_is_the_smallest() {
    let denials = |limit: u64, window: &str| {
        let rules = format!("rules: [{{ name: per-user, key: [user], limit: {limit}, window: {window} }}]");
        let report = Bench::new(&rules).report(&ZIPF);
        (number(&report["rules"][0], "denied"), number(&report["rules"][0], "denied_keys"))
    };
    let bench = Bench::new(FIVE);
    for (wish, share, clients) in [
        ("0.1%", 0.001, false),
        ("5%", 0.05, false),
        ("0%", 0.0, false),
        ("10%", 0.1, true),
        ("0%", 0.0, true),
    ] {
        let flag = if clients { "--suggest-clients" } else { "--suggest" };
        let found = bench.report(&[&ZIPF[..], &[flag, wish, "--window", "1s,10s"]].concat());
        let requests = number(&found, "requests");
        assert_eq!(found["suggestions"].as_array().unwrap().len(), 2);
        for (suggestion, window) in found["suggestions"].as_array().unwrap().iter().zip(["1s", "10s"]) {
            let limit = number(suggestion, "limit");
            let (denied, denied_clients) = denials(limit, window);
            assert_eq!(
                (number(suggestion, "denied"), number(suggestion, "denied_clients")),
                (denied, denied_clients)
            );
            let less = denials(limit - 1, window);
            assert_eq!(
                suggestion["one_less"],
                json!({ "denied": less.0, "denied_clients": less.1 }),
                "{suggestion}"
            );
            let (most, here, with_less) = match clients {
                true => ((number(suggestion, "clients") as f64 * share) as u64, denied_clients, less.1),
                false => ((requests as f64 * share) as u64, denied, less.0),
            };
            assert!(here <= most && most < with_less, "{wish} of {window}: {suggestion}");
        }
    }
}

#[test]
fn suggest_needs_a_rereadable_trace() {
    let bench = Bench::new(FIVE);
    let lines = |n: u64| {
        (0..n)
            .map(|i| format!("{{\"time\":{},\"user\":\"u{}\"}}\n", 1_000 + i / 4, i % 2))
            .collect::<String>()
    };
    bench.file("trace", lines(100));
    let found = bench.report(&["--trace", "trace", "--suggest", "0%"]);
    assert_eq!(found["suggestions"][0]["limit"], 2);
    assert_eq!(found["suggestions"][0]["key"], json!(["user"]));
    let piped = bench.fed(&["--trace", "-", "--suggest", "0%"], lines(10).as_bytes());
    assert_eq!(
        denial(&piped),
        "--suggest reads the trace several times, which is not possible with standard input: use a file"
    );
    let concurrency = Bench::new("rules: [{ name: a, limit: 1, window: 1s, algorithm: concurrency }]");
    concurrency.file("trace", lines(10));
    assert_eq!(
        denial(&concurrency.run(&["--trace", "trace", "--suggest", "0%"])),
        "no rule has a limit that could be changed"
    );
}

/// The summary lists denied requests, their clients and the duration, as text.
#[test]
fn summary_lists_denied_clients() {
    let bench = Bench::new(
        "rules: [{ name: api, key: [ip], limit: 2, window: 10s }, { name: quiet, match: { api: /x }, limit: 1, window: 1s }]",
    );
    bench.file("trace.csv", "time,ip\n0,a\n1,a\n2,a\n3,a\n10,a\n11,b\n12,a\n");
    let text = stdout(&bench.run(&["--trace", "trace.csv"]));
    let lines: Vec<&str> = text.lines().collect();
    let expected = [
        "traffic   trace.csv (CSV)",
        "rules     rules.yaml",
        "allowed   5 (71.4 %)",
        "denied    2 (28.6 %)",
        "api: 2 per 10s, sliding-window",
        "  requests  7: 5 (71.4 %) allowed, 2 (28.6 %) denied",
        "  keys      2, of which 1 ever denied",
        "  worst     2 of 2 admitted in one window: api:ip=a, until +1s",
        "  longest   2 denials in a row within 1s: api:ip=a, from +2s",
        "  hardest   2 of 6 denied: api:ip=a",
        "quiet: 1 per 1s, sliding-window",
        "  requests  0: no request matched the rule",
    ];
    for line in expected {
        assert!(lines.contains(&line), "{line}\n{text}");
    }
}

/// A client that waits as long as it was told, or longer, is not denied meanwhile.
#[test]
fn longest_run_of_denials_has_no_idle_time() {
    let bench = Bench::new("rules: [{ name: login, key: [ip], limit: 1, window: 5s, count: attempts }]");
    let longest = |times: &str| {
        let rows: String = times.split(' ').map(|time| format!("{time},a\n")).collect();
        bench.file("trace.csv", format!("time,ip\n{rows}"));
        let text = stdout(&bench.run(&["--trace", "trace.csv"]));
        text.lines().find_map(|line| line.strip_prefix("  longest   ").map(str::to_owned)).expect("a denial")
    };
    // Denied at 1 and 42.8, with a wait of 5 seconds each: they are 41.8 seconds apart, and not in a row.
    assert_eq!(longest("0 1 42.7 42.8"), "1 denial: login:ip=a, from +1s");
    // The wait after 1 ends at 6.
    assert_eq!(longest("0 1 5.9 100"), "2 denials in a row within 4s 900ms: login:ip=a, from +1s");
    assert_eq!(longest("0 0 0 0"), "3 denials in a row at one instant: login:ip=a, from +0s");
    let denied = &bench.report(&["--trace", "trace.csv"])["rules"][0]["longest_denied"];
    assert_eq!((&denied["denied_in_a_row"], &denied["longest_denied_us"]), (&json!(3), &json!(0)));
}

#[test]
fn shadow_rule_denies_nothing() {
    let rules = TEN.replace("limit: 10", "limit: 10, mode: shadow");
    let report = Bench::new(&rules).report(&ZIPF);
    assert_eq!(number(&report, "denied"), 0);
    assert_eq!(report["rules"][0]["mode"], "shadow");
    let enforced: Value = Bench::new(TEN).report(&ZIPF);
    assert_eq!(
        report["rules"][0]["denied"], enforced["rules"][0]["denied"],
        "a shadow rule counts the requests that it would have denied"
    );
}
