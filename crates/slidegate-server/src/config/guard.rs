//! The `guard` part of the file: what happens when Redis does not answer.

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
    for (name, place) in durations {
        if let Some(duration) = fields.get(name).and_then(|node| reader.duration(node, name)) {
            *place = duration.into();
        }
    }
    let numbers =
        [("failures", &mut options.failures), ("probes", &mut options.probes), ("nodes", &mut options.nodes)];
    for (name, place) in numbers {
        if let Some(number) = fields.get(name).and_then(|node| reader.whole(node, name)) {
            *place = u32::try_from(number).unwrap_or(u32::MAX);
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

/// What happens when Redis does not answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Guard")]
pub struct GuardFile {
    /// How long a decision may wait for Redis. 50ms, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub deadline: Option<String>,
    /// What to answer without Redis, for rules that do not say: `local`, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub on_error: Option<OnErrorFile>,
    /// How many processes share the limits, until Redis has told. 1, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = 10_000))]
    pub nodes: Option<u32>,
    /// After so many failures in a row a server is not asked any more. 5, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = 1_000))]
    pub failures: Option<u32>,
    /// So many probes in a row must be answered before it is asked again. 2, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = 1_000))]
    pub probes: Option<u32>,
    /// The wait before the first probe; it doubles with each that fails. 50ms, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub first_pause: Option<String>,
    /// The longest wait between probes. 500ms, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub longest_pause: Option<String>,
    /// The most admissions to remember, so that they can be written back; 0 remembers none. 4000000, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(max = 1_000_000_000))]
    pub journal: Option<u64>,
    /// How often this process tells the others that it is there. 1s, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub heartbeat: Option<String>,
    /// How long to wait for the others to write back what they admitted. 2s, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub write_back: Option<String>,
}
