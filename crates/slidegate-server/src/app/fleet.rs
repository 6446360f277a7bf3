//! Fleet: all nodes that share a Redis. Every node broadcasts a summary of its statistics once a second, and a node reads the
//! summaries of the others when a client asks for them.
//!
//! Decisions do not wait for any of this: a task of its own sends the summary, from the statistics that the node gathers
//! anyway. Any program that can write to Redis can add a message, so a message that cannot be read is skipped, and the
//! numbers of messages, nodes and rules are bounded.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use slidegate::redis::{BreakerState, Broadcast, RedisStore};
use slidegate::{Error, Fault, Micros};
use tokio::sync::{Mutex, Notify};

use super::state::AppState;
use crate::common::console::warn;
use crate::telemetry::stats::{Requests, RuleSummary, Totals};

/// Name of the stream in Redis.
const TOPIC: &str = "fleet";

/// A node that has sent nothing for this long counts as stopped.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// Upper bound on nodes.
const MAX_NODES: usize = 200;

/// Upper bound on rules in a summary: the busiest of the last minute.
const MAX_RULES: usize = 50;

/// Upper bound on the bytes of a summary. A rule takes 310 at most, and about 70 usually.
const MAX_BYTES: usize = 16 << 10;

/// Upper bound on the characters of a host's name.
const MAX_HOST: usize = 64;

/// Time for which the summaries of the other nodes are valid after they were read.
const READ_TTL: Micros = Micros::from_millis(500);

/// Summaries of the other nodes, or the reason why they are not known.
type Summaries = Result<Vec<Node>, Error>;

/// This node as a member of the fleet.
pub(crate) struct Fleet {
    /// Random id of this process.
    id: String,
    /// Name of this node for people: host and port.
    pub(crate) name: String,
    /// Wakes the task that sends the summary.
    second_ended: Notify,
    /// Summaries of the other nodes, and the time at which they were read. One caller at a time reads them.
    others: Mutex<Option<(Micros, Summaries)>>,
}

/// One node of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) id: String,
    /// True for the node that answers.
    pub(crate) is_this: bool,
    /// Time since Redis received the summary.
    pub(crate) age: Duration,
    pub(crate) summary: Summary,
}

/// Statistics of a node. As JSON it is the message to the other nodes: a new field needs a default, because nodes of other
/// versions do not send it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) name: String,
    /// Version of the program.
    pub(crate) version: String,
    /// Edition of the rules in force, and their hash.
    pub(crate) edition: u64,
    pub(crate) hash: String,
    /// State of the connection to Redis: see [`store_state`].
    pub(crate) store: String,
    /// Requests of the last second.
    pub(crate) second: Requests,
    /// Requests of the last minute.
    pub(crate) minute: Requests,
    /// Number of times a shadow rule would have denied a request in the last second.
    pub(crate) would_deny: u64,
    pub(crate) p50_us: Option<u64>,
    pub(crate) p99_us: Option<u64>,
    /// The busiest rules of the last minute. Rules without a decision are left out.
    pub(crate) rules: Vec<RuleCounts>,
}

/// Counts of a rule: its name, the last second, the last minute, and the highest usage of a key in thousandths of its limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RuleCounts(pub(crate) String, pub(crate) Totals, pub(crate) Totals, pub(crate) Option<u64>);

impl Default for Fleet {
    fn default() -> Self {
        Fleet {
            id: format!("{:08x}", RandomState::new().hash_one(std::process::id()) as u32),
            name: String::new(),
            second_ended: Notify::new(),
            others: Mutex::default(),
        }
    }
}

impl Fleet {
    /// Lets the task send the summary of the second that has just ended. It does not wait.
    pub(crate) fn second_ended(&self) {
        self.second_ended.notify_one();
    }

    /// Returns the nodes by name, this one included, and the reason why the others are not known, if Redis did not answer.
    pub(crate) async fn nodes(&self, app: &AppState) -> (Vec<Node>, Option<Error>) {
        let summary = Summary::of(app);
        let this = Node { id: self.id.clone(), is_this: true, age: Duration::ZERO, summary };
        let (mut nodes, error) = match app.limiter.store().redis_store() {
            None => (Vec::new(), None),
            Some(store) => match self.others(app, store).await {
                Ok(others) => (others, None),
                Err(error) => (Vec::new(), Some(error)),
            },
        };
        nodes.push(this);
        nodes.sort_by(|a, b| (&a.summary.name, &a.id).cmp(&(&b.summary.name, &b.id)));
        (nodes, error)
    }

    /// Returns the other nodes, at most [`READ_TTL`] old.
    async fn others(&self, app: &AppState, store: &RedisStore) -> Summaries {
        let mut others = self.others.lock().await;
        if let Some((at, nodes)) = &*others
            && app.stats.now().since(*at) < READ_TTL
        {
            return nodes.clone();
        }
        let messages = store.broadcasts(TOPIC, NODE_TIMEOUT).await;
        let nodes = messages.map(|messages| latest(messages, &self.id));
        *others = Some((app.stats.now(), nodes.clone()));
        nodes
    }
}

/// Returns the latest summary of each node but `own_id`. The messages are the newest first.
fn latest(messages: Vec<Broadcast>, own_id: &str) -> Vec<Node> {
    let mut known = HashSet::new();
    let mut nodes = Vec::new();
    for Broadcast { sender, text, age } in messages {
        if nodes.len() + 1 == MAX_NODES {
            break;
        }
        if sender == own_id || known.contains(&sender) || text.len() > MAX_BYTES {
            continue;
        }
        if let Ok(summary) = serde_json::from_str(&text) {
            known.insert(sender.clone());
            nodes.push(Node { id: sender, is_this: false, age, summary });
        }
    }
    nodes
}

/// Sends the summary of this node once a second, as long as the server runs. Without Redis there is no fleet.
pub(crate) async fn publish(app: Arc<AppState>) {
    let Some(store) = app.limiter.store().redis_store() else { return };
    let mut warned = false;
    loop {
        app.fleet.second_ended.notified().await;
        // Serializing our own types cannot fail.
        let text = serde_json::to_string(&Summary::of(&app)).unwrap_or_default();
        match store.broadcast(TOPIC, &app.fleet.id, &text).await {
            Ok(()) => warned = false,
            Err(error) => {
                // The store reports that Redis is unavailable. Commands that Redis rejects are reported here.
                let rejections = [Fault::NotAllowed, Fault::WrongType, Fault::Protocol];
                if !warned && error.fault().is_some_and(|fault| rejections.contains(&fault)) {
                    warn(&format!("the other nodes do not see the statistics of this node: {error}"));
                    warned = true;
                }
            }
        }
    }
}

impl Summary {
    fn of(app: &AppState) -> Self {
        let (second, durations) = app.stats.last_second();
        let minute = app.stats.last_minute();
        let edition = app.rules.current();
        let (rules, mut rows) = app.stats.rows();
        // The last row is for ad-hoc limits, which have no rule.
        rows.truncate(rules.iter().count());
        let mut rules: Vec<(&str, RuleSummary)> =
            rows.iter().map(|row| (row.name.as_str(), row.summary())).collect();
        let would_deny = rules.iter().map(|(_, rule)| rule.second.would_deny).sum();
        rules.retain(|(_, rule)| rule.minute.decisions() > 0);
        rules.sort_by_key(|(_, rule)| Reverse(rule.minute.decisions()));
        rules.truncate(MAX_RULES);
        let counts = |(name, rule): (&str, RuleSummary)| {
            let usage = rule.usage.map(|usage| (usage * 1_000.0).round() as u64);
            RuleCounts(name.to_owned(), rule.second, rule.minute, usage)
        };
        let servers: Vec<_> =
            app.limiter.store().servers().iter().map(|server| (server.breaker, server.direct)).collect();
        Summary {
            name: app.fleet.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            edition: edition.version,
            hash: edition.hash.clone(),
            store: store_state(&servers).to_owned(),
            second,
            minute,
            would_deny,
            p50_us: durations.below(0.5),
            p99_us: durations.below(0.99),
            rules: rules.into_iter().map(counts).collect(),
        }
    }
}

/// Returns the state of the connection to Redis, from the circuit breaker of each server and whether the server decides
/// alone: `ok` if every server decides alone, `down` if no server is used, and `degraded` otherwise.
fn store_state(servers: &[(BreakerState, bool)]) -> &'static str {
    let is_used = |breaker: BreakerState| breaker == BreakerState::Closed;
    if servers.iter().all(|(breaker, direct)| is_used(*breaker) && *direct) {
        "ok"
    } else if servers.iter().any(|(breaker, _)| is_used(*breaker)) {
        "degraded"
    } else {
        "down"
    }
}

/// Returns the name of a node for people: the host's name, or `address` if that is not known, and the port.
pub(crate) fn node_name(address: SocketAddr) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME"));
    let host = host.ok().map(|host| host.trim().to_owned()).filter(|host| !host.is_empty());
    let host = host.unwrap_or_else(|| address.ip().to_string());
    format!("{}:{}", host.chars().take(MAX_HOST).collect::<String>(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(name: &str) -> Summary {
        let totals = Totals { allowed: 3, denied: 1, would_deny: 0, not_charged: 1, took: 250 };
        let rules = vec![RuleCounts("login-per-ip".to_owned(), Totals::default(), totals, Some(1_000))];
        Summary {
            name: name.to_owned(),
            minute: Requests { allowed: 4, denied: 1 },
            rules,
            ..Summary::default()
        }
    }

    fn message(sender: &str, text: &str, seconds: u64) -> Broadcast {
        Broadcast { sender: sender.to_owned(), text: text.to_owned(), age: Duration::from_secs(seconds) }
    }

    #[test]
    fn latest_summary_of_each_other_node_counts() {
        let text = |name| serde_json::to_string(&summary(name)).unwrap();
        let messages = vec![
            message("b", "{", 0),
            message("a", &text("new"), 1),
            message("own", &text("own"), 1),
            message("b", &text("b"), 2),
            message("a", &text("old"), 2),
        ];
        let nodes = latest(messages, "own");
        let node = |id: &str, name, seconds| Node {
            id: id.to_owned(),
            is_this: false,
            age: Duration::from_secs(seconds),
            summary: summary(name),
        };
        assert_eq!(nodes, [node("a", "new", 1), node("b", "b", 2)]);
    }

    #[test]
    fn messages_that_no_node_sends_are_skipped() {
        let mut other = serde_json::to_value(summary("n")).unwrap();
        other["rules"][0][2] = serde_json::json!([1, 2, 3]);
        let long = serde_json::to_string(&summary(&"n".repeat(MAX_BYTES))).unwrap();
        let wrong = ["", "null", "[]", "{}", "\u{0}", &other.to_string(), &"[".repeat(MAX_BYTES), &long];
        let messages = wrong.iter().map(|text| message(&text.len().to_string(), text, 0)).collect();
        assert!(latest(messages, "own").is_empty());
    }

    #[test]
    fn number_of_nodes_is_bounded() {
        let text = serde_json::to_string(&summary("n")).unwrap();
        let messages = (0..1_000).map(|n: u64| message(&n.to_string(), &text, 0)).collect();
        assert_eq!(latest(messages, "own").len() + 1, MAX_NODES);
    }

    #[test]
    fn largest_summary_is_not_too_long_to_be_read() {
        let most = Totals {
            allowed: u64::MAX,
            denied: u64::MAX,
            would_deny: u64::MAX,
            not_charged: u64::MAX,
            took: u64::MAX,
        };
        let requests = Requests { allowed: u64::MAX, denied: u64::MAX };
        let rule = RuleCounts("x".repeat(64), most, most, Some(u64::MAX));
        let largest = Summary {
            name: "\u{10ffff}".repeat(MAX_HOST),
            version: "100.100.100".to_owned(),
            edition: u64::MAX,
            hash: "0".repeat(16),
            store: "degraded".to_owned(),
            second: requests,
            minute: requests,
            would_deny: u64::MAX,
            p50_us: Some(u64::MAX),
            p99_us: Some(u64::MAX),
            rules: vec![rule; MAX_RULES],
        };
        let text = serde_json::to_string(&largest).unwrap();
        assert!(text.len() <= MAX_BYTES, "{}", text.len());
        assert_eq!(latest(vec![message("a", &text, 0)], "own")[0].summary, largest);
    }

    #[test]
    fn store_is_degraded_if_some_servers_are_used() {
        let (ok, open) = ((BreakerState::Closed, true), (BreakerState::Open, false));
        let joining = (BreakerState::Closed, false);
        assert_eq!(store_state(&[]), "ok");
        assert_eq!(store_state(&[ok, ok]), "ok");
        assert_eq!(store_state(&[ok, open]), "degraded");
        assert_eq!(store_state(&[joining]), "degraded");
        assert_eq!(store_state(&[open]), "down");
    }
}
