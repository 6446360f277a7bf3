//! Whether counts are right: some of the keys that were decided about lately are counted again from their entries.

use std::time::Duration;

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::{Audit, Clock, Discrepancy, SystemClock};

use crate::app::state::AppState;
use crate::common::console::warn;
use crate::config::AccuracyConfig;

/// Between two keys: Redis has others to answer.
const PAUSE: Duration = Duration::from_millis(10);

/// What the checks have found since the server started.
#[derive(Default)]
pub(crate) struct Accuracy {
    found: Mutex<Found>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Keys that were counted again.
    pub(crate) checked: u64,
    /// Those of them that were not right.
    pub(crate) wrong: u64,
    pub(crate) repaired: u64,
    /// Rounds that the store could not answer.
    pub(crate) failed: u64,
    /// How often each thing was wrong.
    pub(crate) causes: Vec<(&'static str, u64)>,
    /// The share of keys that were right in the last round, and when that was, in milliseconds since 1970.
    pub(crate) last: Option<(f64, u64)>,
}

/// Whether counts are right.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LiveAccuracy")]
pub(crate) struct AccuracyBody {
    /// Of the keys in the last round, the share that was right.
    ratio: f64,
    /// When that was, in milliseconds since 1970.
    at_ms: u64,
    /// Keys that were counted again since the server started.
    checked: u64,
    /// Those of them that were not right.
    discrepancies: u64,
    repaired: u64,
}

impl Accuracy {
    pub(crate) fn found(&self) -> Found {
        self.found.lock().clone()
    }

    /// None until something was checked.
    pub(crate) fn body(&self) -> Option<AccuracyBody> {
        let Found { checked, wrong, repaired, last, .. } = self.found();
        last.map(|(ratio, at_ms)| AccuracyBody { ratio, at_ms, checked, discrepancies: wrong, repaired })
    }
}

pub(super) async fn watch(gate: &AppState, config: &AccuracyConfig) {
    let Some(every) = config.every else { return };
    let clock = SystemClock::new();
    loop {
        tokio::time::sleep(every).await;
        round(gate, config, &clock).await;
    }
}

async fn round(gate: &AppState, config: &AccuracyConfig, clock: &SystemClock) {
    let (mut checked, mut wrong) = (0, 0);
    let rules = gate.limiter.rules();
    for key in gate.stats.recent.some(config.keys) {
        tokio::time::sleep(PAUSE).await;
        // What requests bring themselves is theirs to change.
        let limit = rules.find(&key).map(|(_, quota)| quota.capacity());
        let audit = match gate.limiter.store().audit(&key, limit, config.repair).await {
            Ok(Some(audit)) => audit,
            // Nothing is counted any more.
            Ok(None) => continue,
            Err(_) => {
                gate.monitor.accuracy.found.lock().failed += 1;
                break;
            }
        };
        checked += 1;
        let Audit { discrepancies, repaired, .. } = audit;
        if discrepancies.is_empty() {
            continue;
        }
        wrong += 1;
        let said: Vec<String> = discrepancies.iter().map(Discrepancy::to_string).collect();
        let then = if repaired { "; put right" } else { "" };
        warn(&format!("the count of {} is not right: {}{then}", gate.shown(&key), said.join("; ")));
        let mut found = gate.monitor.accuracy.found.lock();
        found.repaired += u64::from(repaired);
        for discrepancy in &discrepancies {
            let cause = discrepancy.as_str();
            match found.causes.iter_mut().find(|(known, _)| *known == cause) {
                Some((_, count)) => *count += 1,
                None => found.causes.push((cause, 1)),
            }
        }
    }
    let mut found = gate.monitor.accuracy.found.lock();
    found.checked += checked;
    found.wrong += wrong;
    // Of nothing there is no share.
    let ratio = (checked > 0).then(|| (checked - wrong) as f64 / checked as f64);
    found.last = ratio.map(|ratio| (ratio, clock.now().get() / 1_000));
}
