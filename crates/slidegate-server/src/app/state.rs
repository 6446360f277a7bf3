//! Application state: everything that all protocols and background tasks share.

use std::borrow::Cow;
use std::sync::Arc;

use slidegate::{Error, Key, Limiter, Micros, Rules, redis::RedisStore, store::MemoryStats};
use tokio::sync::{Semaphore, watch};

use super::auth::Auth;
use super::fleet::Fleet;
use super::live_feed::LiveFeed;
use super::monitor::Monitor;
use super::request_budget::{BudgetShare, RequestBudget};
use super::rule_manager::{self, Edition, RuleManager};
use crate::common::protocol::Protocol;
use crate::common::ttl_cache::TtlCache;
use crate::config::Limits;
use crate::config::{AuthorizeConfig, Config, MAX_RULES_BODY, RedisConfig, ShutdownConfig, rules_part};
use crate::store::{AnyStore, RedisStats};
use crate::telemetry::log;
use crate::telemetry::stats::{DecisionStats, Instrumented};
use crate::telemetry::trace::TraceContext;

/// Age limit of cached statistics of the memory store. Gathering them visits every key.
const MEMORY_STATS_TTL: Micros = Micros::from_secs(5);

/// Age limit of cached statistics of Redis. It is shorter, because they include the state of circuit breakers.
const REDIS_STATS_TTL: Micros = Micros::from_millis(500);

/// Upper bound on metrics pages that are written at the same time.
const MAX_METRICS_PAGES: usize = 16;

/// State of one server, shared by all its protocols and background tasks.
pub struct AppState {
    /// Limiter that makes the decisions.
    pub limiter: Limiter<AnyStore>,
    /// Rules in force.
    pub rules: RuleManager,
    /// Settings that do not change while the server runs.
    pub settings: Settings,
    /// Budget for the bytes of requests that have not arrived whole.
    pub(crate) unfinished: RequestBudget,
    /// Statistics of the decisions and connections.
    pub(crate) stats: DecisionStats,
    /// Results of the background checks.
    pub(crate) monitor: Monitor,
    /// Statistics on their way to dashboards and metric scrapers.
    pub(crate) export: StatsExport,
    /// This node among the nodes that share a Redis.
    pub(crate) fleet: Fleet,
    /// True when the server is about to stop: it still decides, but is not ready any more.
    draining: watch::Sender<bool>,
}

/// Settings of a server, fixed when it starts.
#[derive(Default)]
pub struct Settings {
    /// Tokens of clients and administrators.
    pub access: Auth,
    /// Bounds on the resources that a client can use.
    pub limits: Limits,
    /// Configuration of `/v1/authorize`.
    pub authorize: AuthorizeConfig,
    /// Redis configuration, which rules must be compatible with.
    pub redis: RedisConfig,
    /// Redis that holds the rules, if all nodes share them.
    pub shared_rules: Option<RedisStore>,
    /// True if logs contain keys in plain text, false if they contain digests.
    pub log_keys: bool,
    /// Delay and time limit of a shutdown.
    pub shutdown: ShutdownConfig,
}

/// Bounded ways for statistics to leave the server.
pub(crate) struct StatsExport {
    /// Live feed of dashboards.
    pub(crate) live: LiveFeed,
    /// One permit for each metrics page that may be written at the same time.
    pub(crate) metrics_pages: Arc<Semaphore>,
    memory: TtlCache<Option<MemoryStats>>,
    redis: TtlCache<Option<RedisStats>>,
}

impl Default for StatsExport {
    fn default() -> Self {
        StatsExport {
            live: LiveFeed::default(),
            metrics_pages: Arc::new(Semaphore::new(MAX_METRICS_PAGES)),
            memory: TtlCache::new(MEMORY_STATS_TTL),
            redis: TtlCache::new(REDIS_STATS_TTL),
        }
    }
}

impl AppState {
    /// Creates the state with default settings: any client that can connect may call the API, and no client may change rules.
    pub fn new(store: AnyStore, rules: Rules, source: impl Into<String>) -> Self {
        let limiter = Limiter::new(store, rules);
        let stats = DecisionStats::new(limiter.rules());
        let rules = RuleManager::new(limiter.rules(), source);
        AppState {
            limiter,
            rules,
            settings: Settings::default(),
            unfinished: RequestBudget::default(),
            stats,
            monitor: Monitor::default(),
            export: StatsExport::default(),
            fleet: Fleet::default(),
            draining: watch::Sender::new(false),
        }
    }

    /// Takes this node out of service: it is not ready any more, so that load balancers send no more requests. It still
    /// decides.
    pub(crate) fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Returns true if this node is about to stop.
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Returns a channel that changes when this node begins to stop.
    pub(crate) fn watch_draining(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    /// Returns the share of one connection in the budget for unfinished requests.
    pub(crate) fn budget_share(&self) -> BudgetShare {
        self.unfinished.share(self.settings.limits.unfinished_bytes)
    }

    /// Returns statistics of the memory store, at most [`MEMORY_STATS_TTL`] old. None with Redis.
    pub(crate) async fn memory_stats(&self) -> Option<MemoryStats> {
        let store = self.limiter.store().clone();
        self.export.memory.get(self.stats.now(), move || store.memory_stats()).await?
    }

    /// Returns statistics of the layers around Redis, at most [`REDIS_STATS_TTL`] old. None with the memory store.
    pub(crate) async fn redis_stats(&self) -> Option<RedisStats> {
        let store = self.limiter.store().clone();
        self.export.redis.get(self.stats.now(), move || store.redis_stats()).await?
    }

    /// Returns a limiter that records its decisions as those of `protocol`.
    pub(crate) fn instrumented(&self, protocol: Protocol) -> Instrumented<'_> {
        Instrumented {
            limiter: &self.limiter,
            stats: &self.stats,
            protocol,
            log_keys: self.settings.log_keys,
            caller: TraceContext::default(),
        }
    }

    /// Returns the key as it may be logged: in plain text or as a digest.
    pub(crate) fn display_key<'k>(&self, key: &'k Key) -> Cow<'k, str> {
        log::display_key(key, self.settings.log_keys)
    }

    /// Puts rules in force, and logs it if they differ from the current ones.
    pub(crate) fn change_rules(&self, rules: Rules, source: &str, version: Option<u64>) -> Arc<Edition> {
        let before = self.rules.current();
        let edition =
            self.rules.change(&self.limiter, self.settings.authorize.normalize_paths(rules), source, version);
        if edition.version != before.version {
            self.stats.update_rules(&self.limiter);
            let Edition { version, hash, rules, .. } = &*edition;
            let count = rules.iter().count();
            tracing::info!(
                event = "rules_changed",
                version,
                hash,
                count,
                source,
                "rules: version {version}, hash {hash}, count {count}, from {source}"
            );
        }
        edition
    }

    /// Puts rules in force on this node, or on every node if the nodes share rules.
    pub(crate) async fn replace_rules(&self, rules: Rules, source: &str) -> Result<Arc<Edition>, Error> {
        let version = match &self.settings.shared_rules {
            Some(store) => Some(rule_manager::publish(store, &rules).await?),
            None => None,
        };
        let hash = rule_manager::hash(&rules);
        let edition = self.change_rules(rules, source, version);
        if edition.hash != hash && version.is_some_and(|version| version < edition.version) {
            let message = "Redis gave the new rules a lower version than the rules in force: nodes apply them within ten seconds";
            return Err(Error::unavailable(message));
        }
        Ok(edition)
    }

    /// Stores the text of rules as their author wrote it: `text` is the rules, or a file that contains them. The editor shows
    /// it as long as rules with the same meaning are in force. It has at most [`MAX_RULES_BODY`] bytes.
    pub(crate) fn set_rules_text(&self, text: &str) {
        let part = rules_part(text).filter(|part| part.len() <= MAX_RULES_BODY);
        let Some(part) = part else { return };
        if let Ok(rules) = Config::parse_rules(&part, &self.settings.redis) {
            let hash = rule_manager::hash(&self.settings.authorize.normalize_paths(rules));
            self.rules.set_text(hash, part);
        }
    }

    /// Keeps the rules in force, and logs why the new ones were rejected.
    pub(crate) fn reject_rules(&self, source: &str, message: String) {
        if self.rules.record_failure(source, message.clone()) {
            let error = message.as_str();
            tracing::warn!(event = "rules_rejected", source, error, "the new rules are not used: {message}");
        }
    }
}
