//! Formats results for a terminal.
//!
//! Text from a trace is untrusted and was made safe before: keys escape control characters, and parse errors are one line.

use std::fmt;

use indicatif::{HumanBytes, HumanCount};
use slidegate::Micros;
use slidegate::yaml::one_line;

use super::difference::ChangeReport;
use super::rule::RuleReport;
use super::{AlgorithmReport, Difference, Report, percentage};
use crate::stats::DeniedKey;
use crate::suggest::{Denials, Suggestion, Suggestions};
use crate::traffic::{MappedAttribute, ParseErrors};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = self.format.map_or(String::new(), |format| format!(" ({})", format.as_str()));
        writeln!(f, "traffic   {}{format}", one_line(&self.traffic))?;
        writeln!(f, "rules     {}", one_line(&self.rules_from))?;
        write_mapped(f, &self.mapped)?;
        writeln!(
            f,
            "requests  {} over {}: simulated in {:.2} s, {} per second",
            HumanCount(self.requests),
            format_duration(self.span_us),
            self.seconds,
            HumanCount(self.requests_per_second as u64)
        )?;
        if self.algorithms.is_empty() {
            writeln!(f, "allowed   {}", with_percentage(self.allowed, self.requests))?;
            writeln!(f, "denied    {}", with_percentage(self.denied, self.requests))?;
        }
        if self.unruled > 0 {
            writeln!(f, "no rule   {}", with_percentage(self.unruled, self.requests))?;
        }
        if self.late.requests > 0 {
            let (late, most) = (HumanCount(self.late.requests), Micros::new(self.late.most_us));
            writeln!(
                f,
                "late      {late} out of order by up to {most}, evaluated at the latest time before them"
            )?;
        }
        if let Some(recorded) = &self.recorded {
            let compared = HumanCount(recorded.compared);
            writeln!(
                f,
                "recorded  {compared} decisions compared, {} differ",
                HumanCount(recorded.differences)
            )?;
            for mismatch in &recorded.first {
                let (then, now) = (one_line(&mismatch.then), one_line(&mismatch.now));
                writeln!(f, "          request {}: {then} then, {now} now", mismatch.request)?;
            }
        }
        write_bad_lines(f, &self.bad_lines)?;
        if self.interrupted {
            writeln!(f, "          interrupted: the results cover the traffic until then")?;
        }
        for note in &self.notes {
            writeln!(f, "note      {}", one_line(note))?;
        }
        for rule in &self.rules {
            write_rule(f, rule, self.begin_us)?;
        }
        write_algorithms(f, &self.algorithms)?;
        self.difference.as_ref().map_or(Ok(()), |difference| write_difference(f, difference, self))
    }
}

fn write_mapped(f: &mut fmt::Formatter<'_>, mapped: &[MappedAttribute]) -> fmt::Result {
    mapped.iter().try_for_each(|mapped| writeln!(f, "attribute {mapped}"))
}

fn write_bad_lines(f: &mut fmt::Formatter<'_>, bad_lines: &ParseErrors) -> fmt::Result {
    if bad_lines.count > 0 {
        writeln!(f, "bad lines {}", HumanCount(bad_lines.count))?;
    }
    for bad in &bad_lines.first {
        writeln!(f, "          line {}: {}", bad.line, bad.why)?;
    }
    Ok(())
}

fn write_rule(f: &mut fmt::Formatter<'_>, rule: &RuleReport, begin: u64) -> fmt::Result {
    writeln!(f, "\n{}", rule_heading(rule))?;
    if rule.asked == 0 {
        return writeln!(f, "  requests  0: no request matched the rule");
    }
    let denied = if rule.mode == "shadow" { "would deny" } else { "denied" };
    write!(
        f,
        "  requests  {}: {} allowed, {} {denied}",
        HumanCount(rule.asked),
        with_percentage(rule.allowed, rule.asked),
        with_percentage(rule.denied, rule.asked)
    )?;
    if rule.denied_by_others > 0 {
        write!(f, ", {} denied by other rules", HumanCount(rule.denied_by_others))?;
    }
    if let (Some(denied), Some(allowed)) = (rule.newly_denied, rule.newly_allowed) {
        let (denied, allowed) = (HumanCount(denied), HumanCount(allowed));
        write!(f, "\n  enforced  {denied} would be newly denied, {allowed} newly allowed")?;
    }
    writeln!(f, "\n  keys      {}", keys(rule))?;
    if let Some(worst) = &rule.worst_window {
        let over = match worst.admitted.saturating_sub(worst.limit) {
            0 => String::new(),
            over => format!(", {} OVER THE LIMIT", HumanCount(over)),
        };
        writeln!(
            f,
            "  worst     {} of {} admitted in one window{over}: {}, until {}",
            HumanCount(worst.admitted),
            HumanCount(worst.limit),
            worst.key,
            format_offset(worst.until_us, begin)
        )?;
    }
    if let Some(denied_key) = &rule.longest_denied {
        writeln!(
            f,
            "  longest   {}: {}, from {}",
            denial_run(denied_key),
            denied_key.key,
            format_offset(denied_key.denied_from_us, begin)
        )?;
    }
    for (n, denied_key) in rule.hardest_hit.iter().enumerate() {
        let label = if n == 0 { "hardest" } else { "" };
        let about = if denied_key.estimated { "about " } else { "" };
        let asked = denied_key.asked.map_or(String::new(), |asked| format!(" of {}", HumanCount(asked)));
        writeln!(
            f,
            "  {label:<9} {about}{}{asked} denied: {}",
            HumanCount(denied_key.denied),
            denied_key.key
        )?;
    }
    Ok(())
}

/// Formats the longest run of denials of a key.
pub(super) fn denial_run(denied_key: &DeniedKey) -> String {
    let denials = HumanCount(denied_key.denied_in_a_row);
    match (denied_key.denied_in_a_row, denied_key.longest_denied_us) {
        (1, _) => "1 denial".to_owned(),
        (_, 0) => format!("{denials} denials in a row at one instant"),
        (_, length) => format!("{denials} denials in a row within {}", format_duration(length)),
    }
}

/// Formats the number of keys, and the number of keys that were denied.
pub(super) fn keys(rule: &RuleReport) -> String {
    match rule.keys {
        1 => "1".to_owned(),
        keys => format!("{}, of which {} ever denied", HumanCount(keys), HumanCount(rule.denied_keys)),
    }
}

/// Formats a rule's name, mode, limit and algorithm.
pub(super) fn rule_heading(rule: &RuleReport) -> String {
    let quota = match (rule.limit, &rule.window, rule.algorithm) {
        (Some(limit), Some(window), Some(algorithm)) => {
            format!(": {} per {window}, {algorithm}", HumanCount(limit))
        }
        _ => String::new(),
    };
    let mode = if rule.mode == "enforce" { String::new() } else { format!(" ({})", rule.mode) };
    format!("{}{mode}{quota}", rule.rule)
}

fn write_algorithms(f: &mut fmt::Formatter<'_>, algorithms: &[AlgorithmReport]) -> fmt::Result {
    if algorithms.is_empty() {
        return Ok(());
    }
    writeln!(
        f,
        "\n{:<15} {:>12} {:>12} {:>12} {:>12} {:>12} {:>10}",
        "algorithm", "allowed", "denied", "worst over", "needlessly", "let through", "memory"
    )?;
    for algorithm in algorithms {
        let [allowed, denied, over, needless, beyond] = [
            algorithm.allowed,
            algorithm.denied,
            algorithm.overshoot,
            algorithm.denied_needlessly,
            algorithm.allowed_beyond,
        ]
        .map(|n| HumanCount(n).to_string());
        let memory = HumanBytes(algorithm.bytes as u64).to_string();
        writeln!(
            f,
            "{:<15} {allowed:>12} {denied:>12} {over:>12} {needless:>12} {beyond:>12} {memory:>10}",
            algorithm.algorithm
        )?;
    }
    writeln!(f, "\nworst over:  the most permits admitted above the limit in any window of any key")?;
    writeln!(f, "needlessly:  denied requests that the exact window allowed")?;
    writeln!(f, "let through: allowed requests that the exact window denied")
}

fn write_difference(f: &mut fmt::Formatter<'_>, difference: &Difference, report: &Report) -> fmt::Result {
    writeln!(f, "\nagainst {}", one_line(&difference.against))?;
    writeln!(
        f,
        "  denied         {} before, {} now",
        HumanCount(difference.denied_before),
        HumanCount(report.denied)
    )?;
    writeln!(f, "  newly denied   {}", with_percentage(difference.newly_denied, report.requests))?;
    writeln!(f, "  newly allowed  {}", with_percentage(difference.newly_allowed, report.requests))?;
    let line = |f: &mut fmt::Formatter<'_>, label: &str, changed: &ChangeReport| {
        let (denied, allowed) = (HumanCount(changed.newly_denied), HumanCount(changed.newly_allowed));
        writeln!(f, "  {label:<14} {denied} newly denied, {allowed} newly allowed: {}", changed.name)
    };
    for rule in &difference.rules {
        line(f, "by rule", rule)?;
    }
    let keys = format!("{} keys", HumanCount(difference.changed_keys));
    for (n, key) in difference.keys.iter().enumerate() {
        line(f, if n == 0 { &keys } else { "" }, key)?;
    }
    Ok(())
}

impl fmt::Display for Suggestions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "traffic   {}", one_line(&self.traffic))?;
        writeln!(f, "requests  {}", HumanCount(self.requests))?;
        writeln!(f, "wanted    {}", self.wish)?;
        write_mapped(f, &self.mapped)?;
        write_bad_lines(f, &self.bad_lines)?;
        for note in &self.notes {
            writeln!(f, "note      {}", one_line(note))?;
        }
        for suggestion in &self.suggestions {
            writeln!(f, "\n{suggestion}")?;
        }
        Ok(())
    }
}

impl Suggestion {
    /// Formats the numbers of denied requests and clients.
    pub(super) fn effect(&self, Denials { denied, denied_clients }: Denials) -> String {
        format!(
            "{} requests, {} clients",
            with_percentage(denied, self.requests),
            with_percentage(denied_clients, self.clients)
        )
    }
}

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(limit) = self.limit else { return write!(f, "{}: no request matched", self.rule) };
        writeln!(f, "{}: limit {limit} per {}", self.rule, self.window)?;
        writeln!(f, "  denies    {}", self.effect(self.denials()))?;
        if let Some(less) = self.one_less {
            writeln!(f, "  {:<9} {}", format!("with {}", limit - 1), self.effect(less))?;
        }
        write!(f, "  busiest   {} in one window", HumanCount(self.peak))
    }
}

/// Formats a number, and its percentage of `all`.
pub(super) fn with_percentage(n: u64, all: u64) -> String {
    format!("{} ({})", HumanCount(n), format_percent(percentage(n, all)))
}

/// Formats a percentage with one decimal place, or below 1 % with two significant digits.
pub(super) fn format_percent(percentage: f64) -> String {
    let digits = if percentage > 0.0 && percentage < 1.0 {
        (1.0 - percentage.log10().floor()).min(6.0) as usize
    } else {
        1
    };
    format!("{percentage:.digits$} %")
}

/// Formats a duration, rounded down to a precision that fits its size.
pub(super) fn format_duration(micros: u64) -> String {
    let step = match micros {
        0..10_000 => 1,
        10_000..10_000_000 => 1_000,
        10_000_000..3_600_000_000 => 100_000,
        3_600_000_000..172_800_000_000 => 1_000_000,
        _ => 60_000_000,
    };
    Micros::new(micros / step * step).to_string()
}

/// Formats an instant as the time since `begin`.
fn format_offset(at: u64, begin: u64) -> String {
    format!("+{}", format_duration(at.saturating_sub(begin)))
}

#[cfg(test)]
mod tests {
    use super::with_percentage;

    #[test]
    fn small_percentages_keep_two_digits() {
        let cases = [(0, "0 (0.0 %)"), (12, "12 (0.12 %)"), (99, "99 (0.99 %)"), (100, "100 (1.0 %)")];
        for (n, text) in cases {
            assert_eq!(with_percentage(n, 10_000), text);
        }
        assert_eq!(
            (with_percentage(1, 3), with_percentage(3, 1_000_000)),
            ("1 (33.3 %)".to_owned(), "3 (0.00030 %)".to_owned())
        );
    }
}
