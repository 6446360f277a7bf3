//! The `hot-keys` section of the file: protection of Redis against overload by hot keys.

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::StackOptions;
use slidegate::yaml::{Node, Reader};

const FIELDS: [&str; 3] = ["coalesce", "max-waiting", "deny-cache"];

pub(super) fn read(node: &Node, reader: &mut Reader) -> Option<StackOptions> {
    let fields = reader.fields(node, "hot-keys", &FIELDS)?;
    let mut options = StackOptions::default();
    if let Some(node) = fields.get("coalesce") {
        options.coalesce = reader.flag(node, "coalesce")?;
    }
    let numbers = [("max-waiting", &mut options.max_waiting), ("deny-cache", &mut options.deny_cache)];
    for (name, option) in numbers {
        if let Some(number) = fields.get(name).and_then(|node| reader.whole(node, name)) {
            *option = usize::try_from(number).unwrap_or(usize::MAX);
        }
    }
    reader.accept(node, options.check())?;
    Some(options)
}

/// Protection of Redis against overload by hot keys. None of it changes decisions.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "HotKeys")]
pub struct HotKeysFile {
    /// If true, requests that arrive during a call to Redis share the next call. true, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub coalesce: Option<bool>,
    /// Upper bound on requests that wait for the next call to one server; others are sent alone. 10000, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_waiting: Option<u64>,
    /// Number of denials that are cached until they could be allowed; 0 caches none. 65536, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(max = 10_000_000))]
    pub deny_cache: Option<u64>,
}
