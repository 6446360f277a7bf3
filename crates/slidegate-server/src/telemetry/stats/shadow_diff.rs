//! Requests that would be decided differently if shadow rules were enforced.

use std::sync::Arc;

use slidegate::{Mode, Rules, ShadowChange};

use super::DecisionStats;
use super::rule_stats::RuleRow;

/// Upper bound on reported shadow rules.
const MAX_SHADOWS: usize = 1_000;

/// Counts of a shadow rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShadowCounts {
    /// Decisions in which the rule took part.
    pub(crate) decisions: u64,
    pub(crate) would_deny: u64,
    pub(crate) newly_denied: u64,
    pub(crate) newly_allowed: u64,
}

/// Shadow rule, and its counts since the rules in force were loaded.
pub(crate) struct Shadow {
    pub(crate) rule: String,
    pub(crate) shadow_of: Option<String>,
    pub(crate) counts: ShadowCounts,
}

impl ShadowCounts {
    fn of(row: &RuleRow) -> Self {
        let totals = row.totals();
        ShadowCounts {
            decisions: totals.decisions(),
            would_deny: totals.would_deny,
            newly_denied: row.changes(ShadowChange::NewlyDenied),
            newly_allowed: row.changes(ShadowChange::NewlyAllowed),
        }
    }

    fn since(&self, before: &ShadowCounts) -> Self {
        ShadowCounts {
            decisions: self.decisions.saturating_sub(before.decisions),
            would_deny: self.would_deny.saturating_sub(before.would_deny),
            newly_denied: self.newly_denied.saturating_sub(before.newly_denied),
            newly_allowed: self.newly_allowed.saturating_sub(before.newly_allowed),
        }
    }
}

/// Returns the current counts of the shadow rules, at most [`MAX_SHADOWS`], each with the index of the rule.
pub(super) fn baselines(rules: &Rules, rows: &[Arc<RuleRow>]) -> Vec<(usize, ShadowCounts)> {
    let rules = rules.iter().enumerate().filter(|(_, rule)| rule.in_mode() == Mode::Shadow);
    let rules = rules.take(MAX_SHADOWS);
    rules.filter_map(|(index, _)| Some((index, ShadowCounts::of(rows.get(index)?)))).collect()
}

impl DecisionStats {
    /// Returns the shadow rules in order.
    pub(crate) fn shadows(&self) -> Vec<Shadow> {
        let table = self.table.load();
        let rules: Vec<_> = table.rules.iter().collect();
        let shadow = |(index, before): &(usize, ShadowCounts)| {
            let (rule, row) = (rules.get(*index)?, table.rows.get(*index)?);
            Some(Shadow {
                rule: rule.name().to_owned(),
                shadow_of: rule.shadowed().map(str::to_owned),
                counts: ShadowCounts::of(row).since(before),
            })
        };
        table.baselines.iter().filter_map(shadow).collect()
    }
}
