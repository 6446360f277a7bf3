//! Reads a configuration file and reports every mistake in it.

use std::io;
use std::path::Path;

use super::Config;
use crate::common::console::warn;

/// Reads and checks a file, and logs its warnings. The error lists every mistake.
pub(crate) fn load(path: &Path) -> Result<Config, String> {
    let name = path.display();
    let text = read_text(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    let config = Config::parse(&text).map_err(|error| {
        let problems: Vec<String> =
            error.problems().iter().map(|problem| format!("  {name}:{problem}")).collect();
        format!("{name} has mistakes:\n{}", problems.join("\n"))
    })?;
    for warning in &config.warnings {
        warn(&format!("{name}:{warning}"));
    }
    Ok(config)
}

/// Reads a file, or standard input if the path is `-`.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    if path == Path::new("-") { io::read_to_string(io::stdin()) } else { std::fs::read_to_string(path) }
}
