//! Tests the HTML report: one file without external resources, which escapes everything from a trace.

use super::{Bench, number, stderr};

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
        "Requests over time",
        "Permits admitted in the window that ends at each time",
        "Most denied keys",
        "Keys by number of",
    ];
    for caption in captions {
        assert_eq!(page.matches(caption).count(), 1, "{caption}");
    }
    assert_eq!(page.matches("<svg").count(), 4);
    let mut names: Vec<String> = std::fs::read_dir(bench.path("pictures"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["per-ip-counts.svg", "per-ip-denials.svg", "per-ip-keys.svg", "per-ip-levels.svg"]);
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
