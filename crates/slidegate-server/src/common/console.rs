//! Messages of the command line: results on standard output, warnings and errors in the log.

use std::io::{self, Write};
use std::process::ExitCode;

/// Logs an error. Returns exit code 2.
pub(crate) fn fail(message: &str) -> ExitCode {
    tracing::error!("{message}");
    ExitCode::from(2)
}

/// Prints a result. Returns exit code 0 if it is positive, and 1 if not. An error is logged, with exit code 2.
pub(crate) fn finish(result: Result<(String, bool), String>) -> ExitCode {
    match result {
        Err(message) => fail(&message),
        Ok((text, positive)) => {
            say(&text);
            ExitCode::from(u8::from(!positive))
        }
    }
}

/// Logs a warning.
pub(crate) fn warn(message: &str) {
    tracing::warn!("{message}");
}

/// Prints a line of results. A closed pipe, such as `slidegate schema | head`, is not an error.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}
