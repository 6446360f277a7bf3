//! `GET /v1/fleet`: all nodes that share a Redis, and the sums of their statistics.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Serialize;

use super::Shared;
use super::live_stats::{RuleCountsBody, keep_busiest};
use super::operation::{Access, Operation};
use super::route::Route;
use crate::app::fleet::{Node, RuleCounts, Summary};
use crate::telemetry::stats::{Requests, Totals};

/// All nodes that share a Redis, and the sums of their last seconds. The seconds of two nodes end up to a second apart.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Fleet")]
struct FleetBody {
    /// Nodes, sorted by name. A node is listed for 5 s after it has stopped or lost its connection to Redis.
    nodes: Vec<NodeBody>,
    #[serde(flatten)]
    requests: RequestsBody,
    /// Sums of the rules that decided in the last minute, sorted by name. Each node reports only its 50 busiest rules.
    rules: Vec<RuleBody>,
    /// Reason why the other nodes are not known, if they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// One node.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FleetNode")]
struct NodeBody {
    /// Random id of the process.
    id: String,
    /// Host and port.
    name: String,
    /// True for the node that answers.
    this_node: bool,
    /// Time since Redis received the statistics of this node.
    age_ms: u64,
    /// Version of Slidegate.
    version: String,
    /// Number of the edition of the rules. If nodes read their rules from files, equal rules can have different numbers.
    edition: u64,
    /// Hash of the rules. It is the same on every node that has the same rules.
    hash: String,
    /// State of Redis: `ok`, `degraded` (some servers are not used, or the node writes back after an outage) or `down`
    /// (no server is used).
    store: String,
    #[serde(flatten)]
    requests: RequestsBody,
    /// Median duration of the decisions of the last second, as the upper bound of a histogram bucket.
    p50_us: Option<u64>,
    /// 99th percentile of the duration of the decisions of the last second, as the upper bound of a histogram bucket.
    p99_us: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
struct RequestsBody {
    /// Requests allowed in the last second.
    allowed: u64,
    /// Requests denied in the last second.
    denied: u64,
    /// Requests of the last second that a shadow rule would have denied, counted once for each shadow rule.
    would_deny: u64,
    /// Requests allowed in the last minute.
    allowed_minute: u64,
    /// Requests denied in the last minute.
    denied_minute: u64,
}

/// Sums of one rule over all nodes.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FleetRule")]
struct RuleBody {
    /// Name of the rule.
    rule: String,
    /// Number of nodes on which the rule decided in the last minute.
    nodes: usize,
    #[serde(flatten)]
    counts: RuleCountsBody,
}

const EXAMPLE: &str = r#"{"nodes":[{"id":"5f0c91ab","name":"web-1:8080","this_node":true,"age_ms":0,"version":"0.1.0","edition":3,"hash":"9a3c5d0f11e2b746","store":"ok","allowed":120,"denied":2,"would_deny":0,"allowed_minute":7150,"denied_minute":64,"p50_us":250,"p99_us":1000},{"id":"b72e6604","name":"web-2:8080","this_node":false,"age_ms":412,"version":"0.1.0","edition":3,"hash":"9a3c5d0f11e2b746","store":"ok","allowed":98,"denied":0,"would_deny":0,"allowed_minute":6020,"denied_minute":31,"p50_us":250,"p99_us":2500}],"allowed":218,"denied":2,"would_deny":0,"allowed_minute":13170,"denied_minute":95,"rules":[{"rule":"login-per-ip","nodes":2,"allowed":218,"denied":2,"would_deny":0,"charged":218,"allowed_minute":13170,"denied_minute":95,"would_deny_minute":0,"charged_minute":13170,"not_charged_minute":0,"usage":1.0,"mean_us":310.5}]}"#;

pub(super) fn route() -> Route {
    let operation = Operation::new(
        Access::Api,
        "fleet",
        "All nodes that share a Redis, and the sums of their statistics. Without Redis, only this node",
    )
    .answers::<FleetBody>("200", "The nodes and the sums", &[EXAMPLE]);
    Route::new("/v1/fleet").get(fleet, operation)
}

async fn fleet(State(app): State<Shared>) -> Json<FleetBody> {
    let (nodes, error) = app.fleet.nodes(&app).await;
    let sum = |part: fn(&Summary) -> Requests| {
        nodes.iter().fold(Requests::default(), |all, node| all.plus(&part(&node.summary)))
    };
    let would_deny = nodes.iter().fold(0, |all: u64, node| all.saturating_add(node.summary.would_deny));
    let requests = RequestsBody::new(sum(|node| node.second), sum(|node| node.minute), would_deny);
    let rules = rules(&nodes);
    let nodes = nodes.into_iter().map(NodeBody::from).collect();
    Json(FleetBody { nodes, requests, rules, error: error.map(|error| error.to_string()) })
}

/// Returns the sums of the busiest rules, sorted by name.
fn rules(nodes: &[Node]) -> Vec<RuleBody> {
    let mut sums: BTreeMap<&str, RuleSum> = BTreeMap::new();
    for RuleCounts(rule, second, minute, usage) in nodes.iter().flat_map(|node| &node.summary.rules) {
        let sum = sums.entry(rule).or_default();
        sum.nodes += 1;
        sum.second = sum.second.plus(second);
        sum.minute = sum.minute.plus(minute);
        sum.usage = sum.usage.max(*usage);
    }
    let mut sums: Vec<(&str, RuleSum)> = sums.into_iter().collect();
    keep_busiest(&mut sums, |sum| &sum.minute);
    let body = |(rule, RuleSum { nodes, second, minute, usage }): (&str, RuleSum)| {
        let usage = usage.map(|usage| usage as f64 / 1_000.0);
        RuleBody { rule: rule.to_owned(), nodes, counts: RuleCountsBody::new(&second, &minute, usage) }
    };
    sums.into_iter().map(body).collect()
}

/// Counts of a rule on some nodes.
#[derive(Default)]
struct RuleSum {
    nodes: usize,
    second: Totals,
    minute: Totals,
    /// Highest usage of a key, in thousandths of its limit.
    usage: Option<u64>,
}

impl RequestsBody {
    fn new(second: Requests, minute: Requests, would_deny: u64) -> Self {
        RequestsBody {
            allowed: second.allowed,
            denied: second.denied,
            would_deny,
            allowed_minute: minute.allowed,
            denied_minute: minute.denied,
        }
    }
}

impl From<Node> for NodeBody {
    fn from(Node { id, is_this, age, summary }: Node) -> Self {
        NodeBody {
            id,
            name: summary.name,
            this_node: is_this,
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            version: summary.version,
            edition: summary.edition,
            hash: summary.hash,
            store: summary.store,
            requests: RequestsBody::new(summary.second, summary.minute, summary.would_deny),
            p50_us: summary.p50_us,
            p99_us: summary.p99_us,
        }
    }
}
