//! Per-second statistics for dashboards.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::{Clock, SystemClock};
use tokio::time::MissedTickBehavior;

use super::rules::EditionBody;
use super::store::StoreBody;
use crate::app::monitor::{AccuracyBody, MemoryBody};
use crate::app::state::AppState;
use crate::common::protocol::Protocol;
use crate::telemetry::stats::{Requests, RuleSummary, Totals};

/// Maximum number of rules in an answer: the busiest of the last minute.
const MAX_RULES: usize = 1_000;

const SECOND: Duration = Duration::from_secs(1);

/// Ends each second of the statistics, reports the second to the other nodes, and publishes it if anyone subscribes
/// to the live feed.
pub(crate) async fn publish_every_second(app: Arc<AppState>) {
    let clock = SystemClock::new();
    let mut seconds = tokio::time::interval(SECOND);
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    seconds.tick().await;
    loop {
        seconds.tick().await;
        app.stats.tick();
        app.fleet.second_ended();
        if app.export.live.has_subscribers() {
            let tick = Tick::new(&app, clock.now().get() / 1_000).await;
            // Serializing our own types cannot fail.
            let text = serde_json::to_string(&tick).unwrap_or_default();
            app.export.live.publish(text);
        }
    }
}

/// Statistics of the last second, and the current state.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Tick {
    /// Time by this server's clock, in milliseconds since 1970.
    at_ms: u64,
    /// Requests allowed in the last second.
    allowed: u64,
    denied: u64,
    /// Number of times a shadow rule would have denied a request.
    would_deny: u64,
    /// Median duration of the decisions of the last second: the upper bound of its histogram bucket.
    p50_us: Option<u64>,
    /// 99th percentile, also the upper bound of its histogram bucket.
    p99_us: Option<u64>,
    /// The busiest rules of the last minute, in the order of the rules.
    rules: Vec<RuleTick>,
    /// Total number of rules.
    rules_count: usize,
    edition: EditionBody,
    connections: Connections,
    store: StoreBody,
    /// Accuracy of the counts; null until they were audited.
    accuracy: Option<AccuracyBody>,
    /// Memory of Redis; null without Redis.
    memory: Option<MemoryBody>,
}

/// Statistics of one rule.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RuleTick {
    rule: String,
    algorithm: &'static str,
    limit: u64,
    /// Limit in force now. It differs from `limit` if the rule adapts to the load or warms up.
    effective_limit: u64,
    window_ms: u64,
    mode: &'static str,
    key: Vec<String>,
    #[serde(flatten)]
    counts: RuleCountsBody,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct RuleCountsBody {
    /// Requests of the last second that the rule had room for. Another rule may have denied them.
    allowed: u64,
    denied: u64,
    would_deny: u64,
    /// Requests of the last second that the rule allowed and charged.
    charged: u64,
    allowed_minute: u64,
    denied_minute: u64,
    would_deny_minute: u64,
    charged_minute: u64,
    /// Requests of the last minute that the rule had room for, but that another rule denied.
    not_charged_minute: u64,
    /// Highest usage of a key in the last ten seconds, as a fraction of its limit.
    usage: Option<f64>,
    /// Mean duration of its decisions in the last minute.
    mean_us: Option<f64>,
}

impl RuleCountsBody {
    /// Creates the body from the counts of the last second and of the last minute. `usage` is a fraction.
    pub(super) fn new(second: &Totals, minute: &Totals, usage: Option<f64>) -> Self {
        RuleCountsBody {
            allowed: second.allowed,
            denied: second.denied,
            would_deny: second.would_deny,
            charged: second.charged(),
            allowed_minute: minute.allowed,
            denied_minute: minute.denied,
            would_deny_minute: minute.would_deny,
            charged_minute: minute.charged(),
            not_charged_minute: minute.not_charged,
            usage,
            mean_us: minute.mean_us(),
        }
    }
}

/// Number of open connections by protocol.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Connections {
    http: usize,
    grpc: usize,
    resp: usize,
}

impl Tick {
    async fn new(app: &AppState, at_ms: u64) -> Self {
        let store = StoreBody::of(app).await;
        let (Requests { allowed, denied }, durations) = app.stats.last_second();
        let (rules, would_deny) = rules(app);
        let connections = |protocol| app.stats.connections(protocol);
        Tick {
            at_ms,
            allowed,
            denied,
            would_deny,
            p50_us: durations.below(0.5),
            p99_us: durations.below(0.99),
            rules_count: app.limiter.rules().iter().count(),
            rules,
            edition: EditionBody::of(app, &app.rules.current()),
            connections: Connections {
                http: connections(Protocol::Http),
                grpc: connections(Protocol::Grpc),
                resp: connections(Protocol::Resp),
            },
            store,
            accuracy: app.monitor.accuracy.body(),
            memory: app.monitor.memory.body(),
        }
    }
}

/// Returns the statistics of the rules, and how often shadow rules would have denied in the last second.
fn rules(app: &AppState) -> (Vec<RuleTick>, u64) {
    let (rules, rows) = app.stats.rows();
    let mut shown: Vec<(usize, RuleSummary)> = rows.iter().map(|row| row.summary()).enumerate().collect();
    let would_deny = shown.iter().map(|(_, shown)| shown.second.would_deny).sum();
    keep_busiest(&mut shown, |shown| &shown.minute);
    let rules_in_order: Vec<_> = rules.iter().collect();
    let tick = |(index, shown): (usize, RuleSummary)| {
        let RuleSummary { second, minute, usage } = shown;
        // The last row is for ad-hoc limits, which have no rule.
        let rule = rules_in_order.get(index)?;
        let quota = rule.quota();
        Some(RuleTick {
            rule: rule.name().to_owned(),
            algorithm: quota.algorithm().as_str(),
            limit: quota.limit(),
            effective_limit: rows[index].effective_limit(rule),
            window_ms: quota.window().ceil_millis(),
            mode: rule.in_mode().as_str(),
            key: rule.key().map(str::to_owned).collect(),
            counts: RuleCountsBody::new(&second, &minute, usage),
        })
    };
    (shown.into_iter().filter_map(tick).collect(), would_deny)
}

/// Keeps only the [`MAX_RULES`] busiest rules of the last minute, in their previous order.
pub(super) fn keep_busiest<K: Copy + Ord, R>(rules: &mut Vec<(K, R)>, minute: impl Fn(&R) -> &Totals) {
    if rules.len() > MAX_RULES {
        rules.sort_by_key(|(_, rule)| Reverse(minute(rule).decisions()));
        rules.truncate(MAX_RULES);
        rules.sort_by_key(|(key, _)| *key);
    }
}
