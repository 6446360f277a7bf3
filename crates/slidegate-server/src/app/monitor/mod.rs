//! The server checks itself: whether counts are right, and whether Redis has room.

mod accuracy;
mod memory;

use std::sync::Arc;

pub(crate) use self::accuracy::{Accuracy, AccuracyBody};
pub(crate) use self::memory::{Memory, MemoryBody};
use super::state::AppState;
use crate::config::MonitorConfig;

/// What the checks have found.
#[derive(Default)]
pub(crate) struct Monitor {
    pub(crate) accuracy: Accuracy,
    pub(crate) memory: Memory,
}

/// Checks for as long as the server runs.
pub(crate) async fn watch(gate: Arc<AppState>, config: MonitorConfig) {
    tokio::join!(accuracy::watch(&gate, &config.accuracy), memory::watch(&gate, &config.memory));
}
