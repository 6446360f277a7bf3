//! Tests the HTML report: one file without external resources, which escapes everything from a trace.

use super::{Bench, json, number, stderr, stdout};

const RULES: &str = "rules: [{ name: per-ip, key: [ip], limit: 2, window: 10s }]";

#[test]
fn report_is_self_contained_and_escapes_the_trace() {
    let bench = Bench::new(RULES);
    let nasty = "<script>alert(1)</script>\\\"'&{body}";
    let line = |i: u64| format!("{{\"time\":{i},\"ip\":\"{nasty}{}\"}}\n", i % 3);
    bench.file("<b>trace", (0..300).map(line).collect::<String>() + "<i>bad\n");
    let output = bench.run(&["--trace", "<b>trace", "--html", "report.html", "--svg", "pictures"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let page = std::fs::read_to_string(bench.path("report.html")).unwrap();
    for forbidden in ["<script", "<b>trace", "<i>bad", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    let captions = [
        "Requests per 5s",
        "Permits admitted in the window that ends at each time",
        "Most denied keys",
        "Keys by number of",
    ];
    for caption in captions {
        assert_eq!(page.matches(caption).count(), 1, "{caption}");
    }
    // Each chart is drawn for a screen and for a phone.
    for class in ["roomy", "narrow"] {
        assert_eq!(page.matches(&format!("<div class={class}><svg")).count(), 4, "{class}");
    }
    let mut names: Vec<String> = std::fs::read_dir(bench.path("pictures"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["per-ip-counts.svg", "per-ip-denials.svg", "per-ip-keys.svg", "per-ip-levels.svg"]);
}

/// Runs a simulation that writes a report. Returns the report and standard error.
#[track_caller]
fn report_page(bench: &Bench, arguments: &[&str]) -> (String, String) {
    let output = bench.run(&[arguments, &["--html", "report.html"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    (std::fs::read_to_string(bench.path("report.html")).unwrap(), stderr(&output))
}

/// An hour of three clients, from 09:02:03 of a day: `a` sends every ten seconds, the others every minute.
fn hour_of_traffic() -> String {
    let begin = 1_794_906_123;
    let line = |second: u64, ip: &str| format!("{{\"time\":{},\"ip\":\"{ip}\"}}\n", begin + second);
    let mut trace = String::new();
    for second in (0..3_600).step_by(10) {
        trace += &line(second, "a");
        if second % 60 == 0 {
            trace += &(line(second, "b") + &line(second, "c"));
        }
    }
    trace
}

#[test]
fn report_begins_with_a_verdict() {
    let headline = |rules: &str, arguments: &[&str]| {
        let bench = Bench::new(rules);
        bench.file("old.yaml", RULES);
        bench.file("trace", hour_of_traffic());
        let page = report_page(&bench, &[&["--trace", "trace"], arguments].concat()).0;
        let from = page.find("<header><h1>").expect("a headline") + "<header><h1>".len();
        let header = &page[from..page.find("</p>").expect("facts")];
        header.replace("</h1><p class=facts>", "|")
    };
    let limit = |limit: u64| format!("rules: [{{ name: per-ip, key: [ip], limit: {limit}, window: 1m }}]");
    assert_eq!(
        headline(&limit(3), &[]),
        "With these rules, 37.5 % of requests would be denied: 180 of 480|\
         Rule per-ip denies 180 requests, from 1 of 3 keys."
    );
    assert_eq!(headline(&limit(6), &[]), "With these rules, no request would be denied|");
    assert_eq!(
        headline(&limit(3).replace("limit", "mode: shadow, limit"), &[]),
        "With these rules, no request would be denied|Rule per-ip (shadow) would deny 180 requests, from 1 of 3 keys."
    );
    assert_eq!(headline(&limit(3).replace("ip]", "user]"), &[]), "No rule applies to any request|");
    assert_eq!(
        headline(&limit(3), &["--against", "old.yaml"]),
        "With the new rules, 37.5 % of requests would be newly denied and 0.0 % newly allowed|The old rules deny 0 (0.0 %) \
         requests, the new rules 180. Keys that notice the difference: 1."
    );
    assert_eq!(
        headline(&limit(3), &["--algorithms", "sliding-window"]),
        "With these algorithms, no limit is exceeded|sliding-window denies 180 (37.5 %) requests."
    );
}

#[test]
fn charts_have_round_buckets_and_clock_times() {
    let bench = Bench::new(RULES);
    bench.file("trace", hour_of_traffic());
    let page = report_page(&bench, &["--trace", "trace"]).0;
    assert!(page.contains("Requests per 30s"), "{page}");
    for label in ["\n09:10\n", "\n09:50\n", "\n10:00\n", "\n17 Nov 2026, UTC\n"] {
        assert!(page.contains(label), "{label}");
    }
    let timeline = bench.report(&["--trace", "trace"])["rules"][0]["timeline"].clone();
    assert_eq!(
        (number(&timeline, "width_us"), number(&timeline, "begin_us")),
        (30_000_000, 1_794_906_120_000_000)
    );
    // A pattern has no time of day.
    let page = report_page(&bench, &["--pattern", "steady", "--duration", "2m"]).0;
    assert!(page.contains("\n105s\n") && !page.contains("UTC"), "{page}");
}

#[test]
fn written_files_are_reported() {
    let bench = Bench::new(RULES);
    bench.file("trace", hour_of_traffic());
    let arguments = ["--trace", "trace", "--html", "report.html", "--svg", "pictures", "--json"];
    let output = bench.run(&arguments);
    assert_eq!(number(&json(&output), "requests"), 480);
    let messages = stderr(&output);
    let kibibytes = std::fs::metadata(bench.path("report.html")).unwrap().len() as f64 / 1024.0;
    let wrote = format!(
        "slidegate: wrote report.html ({kibibytes:.2} KiB)\nslidegate: wrote 2 charts into pictures ("
    );
    assert!(messages.starts_with(&wrote), "{messages}");
    assert_eq!(stderr(&bench.run(&["--trace", "trace"])), "");
}

#[test]
fn suggested_limits_have_a_report() {
    let bench = Bench::new("rules: [{ name: per-ip, key: [ip], limit: 1, window: 1m }]");
    bench.file("trace", hour_of_traffic());
    let suggest = ["--trace", "trace", "--suggest-clients", "40%"];
    let (page, _) = report_page(&bench, &suggest);
    let expected = [
        "<h1>A limit of 1 per 1m would deny 62.5 % of requests and 33.3 % of clients</h1>",
        "<p class=facts>Wanted: at most 40 % of all clients ever denied.</p>",
        "evaluated by the suggested limits",
        "<b>per-ip: limit 1 per 1m</b> denies 300 (62.5 %) requests, 1 (33.3 %) clients. The busiest client asks for 6 in one window.",
        "<h2>per-ip: 1 per 1m, sliding-window</h2>",
        "<b>300 would be denied</b>",
        "Requests per 30s",
    ];
    for text in expected {
        assert!(page.contains(text), "{text}\n{page}");
    }
    // The same text is printed with and without the page.
    let output = bench.run(&[&suggest[..], &["--html", "report.html"]].concat());
    assert_eq!(stdout(&output), stdout(&bench.run(&suggest)));
    // Several windows of a rule are told apart.
    let (page, _) =
        report_page(&bench, &[&suggest[..], &["--window", "1m,10m", "--svg", "pictures"]].concat());
    assert!(page.contains("<h1>Suggested limits: per-ip 1 per 1m, per-ip 10 per 10m</h1>"), "{page}");
    for name in ["per-ip-1m-counts.svg", "per-ip-10m-counts.svg"] {
        assert!(bench.path("pictures").join(name).exists(), "{name}");
    }
}

#[test]
fn charts_are_reproducible() {
    let bench = Bench::new(RULES);
    let draw = |folder: &str| {
        bench.report(&["--pattern", "boundary-burst", "--algorithms", "fixed-window", "--svg", folder]);
        std::fs::read_to_string(bench.path(folder).join("per-ip-levels.svg")).unwrap()
    };
    let picture = draw("one");
    assert_eq!(picture, draw("two"));
    assert!(
        picture.contains("fixed-window")
            && picture.contains("sliding-window")
            && picture.contains("over the limit")
    );
}

#[test]
fn unwritable_report_is_an_error() {
    let bench = Bench::new(RULES);
    for flag in ["--html", "--decisions"] {
        let output = bench.run(&["--pattern", "boundary-burst", flag, "no/such/folder"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(
            stderr(&output).starts_with("slidegate: cannot write no/such/folder: "),
            "{}",
            stderr(&output)
        );
    }
    assert_eq!(number(&bench.report(&["--pattern", "boundary-burst"]), "requests"), 4);
}
