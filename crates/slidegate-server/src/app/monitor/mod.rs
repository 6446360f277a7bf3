//! Background checks of the server: the accuracy of its counts, and the memory of Redis.

mod accuracy;
mod memory;

use std::sync::Arc;

pub(crate) use self::accuracy::{Accuracy, AccuracyBody};
pub(crate) use self::memory::{Memory, MemoryBody};
use super::state::AppState;
use crate::config::MonitorConfig;

/// Results of the background checks.
#[derive(Default)]
pub(crate) struct Monitor {
    pub(crate) accuracy: Accuracy,
    pub(crate) memory: Memory,
}

/// Runs the checks as long as the server does.
pub(crate) async fn watch(app: Arc<AppState>, config: MonitorConfig) {
    tokio::join!(accuracy::watch(&app, &config.accuracy), memory::watch(&app, &config.memory));
}
