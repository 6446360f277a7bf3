//! Who would be treated otherwise by other rules.

use std::collections::BTreeMap;

use serde::Serialize;
use slidegate::Key;

use crate::scenarios::{Change, Changes, Counted};

/// What new rules do that old ones did not.
#[derive(Debug, Serialize)]
pub(crate) struct Difference {
    /// Where the old rules are from.
    pub(crate) against: String,
    /// What the old rules denied.
    pub(crate) denied_before: u64,
    pub(crate) newly_denied: u64,
    pub(crate) newly_allowed: u64,
    /// By the new rule that denies, and by the old one that did.
    pub(crate) rules: Vec<Changed>,
    /// The keys with the most changes.
    pub(crate) keys: Vec<Changed>,
    /// How many keys there are with any.
    pub(crate) changed_keys: u64,
}

/// A rule or a key.
#[derive(Debug, Serialize)]
pub(crate) struct Changed {
    pub(crate) name: String,
    pub(crate) newly_denied: u64,
    pub(crate) newly_allowed: u64,
}

impl Difference {
    pub(crate) fn new(old: &Counted, new: &Counted, changes: &Changes, top: usize) -> Self {
        let mut rules: BTreeMap<&str, Change> = BTreeMap::new();
        for (key, change) in &changes.keys {
            let rule = rules.entry(key.rule()).or_default();
            rule.only_denied += change.only_denied;
            rule.only_allowed += change.only_allowed;
        }
        let mut keys: Vec<(&Key, &Change)> = changes.keys.iter().collect();
        keys.sort_by(|(a, x), (b, y)| y.total().cmp(&x.total()).then_with(|| a.as_str().cmp(b.as_str())));
        Difference {
            against: old.name.clone(),
            denied_before: old.tally.denied,
            newly_denied: new.only_denied,
            newly_allowed: new.only_allowed,
            rules: rules.iter().map(|(name, change)| changed(name, change)).collect(),
            keys: keys.iter().take(top).map(|(key, change)| changed(key.as_str(), change)).collect(),
            changed_keys: changes.keys.len() as u64,
        }
    }
}

impl Change {
    fn total(&self) -> u64 {
        self.only_denied + self.only_allowed
    }
}

fn changed(name: &str, change: &Change) -> Changed {
    Changed { name: name.to_owned(), newly_denied: change.only_denied, newly_allowed: change.only_allowed }
}
