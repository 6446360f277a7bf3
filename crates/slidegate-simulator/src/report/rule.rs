//! Results of single rules, for the report.

use serde::Serialize;
use slidegate::Mode;

use crate::stats::{Bucket, DenialDistribution, DeniedKey, RuleKeys, RuleStats, Stats, Timeline};

/// Results of one rule.
#[derive(Debug, Serialize)]
pub(crate) struct RuleReport {
    pub(crate) rule: String,
    pub(crate) mode: &'static str,
    /// None for rules without a limit, and for requests with an ad-hoc limit.
    pub(crate) algorithm: Option<&'static str>,
    pub(crate) limit: Option<u64>,
    pub(crate) window: Option<String>,
    pub(crate) window_us: Option<u64>,
    /// Requests that the rule applied to.
    pub(crate) asked: u64,
    /// Requests that every rule allowed.
    pub(crate) allowed: u64,
    /// Requests that this rule denied. For a shadow rule, requests that it would have denied.
    pub(crate) denied: u64,
    /// Requests that another rule denied.
    pub(crate) denied_by_others: u64,
    /// For a shadow rule, requests that would be newly denied or newly allowed if it were enforced.
    pub(crate) newly_denied: Option<u64>,
    pub(crate) newly_allowed: Option<u64>,
    pub(crate) keys: u64,
    pub(crate) denied_keys: u64,
    pub(crate) worst_window: Option<WorstWindowReport>,
    pub(crate) longest_denied: Option<DeniedKey>,
    /// Most denied keys.
    pub(crate) hardest_hit: Vec<DeniedKey>,
    /// Histogram of keys by number of denials.
    pub(crate) denials: Vec<HistogramBar>,
    pub(crate) timeline: TimelineReport,
}

/// The window with the most admitted permits, relative to its limit.
#[derive(Debug, Serialize)]
pub(crate) struct WorstWindowReport {
    pub(crate) key: String,
    pub(crate) admitted: u64,
    pub(crate) limit: u64,
    /// End of the window, in microseconds since 1970.
    pub(crate) until_us: u64,
}

/// Number of keys that were denied from `least` to `most` times.
#[derive(Debug, Serialize)]
pub(crate) struct HistogramBar {
    pub(crate) least: u64,
    pub(crate) most: u64,
    pub(crate) keys: u64,
}

/// Decisions over time, in buckets of equal width.
#[derive(Debug, Default, Serialize)]
pub(crate) struct TimelineReport {
    /// Start of the first bucket, in microseconds since 1970.
    pub(crate) begin_us: u64,
    pub(crate) width_us: u64,
    pub(crate) allowed: Vec<u64>,
    pub(crate) denied: Vec<u64>,
    /// Highest number of permits that were admitted to one key in a window that ends in the bucket.
    pub(crate) admitted: Vec<u64>,
    /// Limit of that key.
    pub(crate) limit: Vec<u64>,
}

/// Returns the results of every rule, and those of requests with an ad-hoc limit if there were any.
pub(crate) fn rule_reports(stats: &Stats, top: usize) -> Vec<RuleReport> {
    let rules = stats.rules.iter().zip(stats.keys.by_rule(stats.rules.len())).enumerate();
    let ad_hoc = stats.rules.len() - 1;
    rules
        .filter(|(index, (rule, _))| *index != ad_hoc || rule.asked > 0)
        .map(|(_, (rule, keys))| RuleReport::new(rule, &keys, top))
        .collect()
}

impl RuleReport {
    fn new(rule: &RuleStats, by_key: &RuleKeys<'_>, top: usize) -> Self {
        let DenialDistribution { keys, denied_keys, histogram } = by_key.distribution();
        let is_shadow = rule.mode == Mode::Shadow;
        let worst_window = rule.worst.as_ref().map(|worst| WorstWindowReport {
            key: worst.key.to_string(),
            admitted: worst.admitted,
            limit: worst.limit,
            until_us: worst.at.get(),
        });
        RuleReport {
            rule: rule.rule.clone(),
            mode: rule.mode.as_str(),
            algorithm: rule.quota.map(|quota| quota.algorithm().as_str()),
            limit: rule.quota.map(|quota| quota.limit()),
            window: rule.quota.map(|quota| quota.window().to_string()),
            window_us: rule.quota.map(|quota| quota.window().get()),
            asked: rule.asked,
            allowed: rule.allowed,
            denied: rule.denied,
            denied_by_others: rule.asked - rule.allowed - rule.denied,
            newly_denied: is_shadow.then_some(rule.newly_denied),
            newly_allowed: is_shadow.then_some(rule.newly_allowed),
            keys,
            denied_keys,
            worst_window,
            longest_denied: by_key.longest_denied(),
            hardest_hit: by_key.hardest_hit(top),
            denials: histogram_bars(&histogram),
            timeline: TimelineReport::from(&rule.timeline),
        }
    }
}

/// Adds bounds to a histogram. Entry 0 has keys that were never denied, entry n those denied from 2^(n-1) to 2^n - 1 times.
fn histogram_bars(histogram: &[u64]) -> Vec<HistogramBar> {
    let least = |n: usize| if n == 0 { 0 } else { 1u64 << (n - 1) };
    let bar = |(n, keys): (usize, &u64)| HistogramBar {
        least: least(n),
        most: least(n + 1).max(1) - 1,
        keys: *keys,
    };
    histogram.iter().enumerate().map(bar).collect()
}

impl From<&Timeline> for TimelineReport {
    fn from(timeline: &Timeline) -> Self {
        let counts = |count: fn(&Bucket) -> u64| timeline.buckets().iter().map(count).collect();
        TimelineReport {
            begin_us: timeline.begin().unwrap_or_default().get(),
            width_us: timeline.width().get(),
            allowed: counts(|bucket| bucket.allowed),
            denied: counts(|bucket| bucket.denied),
            admitted: counts(|bucket| bucket.admitted),
            limit: counts(|bucket| bucket.limit),
        }
    }
}
