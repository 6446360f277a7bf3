//! Comparison of the output of a command with the output that a page shows.

use std::sync::LazyLock;

use regex::Regex;

/// Texts that differ from run to run, each with its replacement in both outputs.
static MASKS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let masks = [
        // Reservations, also in a shell variable or as an argument.
        (r"\bh?\d{16}\.\d+\.\d+\.\d+\.[^\s]+?\.[0-9a-f]{32}", "RESERVATION"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
        (r#"(_[mu]s"?[:=] ?)-?[\d.]+"#, "${1}N"),
        (r"\b\d{13,}\b", "INSTANT"),
        // 4s 978ms, 5000 ms, 0.25s
        (r"\b[\d.]+ ?(ns|us|µs|ms|s|m|h)\b( [\d.]+(us|ms|s|m)\b)*", "DURATION"),
        (r"(?i)(retry-after|x-ratelimit-reset|date): .*", "${1}: VALUE"),
        (r#";t=\d+"#, ";t=N"),
    ];
    masks.into_iter().map(|(pattern, mask)| (Regex::new(pattern).unwrap(), mask)).collect()
});

fn masked(line: &str) -> String {
    let line = line.trim_end().to_owned();
    MASKS.iter().fold(line, |line, (pattern, mask)| pattern.replace_all(&line, *mask).into_owned())
}

/// Returns true if an output is as the page shows it. `…` stands for any text of a line, and a line of `…` for any
/// lines.
pub(super) fn matches(shown: &[String], output: &str) -> bool {
    let shown: Vec<String> = shown.iter().map(|line| masked(line)).collect();
    let output: Vec<String> = output.trim_end().lines().map(masked).collect();
    let end = shown.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
    lines_match(&shown[..end], &output)
}

fn lines_match(shown: &[String], output: &[String]) -> bool {
    match (shown.split_first(), output.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if first.trim() == "…" => {
            (0..=output.len()).any(|skipped| lines_match(rest, &output[skipped..]))
        }
        (Some((first, shown)), Some((line, output))) => {
            line_matches(first, line) && lines_match(shown, output)
        }
        _ => false,
    }
}

fn line_matches(shown: &str, line: &str) -> bool {
    let Some((start, rest)) = shown.split_once('…') else { return shown == line };
    let Some(line) = line.strip_prefix(start) else { return false };
    let mut starts = line.char_indices().map(|(at, _)| at).chain([line.len()]);
    starts.any(|at| line_matches(rest, &line[at..]))
}

#[cfg(test)]
mod tests {
    use super::matches;

    fn check(shown: &str, output: &str) -> bool {
        matches(&shown.lines().map(str::to_owned).collect::<Vec<_>>(), output)
    }

    #[test]
    fn times_and_reservations_may_differ() {
        let answer = |after: &str, reservation: &str| {
            format!(r#"{{"allowed":true,"retry_after_ms":{after},"reservation":"{reservation}","used":3}}"#)
        };
        let one = answer(
            "0",
            "1794774215407676.0.3.33.ad-hoc:resource=user123:window=1s.5f0c7ab4d1e6938207cd45be91f3a86e",
        );
        let other = answer(
            "4986.5",
            "1795000306996540.0.3.27.ad-hoc:resource=a:window=1s.c5efe2cca1d991010e394983f6d591f1",
        );
        assert!(check(&one, &other));
        assert!(!check(&one, &other.replace("\"used\":3", "\"used\":4")));
        assert!(check("retry in 4986 ms", "retry in 12 ms"));
        assert!(check("1 permit, 23ms ago, leaves in 4s 978ms", "1 permit, 1s 3ms ago, leaves in 4s"));
        assert!(!check("1 permit, 23ms ago", "2 permits, 23ms ago"));
        assert!(check("Retry-After: 5", "Retry-After: 4"));
        assert!(!check("200", "429"));
    }

    #[test]
    fn ellipsis_stands_for_text_and_lines() {
        assert!(check("{\"allowed\":true,…}", "{\"allowed\":true,\"code\":0}"));
        assert!(!check("{\"allowed\":true,…}", "{\"allowed\":false,\"code\":0}"));
        assert!(check("a\n…\nd", "a\nb\nc\nd\n"));
        assert!(check("a\n…", "a"));
        assert!(!check("a", "a\nb"));
        assert!(!check("a\nb", "a"));
    }
}
