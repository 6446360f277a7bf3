//! Rules that follow the load: a step a second, by what this host has in use and what was reported.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{AdaptiveController, Host};
use tokio::task::spawn_blocking;

use super::state::AppState;
use crate::common::console::warn;

/// For as long as the server runs. Every server that counts in one Redis has the same factors.
pub(crate) async fn watch(gate: Arc<AppState>) {
    let mut adapter = match gate.limiter.store().redis_store() {
        Some(store) => AdaptiveController::shared(store.clone()),
        None => AdaptiveController::alone(),
    };
    let mut host = Host::new();
    let mut told = false;
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        seconds.tick().await;
        // Looking costs a little, so it is done only if a rule follows the load.
        if gate.limiter.rules().iter().any(|rule| rule.factor().is_some()) {
            // The kernel's files are read on a blocking thread.
            let looked = spawn_blocking(move || (host.load(), host)).await;
            let Ok((load, back)) = looked else { return };
            host = back;
            match adapter.step(&gate.limiter, load).await {
                Ok(()) => told = false,
                // That Redis is away is told elsewhere.
                Err(error) if error.is_unavailable() || told => {}
                Err(error) => {
                    warn(&format!("rules follow the load of this node alone: {error}"));
                    told = true;
                }
            }
        }
    }
}
