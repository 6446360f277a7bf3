//! Requests that would be decided differently if shadow rules were enforced.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::{Mode, Rules, ShadowChange};

use super::DecisionStats;
use super::rule_stats::RuleRow;

/// Upper bound on reported shadow rules.
const MAX_SHADOWS: usize = 1_000;

/// Counts of a shadow rule, as in [`Shadow`].
pub(super) type ShadowCounts = [u64; 4];

/// Statistics of a shadow rule.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Shadow {
    /// Name of the shadow rule.
    rule: String,
    /// Name of the rule that the shadow rule will replace.
    #[serde(skip_serializing_if = "Option::is_none")]
    shadow_of: Option<String>,
    /// Number of requests that the shadow rule evaluated.
    decisions: u64,
    /// Number of requests that the shadow rule would have denied.
    would_deny: u64,
    /// Number of requests that were allowed and that the shadow rule would have denied.
    newly_denied: u64,
    /// Number of requests that only the rule `shadow_of` denied, and that the shadow rule would have allowed.
    newly_allowed: u64,
}

fn counts(row: &RuleRow) -> ShadowCounts {
    let totals = row.totals();
    let [newly_denied, newly_allowed] =
        [ShadowChange::NewlyDenied, ShadowChange::NewlyAllowed].map(|change| row.changes(change));
    [totals.decisions(), totals.would_deny, newly_denied, newly_allowed]
}

/// Returns the current counts of the shadow rules, at most [`MAX_SHADOWS`], each with the index of the rule.
pub(super) fn baselines(rules: &Rules, rows: &[Arc<RuleRow>]) -> Vec<(usize, ShadowCounts)> {
    let rules = rules.iter().enumerate().filter(|(_, rule)| rule.in_mode() == Mode::Shadow);
    let rules = rules.take(MAX_SHADOWS);
    rules.filter_map(|(index, _)| Some((index, counts(rows.get(index)?)))).collect()
}

impl DecisionStats {
    /// Returns the shadow rules in order, with their counts since the rules in force were loaded.
    pub(crate) fn shadows(&self) -> Vec<Shadow> {
        let table = self.table.load();
        let rules: Vec<_> = table.rules.iter().collect();
        let shadow = |(index, before): &(usize, ShadowCounts)| {
            let (rule, now) = (rules.get(*index)?, counts(table.rows.get(*index)?));
            let [decisions, would_deny, newly_denied, newly_allowed] =
                std::array::from_fn(|n| now[n].saturating_sub(before[n]));
            let (rule, shadow_of) = (rule.name().to_owned(), rule.shadowed().map(str::to_owned));
            Some(Shadow { rule, shadow_of, decisions, would_deny, newly_denied, newly_allowed })
        };
        table.baselines.iter().filter_map(shadow).collect()
    }
}
