//! What every door decides with.

use std::sync::Arc;

use slidegate::{Error, Limiter, RedisStore, Rules};

use crate::access::Access;
use crate::cli::{say, warn};
use crate::config::{AuthorizeConfig, RedisConfig};
use crate::listen::Limits;
use crate::rulebook::{self, Edition, RuleBook};
use crate::store::AnyStore;

/// One server's rules, counts, and who may ask: shared by its doors.
pub struct Gate {
    /// Decides.
    pub limiter: Limiter<AnyStore>,
    /// The rules in force.
    pub rules: RuleBook,
    /// Who may ask, and who may change.
    pub access: Access,
    /// What a client may take.
    pub limits: Limits,
    /// What `/v1/authorize` goes by.
    pub authorize: AuthorizeConfig,
    /// Where the rules are, if all nodes share them.
    pub shared_rules: Option<RedisStore>,
    /// What rules must suit.
    pub redis: RedisConfig,
}

impl Gate {
    /// Open to everyone who can reach it; nobody may change anything.
    pub fn new(store: AnyStore, rules: Rules, source: impl Into<String>) -> Self {
        let limiter = Limiter::new(store, rules);
        let rules = RuleBook::new(limiter.rules(), source);
        let (access, limits) = (Access::default(), Limits::default());
        Gate {
            limiter,
            rules,
            access,
            limits,
            authorize: AuthorizeConfig::default(),
            shared_rules: None,
            redis: RedisConfig::default(),
        }
    }

    /// Puts other rules in force, and says so if they are others.
    pub(crate) fn change_rules(&self, rules: Rules, source: &str, version: Option<u64>) -> Arc<Edition> {
        let before = self.rules.current();
        let edition = self.rules.change(&self.limiter, rules, source, version);
        if edition.version != before.version {
            let Edition { version, hash, rules, .. } = &*edition;
            let n = rules.iter().count();
            say(&format!("rules: version {version}, hash {hash}, {n} in all, from {source}"));
        }
        edition
    }

    /// Puts other rules in force: here, or on every node if they share them.
    pub(crate) async fn replace_rules(&self, rules: Rules, source: &str) -> Result<Arc<Edition>, Error> {
        let version = match &self.shared_rules {
            Some(store) => Some(rulebook::publish(store, &rules).await?),
            None => None,
        };
        let hash = rulebook::hash(&rules);
        let edition = self.change_rules(rules, source, version);
        if edition.hash != hash && version.is_some_and(|version| version < edition.version) {
            let message = "Redis numbers the new rules before those in force: they are there, and followed in ten seconds";
            return Err(Error::unavailable(message));
        }
        Ok(edition)
    }

    /// Keeps the rules in force, and says why.
    pub(crate) fn keep_rules(&self, source: &str, message: String) {
        let text = format!("the rules stay as they are: {message}");
        if self.rules.fail(source, message) {
            warn(&text);
        }
    }
}
