//! The `reservations` section of the file: keys that sign reservations.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::yaml::{Node, Reader};

/// Path of the file with the signing keys. It is a separate file, so that secrets need not be beside the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationsConfig {
    /// Keys, one per line: the first signs, all verify.
    pub keys: Option<PathBuf>,
}

pub(super) fn read(node: &Node, reader: &mut Reader) -> Option<ReservationsConfig> {
    let fields = reader.fields(node, "reservations", &["keys-file"])?;
    let keys = fields.required(reader, "keys-file", "reservations")?;
    Some(ReservationsConfig { keys: Some(PathBuf::from(reader.text(keys, "keys-file")?)) })
}

/// Keys that sign reservations.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Reservations")]
pub struct ReservationsFile {
    /// File of keys, one per line of 16 characters or more: the first signs, all verify. `SLIDEGATE_RESERVATION_KEY`
    /// comes before them. With neither, nodes share a key in Redis; in memory, the key is random and lost with the
    /// process.
    pub keys_file: String,
}
