//! Background check of the counts: some recently used keys are counted again from their entries.

use std::time::Duration;

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::{Audit, Clock, Discrepancy, SystemClock};

use crate::app::state::AppState;
use crate::common::console::warn;
use crate::config::AccuracyConfig;

/// Pause between two keys, so that Redis can serve other requests.
const PAUSE: Duration = Duration::from_millis(10);

/// Results of all checks since the server started.
#[derive(Default)]
pub(crate) struct Accuracy {
    found: Mutex<Found>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Number of keys that were counted again.
    pub(crate) checked: u64,
    /// Number of those keys whose count was wrong.
    pub(crate) wrong: u64,
    pub(crate) repaired: u64,
    /// Rounds that the store could not complete.
    pub(crate) failed: u64,
    /// Number of discrepancies by cause.
    pub(crate) causes: Vec<(&'static str, u64)>,
    /// Share of keys with a correct count in the last round, and the time of that round in milliseconds since 1970.
    pub(crate) last: Option<(f64, u64)>,
}

/// Accuracy of the counts.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LiveAccuracy")]
pub(crate) struct AccuracyBody {
    /// Share of the keys in the last round whose count was correct.
    ratio: f64,
    /// Time of the last round, in milliseconds since 1970.
    at_ms: u64,
    /// Number of keys that were counted again since the server started.
    checked: u64,
    /// Number of those keys whose count was wrong.
    discrepancies: u64,
    repaired: u64,
}

impl Accuracy {
    pub(crate) fn found(&self) -> Found {
        self.found.lock().clone()
    }

    /// Returns none until a round has checked something.
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
        // Requests may change ad-hoc limits at any time, so only limits of rules are checked.
        let limit = rules.find(&key).map(|(_, quota)| quota.capacity());
        let audit = match gate.limiter.store().audit(&key, limit, config.repair).await {
            Ok(Some(audit)) => audit,
            // The key has expired.
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
    // Without any checked key there is no ratio.
    let ratio = (checked > 0).then(|| (checked - wrong) as f64 / checked as f64);
    found.last = ratio.map(|ratio| (ratio, clock.now().get() / 1_000));
}
