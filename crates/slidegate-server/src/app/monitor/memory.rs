//! Background check of Redis's memory. If it runs short, entries that no longer count are removed in small steps.

use std::time::Duration;

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::{
    Error,
    redis::{GcReport, MemoryUsage, RedisStore, ServerMemory},
};

use crate::app::state::AppState;
use crate::common::console::warn;
use crate::config::MemoryConfig;

/// Number of our keys that are sampled in each round.
const SAMPLE_KEYS: usize = 200;

/// Number of keys that one clean-up step visits, and the pause after each step.
const STEP_KEYS: usize = 100;
const STEP_PAUSE: Duration = Duration::from_millis(50);

/// Number of steps after which the memory is measured again.
const STEPS_PER_CHECK: usize = 100;

/// Number of rounds to skip after a clean-up that freed nothing: all keys are in use then.
const SKIPPED_ROUNDS: u32 = 10;

/// Results of the last round, and totals of all clean-ups since the server started.
#[derive(Default)]
pub(crate) struct Memory {
    findings: Mutex<MemoryFindings>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryFindings {
    pub(crate) servers: Vec<ServerMemory>,
    pub(crate) usage: Option<MemoryUsage>,
    /// True if the memory is above the threshold.
    pub(crate) short: bool,
    pub(crate) cleanups: u64,
    pub(crate) trimmed: u64,
    pub(crate) dropped: u64,
    pub(crate) freed: u64,
}

/// Memory of Redis.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LiveMemory")]
pub(crate) struct MemoryBody {
    /// Bytes in use by all servers.
    used: u64,
    max: Option<u64>,
    /// Bytes of our keys, estimated from a sample.
    ours_estimate: Option<u64>,
    /// Entries that were removed since the server started.
    cleaned: CleanedBody,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct CleanedBody {
    keys: u64,
    entries: u64,
    bytes: u64,
}

impl Memory {
    pub(crate) fn findings(&self) -> MemoryFindings {
        self.findings.lock().clone()
    }

    /// Returns the memory of the server at `address`.
    pub(crate) fn server(&self, address: &str) -> Option<ServerMemory> {
        self.findings.lock().servers.iter().find(|server| server.address == address).cloned()
    }

    /// Returns none until the first round has ended.
    pub(crate) fn body(&self) -> Option<MemoryBody> {
        let MemoryFindings { servers, usage, trimmed, dropped, freed, .. } = self.findings();
        if servers.is_empty() {
            return None;
        }
        // If any server has no bound, there is no maximum.
        let bounded = servers.iter().all(|server| server.max > 0);
        let max: u64 = servers.iter().map(|server| server.max).sum();
        Some(MemoryBody {
            used: servers.iter().map(|server| server.used).sum(),
            max: bounded.then_some(max),
            ours_estimate: usage.map(|usage| usage.bytes),
            cleaned: CleanedBody { keys: dropped, entries: trimmed, bytes: freed },
        })
    }
}

pub(super) async fn watch(app: &AppState, config: &MemoryConfig) {
    let (Some(every), Some(store)) = (config.every, app.limiter.store().redis_store()) else { return };
    let (mut last_error, mut was_short, mut rounds_to_skip) = (None, false, 0);
    loop {
        match measure(app, store, config).await {
            Ok(short) => {
                last_error = None;
                if short && !was_short {
                    warn("Redis is short of memory: starting garbage collection");
                }
                was_short = short;
                if !short {
                    rounds_to_skip = 0;
                } else if rounds_to_skip > 0 {
                    rounds_to_skip -= 1;
                } else if clean_up(app, store, config).await.is_ok_and(|freed| !freed) {
                    rounds_to_skip = SKIPPED_ROUNDS;
                }
            }
            // The store reports that Redis is unavailable.
            Err(error) if error.is_unavailable() => {}
            Err(error) => {
                let text = error.to_string();
                if last_error.as_ref() != Some(&text) {
                    warn(&format!("cannot read the memory usage of Redis: {text}"));
                    last_error = Some(text);
                }
            }
        }
        tokio::time::sleep(every).await;
    }
}

/// Measures the memory. Returns true if it is short.
async fn measure(app: &AppState, store: &RedisStore, config: &MemoryConfig) -> Result<bool, Error> {
    let short = update_servers(app, store.memory().await?, config);
    let usage = store.weigh(SAMPLE_KEYS).await?;
    app.monitor.memory.findings.lock().usage = Some(usage);
    Ok(short)
}

fn update_servers(app: &AppState, servers: Vec<ServerMemory>, config: &MemoryConfig) -> bool {
    let short = servers.iter().any(|server| is_short(server, config));
    let mut findings = app.monitor.memory.findings.lock();
    (findings.servers, findings.short) = (servers, short);
    short
}

fn is_short(server: &ServerMemory, config: &MemoryConfig) -> bool {
    let max = config.max_bytes.unwrap_or(server.max);
    max > 0 && u128::from(server.used) * 100 > u128::from(max) * u128::from(config.threshold)
}

/// Removes entries that no longer count. Returns true if any bytes were freed.
async fn clean_up(app: &AppState, store: &RedisStore, config: &MemoryConfig) -> Result<bool, Error> {
    let (mut cursor, mut steps) = (Some(0), 0);
    app.monitor.memory.findings.lock().cleanups += 1;
    let before = app.monitor.memory.findings();
    while let Some(at) = cursor {
        let step: GcReport = store.clean(at, STEP_KEYS).await?;
        {
            let mut findings = app.monitor.memory.findings.lock();
            findings.trimmed += step.trimmed;
            findings.dropped += step.dropped;
            findings.freed += step.freed_bytes;
        }
        (cursor, steps) = (step.next, steps + 1);
        if steps % STEPS_PER_CHECK == 0 && !update_servers(app, store.memory().await?, config) {
            break;
        }
        tokio::time::sleep(STEP_PAUSE).await;
    }
    let after = app.monitor.memory.findings();
    let (trimmed, dropped) = (after.trimmed - before.trimmed, after.dropped - before.dropped);
    let freed = after.freed - before.freed;
    if dropped + trimmed > 0 {
        warn(&format!(
            "garbage collection: removed {dropped} keys and {trimmed} entries, freed {freed} bytes"
        ));
    }
    Ok(freed > 0)
}
