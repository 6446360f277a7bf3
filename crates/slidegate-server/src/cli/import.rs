//! `slidegate import`: converts the files of another limiter.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::common::console::{fail, say};
use crate::config::read_text;
use crate::envoy;

/// Prints the rules of files of envoyproxy/ratelimit. Exit code 0, or 1 if there are mistakes.
pub(super) fn envoy(paths: &[PathBuf]) -> ExitCode {
    let mut files = Vec::new();
    for path in paths {
        match read_text(path) {
            Ok(text) => files.push((path.display().to_string(), text)),
            Err(error) => return fail(&format!("cannot read {}: {error}", path.display())),
        }
    }
    match envoy::import(&files) {
        Ok(text) => {
            say(text.trim_end());
            ExitCode::SUCCESS
        }
        Err(mistakes) => {
            let _ = writeln!(io::stderr(), "{}", mistakes.join("\n"));
            ExitCode::from(1)
        }
    }
}
