//! The `monitor` section of the file: background checks of the counts, and of Redis's memory.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::Micros;
use slidegate::yaml::{Node, Reader};

/// Settings of the background checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorConfig {
    /// False if decisions are not counted.
    pub decisions: bool,
    /// Check of the counts.
    pub accuracy: AccuracyConfig,
    /// Check of Redis's memory.
    pub memory: MemoryConfig,
}

/// Settings of the check of counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccuracyConfig {
    /// Interval between two rounds. None disables the check.
    pub every: Option<Duration>,
    /// Upper bound on keys in one round.
    pub keys: usize,
    /// True if a wrong total or expiry is repaired.
    pub repair: bool,
}

/// Settings of the check of Redis's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Interval between two rounds. None disables the check.
    pub every: Option<Duration>,
    /// Share of the memory, in percent, above which entries that no longer count are removed.
    pub threshold: u8,
    /// Number of bytes that is 100 %; Redis's `maxmemory`, unless given.
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

/// Shortest interval between two rounds.
const MIN_INTERVAL: Micros = Micros::from_millis(100);

/// Upper bound on keys in one round.
const MAX_KEYS: u64 = 1_000;

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
        if !(1..=MAX_KEYS).contains(&keys) {
            reader.problem(node, format!("keys must be 1 to {MAX_KEYS}, not {keys}"));
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

/// Reads a duration, or `off`.
fn read_every(node: &Node, reader: &mut Reader) -> Option<Option<Duration>> {
    if node.is_word("off") {
        return Some(None);
    }
    let every = reader.duration(node, "every")?;
    if every < MIN_INTERVAL {
        reader.problem(node, format!("every must be at least {MIN_INTERVAL}, or `off`"));
        return None;
    }
    Some(Some(every.into()))
}

/// Background checks of the counts, and of Redis's memory.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Monitor")]
pub struct MonitorFile {
    /// If true, decisions are counted for metrics and the dashboard. true, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub decisions: Option<bool>,
    /// Check of the counts: some recently used keys are counted again.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub accuracy: Option<AccuracyFile>,
    /// Check of Redis's memory: if it runs short, entries that no longer count are removed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory: Option<MemoryFile>,
}

/// Settings of the check of counts.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "MonitorAccuracy")]
pub struct AccuracyFile {
    /// Interval between two rounds, or `off`. 60s, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub every: Option<String>,
    /// Upper bound on keys in one round. 100, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = 1_000))]
    pub keys: Option<u64>,
    /// If true, a wrong total or expiry is repaired. true, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub repair: Option<bool>,
}

/// Settings of the check of Redis's memory.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "MonitorMemory")]
pub struct MemoryFile {
    /// Interval between two rounds, or `off`. 60s, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub every: Option<String>,
    /// Share of the memory above which entries that no longer count are removed. 80%, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub threshold: Option<String>,
    /// Number of bytes that is 100 %. Redis's `maxmemory`, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1))]
    pub max_bytes: Option<u64>,
}
