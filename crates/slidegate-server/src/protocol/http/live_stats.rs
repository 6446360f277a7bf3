//! Statistics of each second, for dashboards.

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
use crate::telemetry::stats::{Requests, RuleSummary};

/// The most rules in the statistics of a second: those that were busiest in the last minute.
const MOST_RULES: usize = 1_000;

const SECOND: Duration = Duration::from_secs(1);

/// Counts seconds, and tells who looks on what happened in each.
pub(crate) async fn beat(gate: Arc<AppState>) {
    let clock = SystemClock::new();
    let mut seconds = tokio::time::interval(SECOND);
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    seconds.tick().await;
    loop {
        seconds.tick().await;
        gate.stats.tick();
        if gate.export.live.has_subscribers() {
            let tick = Tick::new(&gate, clock.now().get() / 1_000).await;
            // Our own types can be written.
            let text = serde_json::to_string(&tick).unwrap_or_default();
            gate.export.live.publish(text);
        }
    }
}

/// What happened in the last second, and how it is now.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Tick {
    /// When, by this server's clock, in milliseconds since 1970.
    at_ms: u64,
    /// Requests allowed in the last second.
    allowed: u64,
    denied: u64,
    /// How often a rule that only watches would have denied.
    would_deny: u64,
    /// Half of the decisions of the last second took no longer than this.
    p50_us: Option<u64>,
    p99_us: Option<u64>,
    /// Those of the rules that were busiest in the last minute, in their order.
    rules: Vec<RuleTick>,
    /// How many there are.
    rules_count: usize,
    edition: EditionBody,
    connections: Connections,
    store: StoreBody,
    /// None until counts were checked.
    accuracy: Option<AccuracyBody>,
    /// None without Redis.
    memory: Option<MemoryBody>,
}

/// One rule.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RuleTick {
    rule: String,
    algorithm: &'static str,
    limit: u64,
    /// What the limit is now; the same, unless it follows the load or climbs.
    effective_limit: u64,
    window_ms: u64,
    mode: &'static str,
    key: Vec<String>,
    /// In the last second.
    allowed: u64,
    denied: u64,
    would_deny: u64,
    allowed_minute: u64,
    denied_minute: u64,
    would_deny_minute: u64,
    /// The highest share of its limit that a key had in use in the last ten seconds.
    usage: Option<f64>,
    /// How long its decisions took, on average, in the last minute.
    mean_us: Option<f64>,
}

/// How many there are.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Connections {
    http: usize,
    grpc: usize,
    resp: usize,
}

impl Tick {
    async fn new(gate: &AppState, at_ms: u64) -> Self {
        let store = StoreBody::of(gate).await;
        let (Requests { allowed, denied }, durations) = gate.stats.last_second();
        let (rules, would_deny) = rules(gate);
        let connections = |door| gate.stats.connections(door);
        Tick {
            at_ms,
            allowed,
            denied,
            would_deny,
            p50_us: durations.below(0.5),
            p99_us: durations.below(0.99),
            rules_count: gate.limiter.rules().iter().count(),
            rules,
            edition: EditionBody::of(gate, &gate.rules.current()),
            connections: Connections {
                http: connections(Protocol::Http),
                grpc: connections(Protocol::Grpc),
                resp: connections(Protocol::Resp),
            },
            store,
            accuracy: gate.monitor.accuracy.body(),
            memory: gate.monitor.memory.body(),
        }
    }
}

/// The rules, and how often those that only watch would have denied.
fn rules(gate: &AppState) -> (Vec<RuleTick>, u64) {
    let (rules, rows) = gate.stats.rows();
    let mut shown: Vec<(usize, RuleSummary)> = rows.iter().map(|row| row.summary()).enumerate().collect();
    let would_deny = shown.iter().map(|(_, shown)| shown.second.would_deny).sum();
    if shown.len() > MOST_RULES {
        shown.sort_by_key(|(_, shown)| std::cmp::Reverse(shown.minute.decisions()));
        shown.truncate(MOST_RULES);
        shown.sort_by_key(|(place, _)| *place);
    }
    let known: Vec<_> = rules.iter().collect();
    let tick = |(place, shown): (usize, RuleSummary)| {
        let RuleSummary { second, minute, usage } = shown;
        // What requests bring themselves has no rule.
        let rule = known.get(place)?;
        let quota = rule.quota();
        Some(RuleTick {
            rule: rule.name().to_owned(),
            algorithm: quota.algorithm().as_str(),
            limit: quota.limit(),
            effective_limit: rows[place].effective_limit(rule),
            window_ms: quota.window().ceil_millis(),
            mode: rule.in_mode().as_str(),
            key: rule.key().map(str::to_owned).collect(),
            allowed: second.allowed,
            denied: second.denied,
            would_deny: second.would_deny,
            allowed_minute: minute.allowed,
            denied_minute: minute.denied,
            would_deny_minute: minute.would_deny,
            usage,
            mean_us: (minute.decisions() > 0).then(|| minute.took as f64 / minute.decisions() as f64),
        })
    };
    (shown.into_iter().filter_map(tick).collect(), would_deny)
}
