//! Messages of the command line: results on standard output, warnings and errors in the log.

use std::io::{self, Write};
use std::process::ExitCode;

/// Logs an error. Returns exit code 2.
pub(crate) fn fail(message: &str) -> ExitCode {
    tracing::error!("{message}");
    ExitCode::from(2)
}

/// Logs a warning.
pub(crate) fn warn(message: &str) {
    tracing::warn!("{message}");
}

/// Prints a line of results. A closed pipe, such as `slidegate schema | head`, is not an error.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}
