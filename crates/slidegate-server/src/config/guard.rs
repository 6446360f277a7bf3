//! The `guard` section of the file: failover when Redis does not answer.

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::yaml::{Node, Reader};
use slidegate::{FailoverOptions, OnErrorFile, read_on_error};

const FIELDS: [&str; 10] = [
    "deadline",
    "on-error",
    "nodes",
    "failures",
    "probes",
    "first-pause",
    "longest-pause",
    "journal",
    "heartbeat",
    "write-back",
];

pub(super) fn read(node: &Node, reader: &mut Reader) -> Option<FailoverOptions> {
    let fields = reader.fields(node, "guard", &FIELDS)?;
    let mut options = FailoverOptions::default();
    let durations = [
        ("deadline", &mut options.deadline),
        ("first-pause", &mut options.first_pause),
        ("longest-pause", &mut options.longest_pause),
        ("heartbeat", &mut options.heartbeat),
        ("write-back", &mut options.write_back),
    ];
    for (name, option) in durations {
        if let Some(duration) = fields.get(name).and_then(|node| reader.duration(node, name)) {
            *option = duration.into();
        }
    }
    let numbers =
        [("failures", &mut options.failures), ("probes", &mut options.probes), ("nodes", &mut options.nodes)];
    for (name, option) in numbers {
        if let Some(number) = fields.get(name).and_then(|node| reader.whole(node, name)) {
            *option = u32::try_from(number).unwrap_or(u32::MAX);
        }
    }
    if let Some(number) = fields.get("journal").and_then(|node| reader.whole(node, "journal")) {
        options.journal = usize::try_from(number).unwrap_or(usize::MAX);
    }
    if let Some(node) = fields.get("on-error") {
        options.on_error = read_on_error(node, reader).unwrap_or_default();
    }
    reader.accept(node, options.check())?;
    Some(options)
}

/// Failover when Redis does not answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Guard")]
pub struct GuardFile {
    /// Longest time that a decision waits for Redis. 50ms, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub deadline: Option<String>,
    /// Answer without Redis, for rules that do not set `on-error` themselves: `local`, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub on_error: Option<OnErrorFile>,
    /// Number of nodes that share the limits, assumed until the first heartbeat. 1, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = 10_000))]
    pub nodes: Option<u32>,
    /// Number of consecutive failures after which a server is no longer called. 5, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = 1_000))]
    pub failures: Option<u32>,
    /// Number of consecutive probes that must succeed before a server is called again. 2, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = 1_000))]
    pub probes: Option<u32>,
    /// Pause before the first probe. It doubles after each probe that fails. 50ms, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub first_pause: Option<String>,
    /// Longest pause between probes. 500ms, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub longest_pause: Option<String>,
    /// Upper bound on admissions that are remembered for writing back; 0 remembers none. 4000000, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(max = 1_000_000_000))]
    pub journal: Option<u64>,
    /// Interval between two heartbeats of this node. 1s, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub heartbeat: Option<String>,
    /// Time to wait for other nodes to write back their admissions. 2s, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub write_back: Option<String>,
}
