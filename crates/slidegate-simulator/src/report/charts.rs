//! Which pictures a report has.

use super::chart::{self, Panel, Show};
use super::rule::{Buckets, RuleReport};
use super::text::{coarse, heading};
use super::{Report, chart::STYLE};

/// How many keys are drawn.
const KEYS: usize = 20;

/// A picture, what it is called, and what is to be seen in it.
pub(crate) struct Picture {
    /// The rule it is about.
    pub(super) about: String,
    /// Of its file, without a suffix.
    name: String,
    pub(super) title: String,
    pub(super) svg: String,
}

impl Picture {
    /// The name of its file, and what goes in it: a picture that stands for itself.
    pub(crate) fn file(&self) -> (String, String) {
        let svg = self.svg.replacen('>', &format!("><style>{STYLE}</style>"), 1);
        (format!("{}.svg", self.name), svg)
    }
}

/// All pictures of a report, rule by rule.
pub(crate) fn pictures(report: &Report) -> Result<Vec<Picture>, String> {
    let mut pictures = Vec::new();
    for rule in report.rules.iter().filter(|rule| rule.asked > 0) {
        over_time(&mut pictures, &[("", rule)])?;
        by_key(&mut pictures, rule)?;
    }
    if let Some(first) = report.algorithms.first() {
        for (place, rule) in first.rules.iter().enumerate().filter(|(_, rule)| rule.asked > 0) {
            let same = |rules: &'_ super::AlgorithmReport| {
                rules.rules.get(place).is_some_and(|other| other.rule == rule.rule)
            };
            let side_by_side: Vec<(&str, &RuleReport)> = report
                .algorithms
                .iter()
                .filter(|algorithm| same(algorithm))
                .map(|algorithm| (algorithm.algorithm.as_str(), &algorithm.rules[place]))
                .collect();
            over_time(&mut pictures, &side_by_side)?;
        }
    }
    Ok(pictures)
}

/// What happened to a rule when, counted in one way or in several.
fn over_time(pictures: &mut Vec<Picture>, rules: &[(&str, &RuleReport)]) -> Result<(), String> {
    let Some((_, first)) = rules.first() else { return Ok(()) };
    let about = if rules.len() == 1 { heading(first) } else { named(first) };
    let counts = chart::panels(&panels(rules, |t| &t.allowed, |t| &t.denied), Show::Counts)?;
    let title = format!("Requests over time, every {}", coarse(first.timeline.width_us));
    add(pictures, &about, &first.rule, "counts", &title, counts);
    if first.limit.is_some() {
        let levels = chart::panels(&panels(rules, |t| &t.admitted, |t| &t.limit), Show::Levels)?;
        add(
            pictures,
            &about,
            &first.rule,
            "levels",
            "Admitted in the window that ends there, against the limit; nothing where nobody asked",
            levels,
        );
    }
    Ok(())
}

/// Two numbers of each rule over time.
fn panels<'a>(
    rules: &[(&'a str, &'a RuleReport)],
    lower: fn(&Buckets) -> &[u64],
    upper: fn(&Buckets) -> &[u64],
) -> Vec<Panel<'a>> {
    let panel = |&(name, rule): &(&'a str, &'a RuleReport)| Panel {
        name,
        step: rule.timeline.width_us as f64 / 1e6,
        lower: lower(&rule.timeline),
        upper: upper(&rule.timeline),
    };
    rules.iter().map(panel).collect()
}

/// Who was hit.
fn by_key(pictures: &mut Vec<Picture>, rule: &RuleReport) -> Result<(), String> {
    if rule.denied == 0 || rule.keys < 2 {
        return Ok(());
    }
    // The rule's name is in the heading.
    let own = format!("{}:", rule.rule);
    let short = |key: &str| key.strip_prefix(&own).unwrap_or(key).to_owned();
    let hit = rule.hardest_hit.iter().take(KEYS);
    let rows: Vec<_> =
        hit.map(|hit| (short(&hit.key), hit.denied, hit.asked.unwrap_or(hit.denied))).collect();
    let keys = chart::bars(&rows, ("denied", "asked"))?;
    add(pictures, &heading(rule), &rule.rule, "keys", "The keys that were denied most", keys);
    // There is room for so many with both ends.
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
        "Keys by how often they were denied: so often, and less than the next"
    } else {
        "Keys by how often they were denied"
    };
    add(pictures, &heading(rule), &rule.rule, "denials", title, columns);
    Ok(())
}

fn named(rule: &RuleReport) -> String {
    match (rule.limit, &rule.window) {
        (Some(limit), Some(window)) => format!("{}: {limit} per {window}", rule.rule),
        _ => rule.rule.clone(),
    }
}

fn add(pictures: &mut Vec<Picture>, about: &str, rule: &str, what: &str, title: &str, svg: String) {
    let name = format!("{}-{what}", rule.replace('/', "-"));
    pictures.push(Picture { about: about.to_owned(), name, title: title.to_owned(), svg });
}
