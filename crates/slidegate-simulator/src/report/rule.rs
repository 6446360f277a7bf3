//! What one rule did.

use serde::Serialize;
use slidegate::Mode;

use crate::stats::{Bucket, Hit, Row, RuleKeys, Spread, Stats, Timeline};

/// The figures of one rule.
#[derive(Debug, Serialize)]
pub(crate) struct RuleReport {
    pub(crate) rule: String,
    pub(crate) mode: &'static str,
    /// None for rules without a limit, and for requests that bring their own.
    pub(crate) algorithm: Option<&'static str>,
    pub(crate) limit: Option<u64>,
    pub(crate) window: Option<String>,
    pub(crate) window_us: Option<u64>,
    /// Requests it applied to.
    pub(crate) asked: u64,
    /// Of those, the ones that every rule allowed.
    pub(crate) allowed: u64,
    /// The ones that it denied; of a shadow, would have.
    pub(crate) denied: u64,
    /// The ones that another rule denied.
    pub(crate) denied_by_others: u64,
    /// Of a shadow, the ones that would be denied or allowed if it were enforced, and are not.
    pub(crate) newly_denied: Option<u64>,
    pub(crate) newly_allowed: Option<u64>,
    pub(crate) keys: u64,
    pub(crate) denied_keys: u64,
    pub(crate) worst_window: Option<WorstWindow>,
    pub(crate) longest_denied: Option<Hit>,
    /// The keys that were denied most.
    pub(crate) hardest_hit: Vec<Hit>,
    /// Keys by how often they were denied.
    pub(crate) denials: Vec<Bar>,
    pub(crate) timeline: Buckets,
}

/// The most that was admitted in any window, compared with the limit.
#[derive(Debug, Serialize)]
pub(crate) struct WorstWindow {
    pub(crate) key: String,
    pub(crate) admitted: u64,
    pub(crate) limit: u64,
    /// When it ended, in microseconds since 1970.
    pub(crate) until_us: u64,
}

/// So many keys were denied from `least` to `most` times.
#[derive(Debug, Serialize)]
pub(crate) struct Bar {
    pub(crate) least: u64,
    pub(crate) most: u64,
    pub(crate) keys: u64,
}

/// What happened when, in pieces of time that are alike.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Buckets {
    /// When the first begins, in microseconds since 1970.
    pub(crate) begin_us: u64,
    pub(crate) width_us: u64,
    pub(crate) allowed: Vec<u64>,
    pub(crate) denied: Vec<u64>,
    /// The most that any key had been admitted in the window that ends there.
    pub(crate) admitted: Vec<u64>,
    /// What that key was allowed.
    pub(crate) limit: Vec<u64>,
}

/// One for every rule, and one for requests that bring their own limit if there were any.
pub(crate) fn rule_reports(tally: &Stats, top: usize) -> Vec<RuleReport> {
    let rows = tally.rows.iter().zip(tally.keys.by_rule(tally.rows.len())).enumerate();
    let own = tally.rows.len() - 1;
    rows.filter(|(place, (row, _))| *place != own || row.asked > 0)
        .map(|(_, (row, keys))| RuleReport::new(row, &keys, top))
        .collect()
}

impl RuleReport {
    fn new(row: &Row, by_key: &RuleKeys<'_>, top: usize) -> Self {
        let Spread { keys, denied_keys, histogram } = by_key.spread();
        let watches = row.mode == Mode::Shadow;
        let worst_window = row.worst.as_ref().map(|worst| WorstWindow {
            key: worst.key.to_string(),
            admitted: worst.admitted,
            limit: worst.limit,
            until_us: worst.at.get(),
        });
        RuleReport {
            rule: row.rule.clone(),
            mode: row.mode.as_str(),
            algorithm: row.quota.map(|quota| quota.algorithm().as_str()),
            limit: row.quota.map(|quota| quota.limit()),
            window: row.quota.map(|quota| quota.window().to_string()),
            window_us: row.quota.map(|quota| quota.window().get()),
            asked: row.asked,
            allowed: row.allowed,
            denied: row.denied,
            denied_by_others: row.asked - row.allowed - row.denied,
            newly_denied: watches.then_some(row.newly_denied),
            newly_allowed: watches.then_some(row.newly_allowed),
            keys,
            denied_keys,
            worst_window,
            longest_denied: by_key.longest_denied(),
            hardest_hit: by_key.hardest_hit(top),
            denials: bars(&histogram),
            timeline: Buckets::from(&row.timeline),
        }
    }
}

/// The n-th counts keys that were denied less than 2^n times, and not less than the one before.
fn bars(histogram: &[u64]) -> Vec<Bar> {
    let least = |n: usize| if n == 0 { 0 } else { 1u64 << (n - 1) };
    let bar = |(n, keys): (usize, &u64)| Bar { least: least(n), most: least(n + 1).max(1) - 1, keys: *keys };
    histogram.iter().enumerate().map(bar).collect()
}

impl From<&Timeline> for Buckets {
    fn from(timeline: &Timeline) -> Self {
        let of = |count: fn(&Bucket) -> u64| timeline.buckets().iter().map(count).collect();
        Buckets {
            begin_us: timeline.begin().unwrap_or_default().get(),
            width_us: timeline.width().get(),
            allowed: of(|bucket| bucket.allowed),
            denied: of(|bucket| bucket.denied),
            admitted: of(|bucket| bucket.admitted),
            limit: of(|bucket| bucket.limit),
        }
    }
}
