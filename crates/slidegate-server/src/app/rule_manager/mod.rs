//! The rules in force: which edition, where it came from, and how the next one replaces it.
//!
//! An edition is checked whole before it is put in force, and then at once: a decision is made by one edition or the
//! other. What cannot be read or is not right changes nothing, and is told.

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
use slidegate::{AdHocFile, Limiter, RuleFile, Rules, UnmatchedFile};

pub(crate) use self::file_source::FileSource;
pub(crate) use self::redis_source::{follow as follow_shared, publish};
pub(crate) use self::sighup::Sighup;
use crate::store::AnyStore;

/// One set of rules that was put in force.
#[derive(Clone, Debug)]
pub struct Edition {
    /// The rules.
    pub rules: Arc<Rules>,
    /// Counts the editions.
    pub version: u64,
    /// The same on every node that has the same rules.
    pub hash: String,
    /// Where it came from, for people.
    pub source: String,
}

/// Why the newest rules that were found are not in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Where they came from, for people.
    pub source: String,
    /// What is wrong with them.
    pub message: String,
}

/// Which rules are in force, and why not others.
pub struct RuleManager {
    current: ArcSwap<Edition>,
    failure: ArcSwapOption<Failure>,
    changing: Mutex<()>,
    changes: AtomicU64,
    failures: AtomicU64,
}

/// The rules as a file has them.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct RulesBody {
    pub(crate) ad_hoc: AdHocFile,
    /// What becomes of a request that no rule matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unmatched: Option<UnmatchedFile>,
    pub(crate) rules: Vec<RuleFile>,
}

impl From<&Rules> for RulesBody {
    fn from(rules: &Rules) -> Self {
        RulesBody {
            ad_hoc: AdHocFile::from(rules.ad_hoc()),
            unmatched: Some(rules.unmatched().into()),
            rules: rules.iter().map(RuleFile::from).collect(),
        }
    }
}

impl RuleManager {
    /// The first edition.
    pub fn new(rules: Arc<Rules>, source: impl Into<String>) -> Self {
        let version = u64::from(rules.is_known());
        let edition = Edition { hash: hash(&rules), rules, version, source: source.into() };
        RuleManager {
            current: ArcSwap::from_pointee(edition),
            failure: ArcSwapOption::empty(),
            changing: Mutex::new(()),
            changes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// The edition in force.
    pub fn current(&self) -> Arc<Edition> {
        self.current.load_full()
    }

    /// Why the newest rules that were found are not in force; none if they are.
    pub fn failure(&self) -> Option<Arc<Failure>> {
        self.failure.load_full()
    }

    /// How often other rules were put in force.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// How often rules were found that are not right.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Puts `rules` in force. The same rules as before are not another edition, unless they have a `version` of their
    /// own; older ones than those in force are not put in force.
    pub fn change(
        &self,
        limiter: &Limiter<AnyStore>,
        rules: Rules,
        source: &str,
        version: Option<u64>,
    ) -> Arc<Edition> {
        let _one_at_a_time = self.changing.lock();
        let (before, hash) = (self.current(), hash(&rules));
        let old = match version {
            Some(version) => version <= before.version && before.rules.is_known(),
            None => before.hash == hash,
        };
        if old {
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

    /// Lets an edition of this version follow, though it is older than the one in force.
    pub(crate) fn revert(&self, version: u64) {
        let _one_at_a_time = self.changing.lock();
        let before = self.current();
        self.current.store(Arc::new(Edition { version: version.saturating_sub(1), ..(*before).clone() }));
    }

    /// What was not right is right again.
    pub fn mend(&self) {
        self.failure.store(None);
    }

    /// Keeps what is in force; says why, once. Whether it is news.
    pub fn fail(&self, source: &str, message: String) -> bool {
        let failure = Failure { source: source.to_owned(), message };
        let known = self.failure.load().as_deref() == Some(&failure);
        self.failure.store(Some(Arc::new(failure)));
        self.failures.fetch_add(u64::from(!known), Ordering::Relaxed);
        !known
    }
}

/// Of the rules, not of their text: comments and order of fields do not matter.
pub(crate) fn hash(rules: &Rules) -> String {
    // Our own types can be written.
    let text = serde_json::to_vec(&RulesBody::from(rules)).unwrap_or_default();
    Sha256::digest(text)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
