//! Rules in force: the current edition, its source, and its replacement by the next edition.
//!
//! A new edition is checked as a whole and then replaces the old one atomically: each decision uses exactly one
//! edition. Rules that cannot be read or are invalid change nothing, and the failure is reported.

mod file_source;
mod redis_source;
mod sighup;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};
use slidegate::section::{Section, Shown};
use slidegate::{
    Limiter, Rules, Unmatched,
    rules::{AdHocFile, RuleFile},
};

pub(crate) use self::file_source::FileSource;
pub(crate) use self::redis_source::{follow as follow_shared, publish};
pub(crate) use self::sighup::Sighup;
use crate::store::AnyStore;

/// Set of rules that was put in force.
#[derive(Clone, Debug)]
pub struct Edition {
    /// The rules.
    pub rules: Arc<Rules>,
    /// Version number, which increases with each edition.
    pub version: u64,
    /// Hash of the rules, identical on every node with the same rules.
    pub hash: String,
    /// Source of the rules, for messages.
    pub source: String,
}

/// Reason why the newest rules that were found are not in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Source of those rules, for messages.
    pub source: String,
    /// Problem with those rules.
    pub message: String,
}

/// Holder of the rules in force and of the last failure to replace them.
pub struct RuleManager {
    current: ArcSwap<Edition>,
    failure: ArcSwapOption<Failure>,
    text: Mutex<Option<RulesText>>,
    change_lock: Mutex<()>,
    /// Held by a replacement over HTTP, from the check of its precondition until it is in force.
    pub(crate) replacing: tokio::sync::Mutex<()>,
    changes: AtomicU64,
    failures: AtomicU64,
}

/// Text of rules as their author wrote it.
struct RulesText {
    /// Hash of the rules that the text describes.
    hash: String,
    text: Arc<str>,
}

/// Rules in the format of the configuration file.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct RulesBody {
    /// Default and bounds for requests that give their own limit and window.
    pub(crate) ad_hoc: AdHocFile,
    /// Policy for a request that no rule matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unmatched: Option<Unmatched>,
    /// Rules, in the order in which they are evaluated.
    pub(crate) rules: Vec<RuleFile>,
}

impl From<&Rules> for RulesBody {
    fn from(rules: &Rules) -> Self {
        RulesBody {
            ad_hoc: AdHocFile::from(rules.ad_hoc()),
            unmatched: Some(rules.unmatched()),
            rules: rules.iter().map(RuleFile::from).collect(),
        }
    }
}

impl RuleManager {
    /// Creates the manager with its first edition.
    pub fn new(rules: Arc<Rules>, source: impl Into<String>) -> Self {
        let version = u64::from(rules.is_known());
        let edition = Edition { hash: hash(&rules), rules, version, source: source.into() };
        RuleManager {
            current: ArcSwap::from_pointee(edition),
            failure: ArcSwapOption::empty(),
            text: Mutex::new(None),
            change_lock: Mutex::new(()),
            replacing: tokio::sync::Mutex::new(()),
            changes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// Returns the edition in force.
    pub fn current(&self) -> Arc<Edition> {
        self.current.load_full()
    }

    /// Returns the reason why the newest rules that were found are not in force. None if they are.
    pub fn failure(&self) -> Option<Arc<Failure>> {
        self.failure.load_full()
    }

    /// Stores the text of the rules with this hash.
    pub(crate) fn set_text(&self, hash: String, text: String) {
        *self.text.lock() = Some(RulesText { hash, text: text.into() });
    }

    /// Returns the text of the rules in force as their author wrote it. None if it is not known.
    pub(crate) fn text(&self) -> Option<Arc<str>> {
        let (current, text) = (self.current(), self.text.lock());
        text.as_ref().filter(|text| text.hash == current.hash).map(|text| Arc::clone(&text.text))
    }

    /// Returns the number of times that new rules were put in force.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Returns the number of times that invalid rules were found.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Puts `rules` in force, and returns the edition that is then in force.
    ///
    /// Rules equal to the current ones do not become a new edition, unless they have a `version` of their own. Rules
    /// with an older version than the current one are ignored.
    pub fn change(
        &self,
        limiter: &Limiter<AnyStore>,
        rules: Rules,
        source: &str,
        version: Option<u64>,
    ) -> Arc<Edition> {
        let _one_at_a_time = self.change_lock.lock();
        let (before, hash) = (self.current(), hash(&rules));
        let outdated = match version {
            Some(version) => version <= before.version && before.rules.is_known(),
            None => before.hash == hash,
        };
        if outdated {
            return before;
        }
        let version = version.unwrap_or(before.version + 1);
        let edition = Arc::new(Edition { rules: Arc::new(rules), version, hash, source: source.to_owned() });
        self.failure.store(None);
        limiter.set_rules(Arc::clone(&edition.rules));
        self.current.store(Arc::clone(&edition));
        self.changes.fetch_add(1, Ordering::Relaxed);
        edition
    }

    /// Lowers the version of the current edition, so that an edition with `version` can replace it.
    pub(crate) fn revert(&self, version: u64) {
        let _one_at_a_time = self.change_lock.lock();
        let before = self.current();
        self.current.store(Arc::new(Edition { version: version.saturating_sub(1), ..(*before).clone() }));
    }

    /// Forgets the last failure: the source is valid again.
    pub fn clear_failure(&self) {
        self.failure.store(None);
    }

    /// Records that new rules could not be put in force. Returns true if this failure differs from the last one.
    pub fn record_failure(&self, source: &str, message: String) -> bool {
        let failure = Failure { source: source.to_owned(), message };
        let known = self.failure.load().as_deref() == Some(&failure);
        self.failure.store(Some(Arc::new(failure)));
        self.failures.fetch_add(u64::from(!known), Ordering::Relaxed);
        !known
    }
}

/// Returns a hash of the rules themselves, not of their text: comments and the order of fields do not matter.
///
/// It is taken of the canonical form: the content of `GET /v1/rules` as YAML on one line, with the fields of each mapping in
/// alphabetical order and without fields that have their default. So it depends neither on the order in which fields are
/// declared, nor on fields that are added later and not used.
pub(crate) fn hash(rules: &Rules) -> String {
    let section = RuleFile::describe();
    let shown = rules.iter().map(|rule| section.without_defaults(RuleFile::show(&rule.into())));
    let fields = [
        ("ad-hoc", AdHocFile::show(&AdHocFile::from(rules.ad_hoc()))),
        ("rules", Shown::List(shown.collect())),
        ("unmatched", Shown::Text(rules.unmatched().as_str().to_owned())),
    ];
    let canonical = Shown::Map(fields.map(|(name, value)| (name.to_owned(), value)).into()).sorted();
    Sha256::digest(canonical.to_string())[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes of different versions compare their hashes, so the hash of these rules stays as it is. If this test fails because
    /// fields were added or moved, the canonical form is wrong, not the test.
    #[test]
    fn hash_depends_on_the_meaning_of_rules_only() -> Result<(), slidegate::Error> {
        let short = "rules: [{ name: a, key: [ip], match: { api: /x, host: h }, limit: 5, window: 1m }]";
        let long = "{ unmatched: warn, ad-hoc: { limit: { min: 1 } }, rules: [{ code: 429, mode: enforce, encoding: zset,
            count: admitted, algorithm: sliding-window, window: 60s, limit: 5, match: { host: h, api: [/x] }, key: [ip],
            name: a }] }";
        let [short, long] = [short, long].map(Rules::from_yaml);
        let expected = "3c618c2423bbf837";
        assert_eq!((hash(&short?).as_str(), hash(&long?).as_str()), (expected, expected));
        let other = Rules::from_yaml("rules: [{ name: a, key: [ip], limit: 5, window: 1m, mode: shadow }]")?;
        assert_ne!(hash(&other), expected);
        let full = Rules::from_yaml(include_str!("../../../../slidegate/tests/suite/full.yaml"))?;
        assert_eq!(hash(&full), "6dcb8012a8fe4114");
        Ok(())
    }
}
