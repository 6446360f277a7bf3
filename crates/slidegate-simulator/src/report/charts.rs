//! Selects and draws the charts of a report.

use super::chart::{self, Layout, Panel, PanelKind, STYLE};
use super::rule::{RuleReport, TimelineReport};
use super::text::{format_duration, rule_heading};
use super::time_axis::TimeAxis;
use super::{AlgorithmReport, Report};

/// Maximum number of keys in a chart.
const MAX_KEYS_DRAWN: usize = 20;

/// A chart with its title.
pub(crate) struct ReportChart {
    /// Heading of the rule that the chart is about.
    pub(super) heading: String,
    /// Name of the chart's file, without a suffix.
    name: String,
    pub(super) title: String,
    pub(super) wide: String,
    /// The same for the width of a phone.
    pub(super) narrow: String,
}

impl ReportChart {
    /// Returns the file's name and content: an SVG with its own style sheet.
    pub(crate) fn file(&self) -> (String, String) {
        let svg = self.wide.replacen('>', &format!("><style>{STYLE}</style>"), 1);
        (format!("{}.svg", self.name), svg)
    }
}

/// Draws all charts of a report, rule by rule.
pub(crate) fn charts(report: &Report) -> Result<Vec<ReportChart>, String> {
    let mut charts = Vec::new();
    // The times of a pattern are not the times of a real day.
    let has_clock = report.format.is_some();
    for rule in report.rules.iter().filter(|rule| rule.asked > 0) {
        over_time(&mut charts, &[("", rule)], has_clock)?;
        by_key(&mut charts, rule)?;
    }
    if let Some(first) = report.algorithms.first() {
        for (index, rule) in first.rules.iter().enumerate().filter(|(_, rule)| rule.asked > 0) {
            let same = |rules: &'_ AlgorithmReport| {
                rules.rules.get(index).is_some_and(|other| other.rule == rule.rule)
            };
            let side_by_side: Vec<(&str, &RuleReport)> = report
                .algorithms
                .iter()
                .filter(|algorithm| same(algorithm))
                .map(|algorithm| (algorithm.algorithm.as_str(), &algorithm.rules[index]))
                .collect();
            over_time(&mut charts, &side_by_side, has_clock)?;
        }
    }
    Ok(charts)
}

/// Draws the decisions of one rule over time: one panel, or one per algorithm.
fn over_time(
    charts: &mut Vec<ReportChart>,
    rules: &[(&str, &RuleReport)],
    has_clock: bool,
) -> Result<(), String> {
    let Some((_, first)) = rules.first() else { return Ok(()) };
    let heading = if rules.len() == 1 { rule_heading(first) } else { short_heading(first) };
    let TimelineReport { begin_us: from, width_us, .. } = first.timeline;
    let buckets = rules.iter().map(|(_, rule)| rule.timeline.allowed.len()).max().unwrap_or_default();
    let axis = TimeAxis { from, to: from + width_us * buckets as u64, clock: has_clock };
    let counts = panels(rules, |t| &t.allowed, |t| &t.denied);
    let title = format!("Requests per {}", format_duration(width_us));
    add(charts, &heading, (&first.rule, "counts"), &title, |layout| {
        chart::panels(&counts, PanelKind::Counts, axis, layout)
    })?;
    if first.limit.is_some() {
        let levels = panels(rules, |t| &t.admitted, |t| &t.limit);
        let title = "Permits admitted in the window that ends at each time, and the limit; empty where no request arrived";
        add(charts, &heading, (&first.rule, "levels"), title, |layout| {
            chart::panels(&levels, PanelKind::Levels, axis, layout)
        })?;
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
    add(charts, &rule_heading(rule), (&rule.rule, "keys"), "Most denied keys", |layout| {
        chart::bars(&rows, ("denied", "requests"), layout)
    })?;
    // More than nine labels have no room for both bounds.
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
    let title = if narrow {
        "Keys by number of denials: at least this many, and fewer than the next"
    } else {
        "Keys by number of denials"
    };
    add(charts, &rule_heading(rule), (&rule.rule, "denials"), title, |layout| {
        chart::columns(&columns, layout)
    })
}

fn short_heading(rule: &RuleReport) -> String {
    match (rule.limit, &rule.window) {
        (Some(limit), Some(window)) => format!("{}: {limit} per {window}", rule.rule),
        _ => rule.rule.clone(),
    }
}

/// Draws a chart in both widths. The name of its file consists of the rule and the kind.
fn add(
    charts: &mut Vec<ReportChart>,
    heading: &str,
    (rule, kind): (&str, &str),
    title: &str,
    draw: impl Fn(Layout) -> Result<String, String>,
) -> Result<(), String> {
    charts.push(ReportChart {
        heading: heading.to_owned(),
        name: format!("{}-{kind}", rule.replace('/', "-")),
        title: title.to_owned(),
        wide: draw(Layout::Wide)?,
        narrow: draw(Layout::Narrow)?,
    });
    Ok(())
}
