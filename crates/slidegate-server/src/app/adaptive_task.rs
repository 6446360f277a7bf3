//! Background task that adapts the limits of rules to the load, one step per second.
//!
//! The load is the resource usage of this host, and the load that clients have reported.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{AdaptiveController, adaptive::Host};
use tokio::task::spawn_blocking;

use super::state::AppState;
use crate::common::console::warn;

/// Runs as long as the server does. All servers that count in the same Redis use the same factors.
pub(crate) async fn watch(app: Arc<AppState>) {
    let mut controller = match app.limiter.store().redis_store() {
        Some(store) => AdaptiveController::shared(store.clone()),
        None => AdaptiveController::alone(),
    };
    let mut host = Host::new();
    let mut warned = false;
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // Measuring has a small cost, so it is done only if a rule follows the load.
        if app.limiter.rules().iter().any(|rule| rule.factor().is_some()) {
            // The kernel's files are read on a blocking thread.
            let measured = spawn_blocking(move || (host.load(), host)).await;
            let Ok((load, returned)) = measured else { return };
            host = returned;
            match controller.step(&app.limiter, load).await {
                Ok(()) => warned = false,
                // The store reports that Redis is unavailable.
                Err(error) if error.is_unavailable() || warned => {}
                Err(error) => {
                    warn(&format!("adaptive rules use only the load of this node: {error}"));
                    warned = true;
                }
            }
        }
    }
}
