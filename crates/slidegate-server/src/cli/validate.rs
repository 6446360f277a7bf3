//! `slidegate validate`: checks a configuration file and lists every mistake.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use crate::common::console::{fail, say};
use crate::config::{Config, read_text};

/// Exit code 0 if the file is valid, 1 if it has mistakes, 2 if it cannot be read.
pub(super) fn run(path: &Path) -> ExitCode {
    let name = path.display();
    let text = match read_text(path) {
        Ok(text) => text,
        Err(error) => return fail(&format!("cannot read {name}: {error}")),
    };
    match Config::parse(&text) {
        Ok(config) => {
            let n = config.rules.iter().count();
            say(&format!("{name}: ok, {n} {}", if n == 1 { "rule" } else { "rules" }));
            ExitCode::SUCCESS
        }
        Err(error) => {
            for problem in error.problems() {
                let _ = writeln!(io::stderr(), "{name}:{problem}");
            }
            ExitCode::from(1)
        }
    }
}
