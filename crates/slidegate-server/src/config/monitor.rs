//! The `monitor` part of the file: how the server checks its own counts, and Redis's memory.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::Micros;
use slidegate::yaml::{Node, Reader};

/// How the server checks itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorConfig {
    /// Whether decisions are recorded at all.
    pub decisions: bool,
    /// Whether counts are right.
    pub accuracy: AccuracyConfig,
    /// Whether Redis has room.
    pub memory: MemoryConfig,
}

/// How counts are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccuracyConfig {
    /// How often; none never.
    pub every: Option<Duration>,
    /// How many keys at a time, at most.
    pub keys: usize,
    /// Whether a wrong total or expiry is put right.
    pub repair: bool,
}

/// How Redis's memory is looked after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// How often it is looked at; none never.
    pub every: Option<Duration>,
    /// Above this share, in percent, what no longer counts is cleaned up.
    pub threshold: u8,
    /// The share of how many bytes; of Redis's `maxmemory`, unless given.
    pub max_bytes: Option<u64>,
}

impl Default for MonitorConfig {
    fn default() -> Self {
        MonitorConfig {
            decisions: true,
            accuracy: AccuracyConfig::default(),
            memory: MemoryConfig::default(),
        }
    }
}

impl Default for AccuracyConfig {
    fn default() -> Self {
        AccuracyConfig { every: Some(Duration::from_secs(60)), keys: 100, repair: true }
    }
}

impl Default for MemoryConfig {
    fn default() -> Self {
        MemoryConfig { every: Some(Duration::from_secs(60)), threshold: 80, max_bytes: None }
    }
}

/// The shortest time between two looks.
const SHORTEST: Micros = Micros::from_millis(100);

/// The most keys of one look.
const MOST_KEYS: u64 = 1_000;

pub(super) fn read(node: &Node, reader: &mut Reader) -> Option<MonitorConfig> {
    let fields = reader.fields(node, "monitor", &["decisions", "accuracy", "memory"])?;
    let mut config = MonitorConfig::default();
    if let Some(node) = fields.get("decisions") {
        config.decisions = reader.flag(node, "decisions")?;
    }
    if let Some(node) = fields.get("accuracy") {
        config.accuracy = read_accuracy(node, reader)?;
    }
    if let Some(node) = fields.get("memory") {
        config.memory = read_memory(node, reader)?;
    }
    Some(config)
}

fn read_accuracy(node: &Node, reader: &mut Reader) -> Option<AccuracyConfig> {
    let fields = reader.fields(node, "accuracy", &["every", "keys", "repair"])?;
    let mut config = AccuracyConfig::default();
    if let Some(node) = fields.get("every") {
        config.every = read_every(node, reader)?;
    }
    if let Some(node) = fields.get("keys") {
        let keys = reader.whole(node, "keys")?;
        if !(1..=MOST_KEYS).contains(&keys) {
            reader.problem(node, format!("keys must be 1 to {MOST_KEYS}, not {keys}"));
            return None;
        }
        config.keys = usize::try_from(keys).ok()?;
    }
    if let Some(node) = fields.get("repair") {
        config.repair = reader.flag(node, "repair")?;
    }
    Some(config)
}

fn read_memory(node: &Node, reader: &mut Reader) -> Option<MemoryConfig> {
    let fields = reader.fields(node, "memory", &["every", "threshold", "max-bytes"])?;
    let mut config = MemoryConfig::default();
    if let Some(node) = fields.get("every") {
        config.every = read_every(node, reader)?;
    }
    if let Some(node) = fields.get("threshold") {
        let text = reader.text(node, "threshold")?;
        let percent = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
        let Some(percent) = percent.filter(|percent| (1..=100).contains(percent)) else {
            reader.problem(node, "threshold must be 1% to 100%");
            return None;
        };
        config.threshold = percent;
    }
    if let Some(node) = fields.get("max-bytes") {
        let bytes = reader.whole(node, "max-bytes")?;
        if bytes == 0 {
            reader.problem(node, "max-bytes must be more than 0");
            return None;
        }
        config.max_bytes = Some(bytes);
    }
    Some(config)
}

/// A duration, or `off`.
fn read_every(node: &Node, reader: &mut Reader) -> Option<Option<Duration>> {
    if node.is_word("off") {
        return Some(None);
    }
    let every = reader.duration(node, "every")?;
    if every < SHORTEST {
        reader.problem(node, format!("every must be at least {SHORTEST}, or `off`"));
        return None;
    }
    Some(Some(every.into()))
}

/// How the server checks its own counts, and Redis's memory.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Monitor")]
pub struct MonitorFile {
    /// Whether decisions are recorded, for metrics and the dashboard. true, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub decisions: Option<bool>,
    /// Some of the keys that were decided about lately are counted again.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub accuracy: Option<AccuracyFile>,
    /// Redis's memory is watched, and what no longer counts cleaned up when it gets short.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory: Option<MemoryFile>,
}

/// How counts are checked.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "MonitorAccuracy")]
pub struct AccuracyFile {
    /// How often, or `off`. 60s, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub every: Option<String>,
    /// How many keys at a time, at most. 100, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = 1_000))]
    pub keys: Option<u64>,
    /// Whether a wrong total or expiry is put right. true, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub repair: Option<bool>,
}

/// How Redis's memory is looked after.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "MonitorMemory")]
pub struct MemoryFile {
    /// How often it is looked at, or `off`. 60s, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub every: Option<String>,
    /// Above this share of it, what no longer counts is cleaned up. 80%, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub threshold: Option<String>,
    /// The share of how many bytes. Redis's `maxmemory`, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1))]
    pub max_bytes: Option<u64>,
}
