//! Tests `slidegate simulate` with the real binary.

mod comparisons; // algorithms side by side, other rules, suggested limits
mod document_examples; // the figures of the source documents, exact to the request
mod html_report; // one file, which escapes everything from a trace
mod traces; // every trace format, and errors in them

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use slidegate_testkit::process;
use tempfile::TempDir;

use crate::server::BINARY;

/// Temporary folder with rules and traces.
struct Bench {
    folder: TempDir,
}

impl Bench {
    /// Creates the folder with these rules in `rules.yaml`.
    fn new(rules: &str) -> Self {
        let bench = Bench { folder: TempDir::new().unwrap() };
        bench.file("rules.yaml", rules);
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    /// Runs the simulation with the rules in the folder.
    fn run(&self, arguments: &[&str]) -> Output {
        self.fed(arguments, b"")
    }

    /// Runs the simulation with bytes on standard input.
    fn fed(&self, arguments: &[&str], input: &[u8]) -> Output {
        run_in(self.folder.path(), &[&["--rules", "rules.yaml"], arguments].concat(), input)
    }

    /// Runs the simulation and returns its report. Asserts that the counts add up.
    fn report(&self, arguments: &[&str]) -> Value {
        let report = json(&self.run(&[arguments, &["--json"]].concat()));
        if let Some(requests) = report["requests"].as_u64()
            && report["allowed"].is_u64()
        {
            assert_eq!(number(&report, "allowed") + number(&report, "denied"), requests, "{report}");
        }
        report
    }
}

fn run_in(folder: &Path, arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(BINARY)
        .arg("simulate")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program may end before it has read all input.
    let _ = child.stdin.take().unwrap().write_all(input);
    process::finish(child, &format!("slidegate simulate {}", arguments.join(" ")))
}

fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stdout(output)))
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("{name} in {value}"))
}

/// Returns the error message of a run that was rejected.
#[track_caller]
fn denial(output: &Output) -> String {
    assert_eq!((output.status.code(), stdout(output)), (Some(2), String::new()), "{}", stderr(output));
    stderr(output).trim_start_matches("slidegate: ").trim_end().to_owned()
}
