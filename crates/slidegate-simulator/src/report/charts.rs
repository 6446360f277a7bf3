//! Selects and draws the charts of a report.

use super::chart::{self, Panel, PanelKind};
use super::rule::{RuleReport, TimelineReport};
use super::text::{format_duration, rule_heading};
use super::{Report, chart::STYLE};

/// Maximum number of keys in a chart.
const MAX_KEYS_DRAWN: usize = 20;

/// A chart with its title.
pub(crate) struct ReportChart {
    /// Heading of the rule that the chart is about.
    pub(super) heading: String,
    /// Name of the chart's file, without a suffix.
    name: String,
    pub(super) title: String,
    pub(super) svg: String,
}

impl ReportChart {
    /// Returns the file's name and content: an SVG with its own style sheet.
    pub(crate) fn file(&self) -> (String, String) {
        let svg = self.svg.replacen('>', &format!("><style>{STYLE}</style>"), 1);
        (format!("{}.svg", self.name), svg)
    }
}

/// Draws all charts of a report, rule by rule.
pub(crate) fn charts(report: &Report) -> Result<Vec<ReportChart>, String> {
    let mut charts = Vec::new();
    for rule in report.rules.iter().filter(|rule| rule.asked > 0) {
        over_time(&mut charts, &[("", rule)])?;
        by_key(&mut charts, rule)?;
    }
    if let Some(first) = report.algorithms.first() {
        for (index, rule) in first.rules.iter().enumerate().filter(|(_, rule)| rule.asked > 0) {
            let same = |rules: &'_ super::AlgorithmReport| {
                rules.rules.get(index).is_some_and(|other| other.rule == rule.rule)
            };
            let side_by_side: Vec<(&str, &RuleReport)> = report
                .algorithms
                .iter()
                .filter(|algorithm| same(algorithm))
                .map(|algorithm| (algorithm.algorithm.as_str(), &algorithm.rules[index]))
                .collect();
            over_time(&mut charts, &side_by_side)?;
        }
    }
    Ok(charts)
}

/// Draws the decisions of one rule over time: one panel, or one per algorithm.
fn over_time(charts: &mut Vec<ReportChart>, rules: &[(&str, &RuleReport)]) -> Result<(), String> {
    let Some((_, first)) = rules.first() else { return Ok(()) };
    let heading = if rules.len() == 1 { rule_heading(first) } else { short_heading(first) };
    let counts = chart::panels(&panels(rules, |t| &t.allowed, |t| &t.denied), PanelKind::Counts)?;
    let title = format!("Requests over time, every {}", format_duration(first.timeline.width_us));
    add(charts, &heading, &first.rule, "counts", &title, counts);
    if first.limit.is_some() {
        let levels = chart::panels(&panels(rules, |t| &t.admitted, |t| &t.limit), PanelKind::Levels)?;
        add(
            charts,
            &heading,
            &first.rule,
            "levels",
            "Permits admitted in the window that ends at each time, and the limit; empty where no request arrived",
            levels,
        );
    }
    Ok(())
}

/// Returns a panel per rule, with two of its series.
fn panels<'a>(
    rules: &[(&'a str, &'a RuleReport)],
    lower: fn(&TimelineReport) -> &[u64],
    upper: fn(&TimelineReport) -> &[u64],
) -> Vec<Panel<'a>> {
    let panel = |&(name, rule): &(&'a str, &'a RuleReport)| Panel {
        name,
        step: rule.timeline.width_us as f64 / 1e6,
        lower: lower(&rule.timeline),
        upper: upper(&rule.timeline),
    };
    rules.iter().map(panel).collect()
}

/// Draws the keys that were denied most, and a histogram of denials per key.
fn by_key(charts: &mut Vec<ReportChart>, rule: &RuleReport) -> Result<(), String> {
    if rule.denied == 0 || rule.keys < 2 {
        return Ok(());
    }
    // A key begins with the rule's name, which the heading has already.
    let prefix = format!("{}:", rule.rule);
    let without_prefix = |key: &str| key.strip_prefix(&prefix).unwrap_or(key).to_owned();
    let denied_keys = rule.hardest_hit.iter().take(MAX_KEYS_DRAWN);
    let rows: Vec<_> = denied_keys
        .map(|denied_key| {
            (
                without_prefix(&denied_key.key),
                denied_key.denied,
                denied_key.asked.unwrap_or(denied_key.denied),
            )
        })
        .collect();
    let keys = chart::bars(&rows, ("denied", "requests"))?;
    add(charts, &rule_heading(rule), &rule.rule, "keys", "Most denied keys", keys);
    // With more than nine labels there is no room for both bounds.
    let narrow = rule.denials.len() > 9;
    let columns: Vec<_> = rule
        .denials
        .iter()
        .map(|bar| match (bar.least, bar.most) {
            (0, _) => ("never".to_owned(), bar.keys),
            (least, _) if narrow => (format!("{least}×"), bar.keys),
            (least, most) if least == most => (format!("{least}×"), bar.keys),
            (least, most) => (format!("{least}–{most}×"), bar.keys),
        })
        .collect();
    let columns = chart::columns(&columns)?;
    let title = if narrow {
        "Keys by number of denials: at least this many, and fewer than the next"
    } else {
        "Keys by number of denials"
    };
    add(charts, &rule_heading(rule), &rule.rule, "denials", title, columns);
    Ok(())
}

fn short_heading(rule: &RuleReport) -> String {
    match (rule.limit, &rule.window) {
        (Some(limit), Some(window)) => format!("{}: {limit} per {window}", rule.rule),
        _ => rule.rule.clone(),
    }
}

fn add(charts: &mut Vec<ReportChart>, heading: &str, rule: &str, kind: &str, title: &str, svg: String) {
    let name = format!("{}-{kind}", rule.replace('/', "-"));
    charts.push(ReportChart { heading: heading.to_owned(), name, title: title.to_owned(), svg });
}
