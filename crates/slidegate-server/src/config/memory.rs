//! The `memory` section of the file: bounds of the memory store.

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::yaml::{Node, Reader};
use slidegate::{MemoryOptions, OnFull};

const FIELDS: [&str; 3] = ["max-keys", "on-full", "max-note-bytes"];

const ON_FULL: [(&str, OnFull); 3] =
    [("share", OnFull::Share), ("deny", OnFull::Deny), ("evict", OnFull::Evict)];

pub(super) fn read(node: &Node, reader: &mut Reader) -> Option<MemoryOptions> {
    let fields = reader.fields(node, "memory", &FIELDS)?;
    let mut options = MemoryOptions::default();
    let numbers = [("max-keys", &mut options.max_keys), ("max-note-bytes", &mut options.max_note_bytes)];
    for (name, option) in numbers {
        if let Some(node) = fields.get(name) {
            *option = usize::try_from(reader.whole(node, name)?).unwrap_or(usize::MAX);
        }
    }
    if let Some(node) = fields.get("on-full") {
        options.on_full = reader.word(node, "on-full", &ON_FULL)?;
    }
    reader.accept(node, options.check())?;
    Some(options)
}

/// Bounds of the memory store, and what happens when it is full. Only with `store: memory`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "MemoryStore")]
pub struct MemoryStoreFile {
    /// Keys that are held, each with a counter of its own. 1000000, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub max_keys: Option<u64>,
    /// Policy for a new key when all of them count something. share, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub on_full: Option<OnFullFile>,
    /// Bytes for request ids and settlements. 134217728 (128 MiB), unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1_048_576, max = 1_099_511_627_776u64))]
    pub max_note_bytes: Option<u64>,
}

/// Policy for a new key when the memory store is full.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "OnFull")]
pub enum OnFullFile {
    /// New keys share counters: a key may be denied because of others, and is never admitted more than its limit.
    Share,
    /// New keys are denied until there is room.
    Deny,
    /// The youngest key starts again from zero, and is then admitted more than its limit.
    Evict,
}
