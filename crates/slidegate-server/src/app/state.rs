//! What every door decides with.

use std::borrow::Cow;
use std::sync::Arc;

use slidegate::{Error, Key, Limiter, MemoryStats, Micros, RedisStore, Rules};
use tokio::sync::Semaphore;

use super::auth::Auth;
use super::live_feed::LiveFeed;
use super::monitor::Monitor;
use super::request_budget::{BudgetShare, RequestBudget};
use super::rule_manager::{self, Edition, RuleManager};
use crate::common::console::warn;
use crate::common::protocol::Protocol;
use crate::common::ttl_cache::TtlCache;
use crate::config::Limits;
use crate::config::{AuthorizeConfig, RedisConfig};
use crate::store::{AnyStore, RedisStats};
use crate::telemetry::log;
use crate::telemetry::stats::{DecisionStats, Instrumented};
use crate::telemetry::trace::TraceContext;

/// How long statistics of the store are cached: to gather them, every key is visited. Those of Redis include breakers, so
/// they are cached for less.
const MEMORY_FOR: Micros = Micros::from_secs(5);
const REDIS_FOR: Micros = Micros::from_millis(500);

/// The most pages of metrics that are written at once.
const MOST_PAGES: usize = 16;

/// One server's rules, counts, and who may ask: shared by its doors.
pub struct AppState {
    /// Decides.
    pub limiter: Limiter<AnyStore>,
    /// The rules in force.
    pub rules: RuleManager,
    /// Who may ask, and who may change.
    pub access: Auth,
    /// What a client may take.
    pub limits: Limits,
    /// What `/v1/authorize` goes by.
    pub authorize: AuthorizeConfig,
    /// Where the rules are, if all nodes share them.
    pub shared_rules: Option<RedisStore>,
    /// What rules must suit.
    pub redis: RedisConfig,
    /// Whether logs have keys as they are; their digests otherwise.
    pub log_keys: bool,
    /// Bytes of requests that have not arrived whole.
    pub(crate) unfinished: RequestBudget,
    /// Places for pages of metrics on their way.
    pub(crate) metrics_pages: Arc<Semaphore>,
    /// What was decided.
    pub(crate) record: DecisionStats,
    /// Who looks on.
    pub(crate) live: LiveFeed,
    /// What the server has found about itself.
    pub(crate) monitor: Monitor,
    /// What the store holds.
    pub(crate) memory_stats: TtlCache<Option<MemoryStats>>,
    pub(crate) redis_stats: TtlCache<Option<RedisStats>>,
}

impl AppState {
    /// Open to everyone who can reach it; nobody may change anything.
    pub fn new(store: AnyStore, rules: Rules, source: impl Into<String>) -> Self {
        let limiter = Limiter::new(store, rules);
        let record = DecisionStats::new(limiter.rules());
        let rules = RuleManager::new(limiter.rules(), source);
        let (access, limits) = (Auth::default(), Limits::default());
        AppState {
            limiter,
            rules,
            access,
            limits,
            authorize: AuthorizeConfig::default(),
            shared_rules: None,
            redis: RedisConfig::default(),
            log_keys: false,
            unfinished: RequestBudget::default(),
            metrics_pages: Arc::new(Semaphore::new(MOST_PAGES)),
            record,
            live: LiveFeed::default(),
            monitor: Monitor::default(),
            memory_stats: TtlCache::new(MEMORY_FOR),
            redis_stats: TtlCache::new(REDIS_FOR),
        }
    }

    /// A connection's part of the budget for unfinished requests.
    pub(crate) fn hold(&self) -> BudgetShare {
        self.unfinished.hold(self.limits.unfinished_bytes)
    }

    /// Statistics of the memory store, at most [`MEMORY_FOR`] old; none with Redis.
    pub(crate) async fn memory_stats(&self) -> Option<MemoryStats> {
        let store = self.limiter.store().clone();
        self.memory_stats.get(self.record.now(), move || store.memory_stats()).await?
    }

    /// Statistics of the layers around Redis, at most [`REDIS_FOR`] old; none with the memory store.
    pub(crate) async fn redis_stats(&self) -> Option<RedisStats> {
        let store = self.limiter.store().clone();
        self.redis_stats.get(self.record.now(), move || store.redis_stats()).await?
    }

    /// What the door of a protocol decides with.
    pub(crate) fn deciding(&self, door: Protocol) -> Instrumented<'_> {
        Instrumented {
            limiter: &self.limiter,
            record: &self.record,
            door,
            log_keys: self.log_keys,
            caller: TraceContext::default(),
        }
    }

    /// A key as logs may have it.
    pub(crate) fn shown<'k>(&self, key: &'k Key) -> Cow<'k, str> {
        log::shown(key, self.log_keys)
    }

    /// Puts other rules in force, and says so if they are others.
    pub(crate) fn change_rules(&self, rules: Rules, source: &str, version: Option<u64>) -> Arc<Edition> {
        let before = self.rules.current();
        let edition = self.rules.change(&self.limiter, self.authorize.spell(rules), source, version);
        if edition.version != before.version {
            self.record.follow(&self.limiter);
            let Edition { version, hash, rules, .. } = &*edition;
            let n = rules.iter().count();
            tracing::info!("rules: version {version}, hash {hash}, {n} in all, from {source}");
        }
        edition
    }

    /// Puts other rules in force: here, or on every node if they share them.
    pub(crate) async fn replace_rules(&self, rules: Rules, source: &str) -> Result<Arc<Edition>, Error> {
        let version = match &self.shared_rules {
            Some(store) => Some(rule_manager::publish(store, &rules).await?),
            None => None,
        };
        let hash = rule_manager::hash(&rules);
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
