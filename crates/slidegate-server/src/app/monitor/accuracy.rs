//! Background check of the counts: some recently used keys are counted again from their entries.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::{
    Clock, SystemClock,
    algorithm::{Audit, Discrepancy},
};

use crate::app::state::AppState;
use crate::common::console::warn;
use crate::config::AccuracyConfig;

/// Pause between two keys, so that Redis can serve other requests.
const KEY_PAUSE: Duration = Duration::from_millis(10);

/// Results of all checks since the server started.
#[derive(Default)]
pub(crate) struct Accuracy {
    findings: Mutex<AccuracyFindings>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct AccuracyFindings {
    /// Number of keys that were counted again.
    pub(crate) checked: u64,
    /// Number of those keys whose count was wrong.
    pub(crate) wrong: u64,
    pub(crate) repaired: u64,
    /// Rounds that the store could not complete.
    pub(crate) failed: u64,
    /// Number of discrepancies by cause.
    pub(crate) causes: BTreeMap<&'static str, u64>,
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
    pub(crate) fn findings(&self) -> AccuracyFindings {
        self.findings.lock().clone()
    }

    /// Returns none until a round has checked something.
    pub(crate) fn body(&self) -> Option<AccuracyBody> {
        let AccuracyFindings { checked, wrong, repaired, last, .. } = self.findings();
        last.map(|(ratio, at_ms)| AccuracyBody { ratio, at_ms, checked, discrepancies: wrong, repaired })
    }
}

pub(super) async fn watch(app: &AppState, config: &AccuracyConfig) {
    let Some(every) = config.every else { return };
    let clock = SystemClock::new();
    loop {
        tokio::time::sleep(every).await;
        check_round(app, config, &clock).await;
    }
}

async fn check_round(app: &AppState, config: &AccuracyConfig, clock: &SystemClock) {
    let (mut checked, mut wrong) = (0, 0);
    let rules = app.limiter.rules();
    for key in app.stats.recent.sample(config.keys) {
        tokio::time::sleep(KEY_PAUSE).await;
        // Requests may change ad-hoc limits at any time, so only limits of rules are checked.
        let limit = rules.find(&key).map(|(_, quota)| quota.capacity());
        let audit = match app.limiter.store().audit(&key, limit, config.repair).await {
            Ok(Some(audit)) => audit,
            // The key has expired.
            Ok(None) => continue,
            Err(_) => {
                app.monitor.accuracy.findings.lock().failed += 1;
                break;
            }
        };
        checked += 1;
        let Audit { discrepancies, repaired, .. } = audit;
        if discrepancies.is_empty() {
            continue;
        }
        wrong += 1;
        let messages: Vec<String> = discrepancies.iter().map(Discrepancy::to_string).collect();
        let suffix = if repaired { "; repaired" } else { "" };
        warn(&format!("the count of {} is wrong: {}{suffix}", app.display_key(&key), messages.join("; ")));
        let mut findings = app.monitor.accuracy.findings.lock();
        findings.repaired += u64::from(repaired);
        for discrepancy in &discrepancies {
            *findings.causes.entry(discrepancy.as_str()).or_default() += 1;
        }
    }
    let mut findings = app.monitor.accuracy.findings.lock();
    findings.checked += checked;
    findings.wrong += wrong;
    // Without any checked key there is no ratio.
    let ratio = (checked > 0).then(|| (checked - wrong) as f64 / checked as f64);
    findings.last = ratio.map(|ratio| (ratio, clock.now().get() / 1_000));
}
