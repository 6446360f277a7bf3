//! Background check of Redis's memory. If it runs short, entries that no longer count are removed in small steps.

use std::time::Duration;

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::{Error, GcReport, MemoryUsage, RedisStore, ServerMemory};

use crate::app::state::AppState;
use crate::common::console::warn;
use crate::config::MemoryConfig;

/// Number of our keys that are sampled in each round.
const SAMPLE: usize = 200;

/// Number of keys that one clean-up step visits, and the pause after each step.
const STEP: usize = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// Number of steps after which the memory is measured again.
const STEPS: usize = 100;

/// Number of rounds to skip after a clean-up that freed nothing: all keys are in use then.
const IN_VAIN: u32 = 10;

/// Results of the last round, and totals of all clean-ups since the server started.
#[derive(Default)]
pub(crate) struct Memory {
    found: Mutex<Found>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) servers: Vec<ServerMemory>,
    pub(crate) weight: Option<MemoryUsage>,
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
    pub(crate) fn found(&self) -> Found {
        self.found.lock().clone()
    }

    /// Returns the memory of the server at `address`.
    pub(crate) fn of(&self, address: &str) -> Option<ServerMemory> {
        self.found.lock().servers.iter().find(|server| server.address == address).cloned()
    }

    /// Returns none until the first round has ended.
    pub(crate) fn body(&self) -> Option<MemoryBody> {
        let Found { servers, weight, trimmed, dropped, freed, .. } = self.found();
        if servers.is_empty() {
            return None;
        }
        // Without a bound on every server there is no maximum.
        let bounded = servers.iter().all(|server| server.max > 0);
        let max: u64 = servers.iter().map(|server| server.max).sum();
        Some(MemoryBody {
            used: servers.iter().map(|server| server.used).sum(),
            max: bounded.then_some(max),
            ours_estimate: weight.map(|weight| weight.bytes),
            cleaned: CleanedBody { keys: dropped, entries: trimmed, bytes: freed },
        })
    }
}

pub(super) async fn watch(gate: &AppState, config: &MemoryConfig) {
    let (Some(every), Some(store)) = (config.every, gate.limiter.store().redis_store()) else { return };
    let (mut told, mut was_short, mut rest) = (None, false, 0);
    loop {
        match look(gate, store, config).await {
            Ok(short) => {
                told = None;
                if short && !was_short {
                    warn("Redis's memory gets short: what no longer counts is cleaned up");
                }
                was_short = short;
                if !short {
                    rest = 0;
                } else if rest > 0 {
                    rest -= 1;
                } else if clean(gate, store, config).await.is_ok_and(|freed| !freed) {
                    rest = IN_VAIN;
                }
            }
            // The store reports that Redis is unavailable.
            Err(error) if error.is_unavailable() => {}
            Err(error) => {
                let text = error.to_string();
                if told.as_ref() != Some(&text) {
                    warn(&format!("Redis's memory cannot be looked at: {text}"));
                    told = Some(text);
                }
            }
        }
        tokio::time::sleep(every).await;
    }
}

/// Measures the memory. Returns true if it is short.
async fn look(gate: &AppState, store: &RedisStore, config: &MemoryConfig) -> Result<bool, Error> {
    let short = note(gate, store.memory().await?, config);
    let weight = store.weigh(SAMPLE).await?;
    gate.monitor.memory.found.lock().weight = Some(weight);
    Ok(short)
}

fn note(gate: &AppState, servers: Vec<ServerMemory>, config: &MemoryConfig) -> bool {
    let short = servers.iter().any(|server| is_short(server, config));
    let mut found = gate.monitor.memory.found.lock();
    (found.servers, found.short) = (servers, short);
    short
}

fn is_short(server: &ServerMemory, config: &MemoryConfig) -> bool {
    let max = config.max_bytes.unwrap_or(server.max);
    max > 0 && u128::from(server.used) * 100 > u128::from(max) * u128::from(config.threshold)
}

/// Removes entries that no longer count. Returns true if any bytes were freed.
async fn clean(gate: &AppState, store: &RedisStore, config: &MemoryConfig) -> Result<bool, Error> {
    let (mut trimmed, mut dropped, mut freed) = (0, 0, 0);
    let (mut cursor, mut steps) = (Some(0), 0);
    gate.monitor.memory.found.lock().cleanups += 1;
    while let Some(at) = cursor {
        let step: GcReport = store.clean(at, STEP).await?;
        {
            let mut found = gate.monitor.memory.found.lock();
            found.trimmed += step.trimmed;
            found.dropped += step.dropped;
            found.freed += step.freed_bytes;
        }
        trimmed += step.trimmed;
        dropped += step.dropped;
        freed += step.freed_bytes;
        (cursor, steps) = (step.next, steps + 1);
        if steps % STEPS == 0 && !note(gate, store.memory().await?, config) {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    if dropped + trimmed > 0 {
        warn(&format!("cleaned up: {dropped} keys dropped, {trimmed} entries trimmed, {freed} bytes freed"));
    }
    Ok(freed > 0)
}
