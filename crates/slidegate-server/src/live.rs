//! What a dashboard is told every second.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::{Clock, SystemClock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::MissedTickBehavior;

use crate::gate::Gate;
use crate::http::{EditionBody, StoreBody};
use crate::monitor::{AccuracyBody, MemoryBody};
use crate::record::{Requests, Shown};
use crate::tls::Protocol;

/// The most that look on at once.
const MOST: usize = 100;

/// The most rules of which it is told each second; those that were busiest in the last minute.
const MOST_RULES: usize = 1_000;

const SECOND: Duration = Duration::from_secs(1);

/// Those who look on.
pub(crate) struct Live {
    /// The newest; none when the server stops.
    ticks: watch::Sender<Option<Arc<str>>>,
    /// As many as may look on.
    places: Arc<Semaphore>,
}

/// What one of them is told, and its place.
pub(crate) struct Ticks {
    ticks: watch::Receiver<Option<Arc<str>>>,
    _place: OwnedSemaphorePermit,
}

impl Ticks {
    /// The next, once it is there; none when the server stops.
    pub(crate) async fn next(&mut self) -> Option<Arc<str>> {
        self.ticks.changed().await.ok()?;
        self.ticks.borrow_and_update().clone()
    }
}

impl Default for Live {
    fn default() -> Self {
        Live { ticks: watch::Sender::new(Some(Arc::from(""))), places: Arc::new(Semaphore::new(MOST)) }
    }
}

impl Live {
    /// Told every second from now on; none if too many are.
    pub(crate) fn watch(&self) -> Option<Ticks> {
        let _place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let ticks = self.ticks.subscribe();
        let goes_on = ticks.borrow().is_some();
        goes_on.then_some(Ticks { ticks, _place })
    }

    /// Nobody is told any more.
    pub(crate) fn stop(&self) {
        self.ticks.send_replace(None);
    }
}

/// Counts seconds, and tells who looks on what happened in each.
pub(crate) async fn beat(gate: Arc<Gate>) {
    let clock = SystemClock::new();
    let mut seconds = tokio::time::interval(SECOND);
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    seconds.tick().await;
    loop {
        seconds.tick().await;
        gate.record.beat();
        if gate.live.ticks.receiver_count() > 0 {
            let tick = Tick::new(&gate, clock.now().get() / 1_000).await;
            // Our own types can be written.
            let text = serde_json::to_string(&tick).unwrap_or_default();
            gate.live.ticks.send_if_modified(|newest| {
                // A server that stops stays so.
                newest.is_some() && newest.replace(Arc::from(text)).is_some()
            });
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
    refused: u64,
    /// How often a rule that only watches would have refused.
    would_refuse: u64,
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
    refused: u64,
    would_refuse: u64,
    allowed_minute: u64,
    refused_minute: u64,
    would_refuse_minute: u64,
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
    async fn new(gate: &Gate, at_ms: u64) -> Self {
        let store = StoreBody::of(gate).await;
        let (Requests { allowed, refused }, durations) = gate.record.second();
        let (rules, would_refuse) = rules(gate);
        let connections = |door| gate.record.connections(door);
        Tick {
            at_ms,
            allowed,
            refused,
            would_refuse,
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

/// The rules, and how often those that only watch would have refused.
fn rules(gate: &Gate) -> (Vec<RuleTick>, u64) {
    let (rules, rows) = gate.record.rows();
    let mut shown: Vec<(usize, Shown)> = rows.iter().map(|row| row.shown()).enumerate().collect();
    let would_refuse = shown.iter().map(|(_, shown)| shown.second.would_refuse).sum();
    if shown.len() > MOST_RULES {
        shown.sort_by_key(|(_, shown)| std::cmp::Reverse(shown.minute.decisions()));
        shown.truncate(MOST_RULES);
        shown.sort_by_key(|(place, _)| *place);
    }
    let known: Vec<_> = rules.iter().collect();
    let tick = |(place, shown): (usize, Shown)| {
        let Shown { second, minute, usage } = shown;
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
            refused: second.refused,
            would_refuse: second.would_refuse,
            allowed_minute: minute.allowed,
            refused_minute: minute.refused,
            would_refuse_minute: minute.would_refuse,
            usage,
            mean_us: (minute.decisions() > 0).then(|| minute.took as f64 / minute.decisions() as f64),
        })
    };
    (shown.into_iter().filter_map(tick).collect(), would_refuse)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Many ask at once for the last places: no more than there are get one.
    #[test]
    fn no_more_look_on_than_may() {
        let live = Live::default();
        let mut known: Vec<Ticks> = (0..MOST - 2).filter_map(|_| live.watch()).collect();
        for _ in 0..200 {
            let new: Vec<Option<Ticks>> = thread::scope(|scope| {
                let asking: Vec<_> = (0..8).map(|_| scope.spawn(|| live.watch())).collect();
                asking.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(new.iter().flatten().count(), 2);
        }
        known.extend([live.watch().unwrap(), live.watch().unwrap()]);
        assert!(live.watch().is_none());
        known.pop();
        assert!(live.watch().is_some(), "who leaves makes room");
        live.stop();
        known.pop();
        assert!(live.watch().is_none(), "nobody is let in while the server stops");
    }
}
