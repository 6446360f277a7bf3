//! What would be decided otherwise if rules that only watch were enforced.

use std::sync::Arc;

use slidegate::{Mode, Rules, ShadowChange};

use super::DecisionStats;
use super::rule_stats::Row;

/// The most shadows that are told.
const MOST: usize = 1_000;

/// What a rule that only watches has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TracedDecision {
    /// Decisions that it looked at.
    pub(crate) decisions: u64,
    pub(crate) would_deny: u64,
    pub(crate) newly_denied: u64,
    pub(crate) newly_allowed: u64,
}

/// A rule that only watches, and what it has counted since the rules in force are.
pub(crate) struct Shadow {
    pub(crate) rule: String,
    pub(crate) shadow_of: Option<String>,
    pub(crate) watched: TracedDecision,
}

impl TracedDecision {
    fn of(row: &Row) -> Self {
        let totals = row.totals();
        TracedDecision {
            decisions: totals.decisions(),
            would_deny: totals.would_deny,
            newly_denied: row.changes(ShadowChange::NewlyDenied),
            newly_allowed: row.changes(ShadowChange::NewlyAllowed),
        }
    }

    fn since(&self, before: &TracedDecision) -> Self {
        TracedDecision {
            decisions: self.decisions.saturating_sub(before.decisions),
            would_deny: self.would_deny.saturating_sub(before.would_deny),
            newly_denied: self.newly_denied.saturating_sub(before.newly_denied),
            newly_allowed: self.newly_allowed.saturating_sub(before.newly_allowed),
        }
    }
}

/// What is in the rows of rules that only watch, the first of them.
pub(super) fn before(rules: &Rules, rows: &[Arc<Row>]) -> Vec<(usize, TracedDecision)> {
    let rules = rules.iter().enumerate().filter(|(_, rule)| rule.in_mode() == Mode::Shadow);
    let rules = rules.take(MOST);
    rules.filter_map(|(place, _)| Some((place, TracedDecision::of(rows.get(place)?)))).collect()
}

impl DecisionStats {
    /// The rules that only watch, in their order.
    pub(crate) fn shadows(&self) -> Vec<Shadow> {
        let table = self.table.load();
        let rules: Vec<_> = table.rules.iter().collect();
        let shadow = |(place, before): &(usize, TracedDecision)| {
            let (rule, row) = (rules.get(*place)?, table.rows.get(*place)?);
            Some(Shadow {
                rule: rule.name().to_owned(),
                shadow_of: rule.shadowed().map(str::to_owned),
                watched: TracedDecision::of(row).since(before),
            })
        };
        table.before.iter().filter_map(shadow).collect()
    }
}
