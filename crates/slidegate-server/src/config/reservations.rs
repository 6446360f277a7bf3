//! The `reservations` part of the file: the keys that sign them.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::yaml::{Node, Reader};

/// Where the keys are that sign reservations. A file, so that they need not stand among the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationsConfig {
    /// Keys, one a line: the first signs, all verify.
    pub keys: Option<PathBuf>,
}

pub(super) fn read(node: &Node, reader: &mut Reader) -> Option<ReservationsConfig> {
    let fields = reader.fields(node, "reservations", &["keys-file"])?;
    let keys = fields.required(reader, "keys-file", "reservations")?;
    Some(ReservationsConfig { keys: Some(PathBuf::from(reader.text(keys, "keys-file")?)) })
}

/// How reservations are signed.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Reservations")]
pub struct ReservationsFile {
    /// A file of keys, one a line of 16 characters or more: the first signs, all verify. `SLIDEGATE_RESERVATION_KEY` comes before
    /// them. With neither, nodes share a key in Redis; in memory, the key is random and goes with the process.
    pub keys_file: String,
}
