//! `slidegate validate`: checks configuration files and lists every mistake.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use slidegate::Problem;

use crate::common::console::{fail, say};
use crate::config::{Config, Environment, Inputs, read_text};

/// Arguments of `slidegate validate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    slidegate validate rules.yaml\n  \
    slidegate validate --json *.yaml")]
pub(super) struct ValidateArgs {
    /// Configuration files, or - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print a JSON array with one item for each file: its mistakes and warnings, with line and column
    #[arg(long)]
    json: bool,
}

/// Exit code 0 if every file is valid, 1 if one has mistakes, 2 if one cannot be read.
pub(super) fn run(args: &ValidateArgs) -> ExitCode {
    let checked: Vec<(String, Checked)> =
        args.files.iter().map(|path| (path.display().to_string(), check(path))).collect();
    if args.json {
        let files: Vec<Value> = checked.iter().map(|(name, checked)| checked.to_json(name)).collect();
        say(&Value::from(files).to_string());
    } else {
        checked.iter().for_each(|(name, checked)| checked.print(name));
    }
    let worst = checked.iter().map(|(_, checked)| checked.exit_code()).max();
    ExitCode::from(worst.unwrap_or_default())
}

/// Result for one file.
enum Checked {
    Valid { rules: usize, warnings: Vec<Problem> },
    Invalid(Vec<Problem>),
    Unreadable(io::Error),
}

fn check(path: &Path) -> Checked {
    let inputs = Inputs::references_only(Environment::of_process());
    match read_text(path).map(|text| Config::parse_with(&text, &inputs)) {
        Ok(Ok(config)) => Checked::Valid { rules: config.rules.iter().count(), warnings: config.warnings },
        Ok(Err(error)) => Checked::Invalid(error.problems().to_vec()),
        Err(error) => Checked::Unreadable(error),
    }
}

impl Checked {
    fn exit_code(&self) -> u8 {
        match self {
            Checked::Valid { .. } => 0,
            Checked::Invalid(_) => 1,
            Checked::Unreadable(_) => 2,
        }
    }

    /// Prints the result for people: mistakes and warnings to standard error.
    fn print(&self, name: &str) {
        match self {
            Checked::Valid { rules, warnings } => {
                for warning in warnings {
                    let Problem { line, column, message } = warning;
                    let _ = writeln!(io::stderr(), "{name}:{line}:{column}: warning: {message}");
                }
                say(&format!("{name}: ok, {rules} {}", if *rules == 1 { "rule" } else { "rules" }));
            }
            Checked::Invalid(problems) => {
                for problem in problems {
                    let _ = writeln!(io::stderr(), "{name}:{problem}");
                }
            }
            Checked::Unreadable(error) => {
                fail(&format!("cannot read {name}: {error}"));
            }
        }
    }

    fn to_json(&self, name: &str) -> Value {
        let list = |problems: &[Problem]| -> Vec<Value> {
            let to_json = |Problem { line, column, message }: &Problem| json!({ "line": line, "column": column, "message": message });
            problems.iter().map(to_json).collect()
        };
        match self {
            Checked::Valid { rules, warnings } => {
                json!({ "file": name, "valid": true, "rules": rules, "problems": [], "warnings": list(warnings) })
            }
            Checked::Invalid(problems) => {
                json!({ "file": name, "valid": false, "problems": list(problems), "warnings": [] })
            }
            Checked::Unreadable(error) => {
                json!({ "file": name, "valid": false, "error": error.to_string() })
            }
        }
    }
}
