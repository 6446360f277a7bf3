//! Difference between the decisions of new and old rules, by rule and by key.

use std::collections::BTreeMap;

use serde::Serialize;
use slidegate::Key;

use crate::scenarios::{KeyChange, KeyChanges, ScenarioRun};

/// Requests that new rules decide differently from old rules.
#[derive(Debug, Serialize)]
pub(crate) struct Difference {
    /// File of the old rules.
    pub(crate) against: String,
    /// Requests that the old rules denied.
    pub(crate) denied_before: u64,
    pub(crate) newly_denied: u64,
    pub(crate) newly_allowed: u64,
    /// Changes by rule: the new rule that denies, or the old rule that denied.
    pub(crate) rules: Vec<ChangeReport>,
    /// The keys with the most changes.
    pub(crate) keys: Vec<ChangeReport>,
    /// Number of keys with any change.
    pub(crate) changed_keys: u64,
}

/// Changes of one rule or key.
#[derive(Debug, Serialize)]
pub(crate) struct ChangeReport {
    pub(crate) name: String,
    pub(crate) newly_denied: u64,
    pub(crate) newly_allowed: u64,
}

impl Difference {
    pub(crate) fn new(old: &ScenarioRun, new: &ScenarioRun, changes: &KeyChanges, top: usize) -> Self {
        let mut rules: BTreeMap<&str, KeyChange> = BTreeMap::new();
        for (key, change) in &changes.keys {
            let rule = rules.entry(key.rule()).or_default();
            rule.only_denied += change.only_denied;
            rule.only_allowed += change.only_allowed;
        }
        let mut keys: Vec<(&Key, &KeyChange)> = changes.keys.iter().collect();
        keys.sort_by(|(a, x), (b, y)| y.total().cmp(&x.total()).then_with(|| a.as_str().cmp(b.as_str())));
        Difference {
            against: old.name.clone(),
            denied_before: old.stats.denied,
            newly_denied: new.only_denied,
            newly_allowed: new.only_allowed,
            rules: rules.iter().map(|(name, change)| change_report(name, change)).collect(),
            keys: keys.iter().take(top).map(|(key, change)| change_report(key.as_str(), change)).collect(),
            changed_keys: changes.keys.len() as u64,
        }
    }
}

impl KeyChange {
    fn total(&self) -> u64 {
        self.only_denied + self.only_allowed
    }
}

fn change_report(name: &str, change: &KeyChange) -> ChangeReport {
    ChangeReport {
        name: name.to_owned(),
        newly_denied: change.only_denied,
        newly_allowed: change.only_allowed,
    }
}
