//! `slidegate schema`: prints the JSON Schema of the configuration file.

use crate::common::console::say;
use crate::config::Config;

/// Prints the schema.
pub(super) fn run() -> Result<(), String> {
    let schema = slidegate::section::root_schema(&Config::describe());
    say(&serde_json::to_string_pretty(&schema).map_err(|error| error.to_string())?);
    Ok(())
}
