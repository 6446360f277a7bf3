//! Simulator of Slidegate: shows the effect of rules on recorded or synthetic traffic before they are in force.
//!
//! The traffic is replayed in virtual time through the limiter and the memory store of production. `slidegate simulate` is
//! the command line of this crate: it parses [`SimulateArgs`], checks them with [`SimulateArgs::plan`], and calls
//! [`Plan::run`].
//!
//! # Layout
//!
//! | module | content |
//! |---|---|
//! | `options` | the command-line options |
//! | `plan` | the options, checked, with their files loaded |
//! | `traffic` | the requests: one file per trace format, and synthetic patterns |
//! | `scenario` | one set of rules in virtual time |
//! | `scenarios` | several sets of rules over the same requests |
//! | `stats` | counts of decisions, in bounded memory |
//! | `baseline` | comparison with recorded decisions |
//! | `recorded_line` | one decided request as JSON, in recordings and decision logs |
//! | `decision_log` | a file with every decision |
//! | `progress` | the progress bar, and the check for an interrupt |
//! | `replay` | one pass over the traffic: simulates or compares rules |
//! | `suggest` | several passes over the traffic: finds the smallest acceptable limits |
//! | `report` | the results as text, JSON, HTML and SVG |

#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod baseline;
mod decision_log;
mod options;
mod plan;
mod progress;
mod recorded_line;
mod replay;
mod report;
mod scenario;
mod scenarios;
mod stats;
mod suggest;
mod traffic;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use indicatif::HumanBytes;
use serde::Serialize;

pub use self::options::SimulateArgs;
pub use self::plan::Plan;
use self::plan::{NamedRules, Output, Question};
pub use self::recorded_line::RecordedLine;
use self::report::{Report, charts, page};
use self::suggest::Suggestions;

/// Output of a simulation.
#[derive(Debug)]
pub struct Finished {
    /// Text to print: a summary, or one JSON object.
    pub text: String,
    /// A message about each output that was written to files, such as `wrote report.html (48.3 KiB)`.
    pub written: Vec<String>,
}

impl Plan {
    /// Runs the simulation, and writes the files that the options name.
    ///
    /// The simulation ends early when `stop` becomes true. It then reports the requests up to that point.
    pub fn run(self, stop: &Arc<AtomicBool>) -> Result<Finished, String> {
        let Plan { traffic, question, output } = self;
        let has_charts = output.html.is_some() || output.svg.is_some();
        if let Question::Suggest(goal) = question {
            let suggestions = suggest::suggest(&traffic, goal, stop)?;
            let mut written = Vec::new();
            if has_charts {
                let name = "the suggested limits".to_owned();
                let rules = NamedRules { name, rules: Box::new(suggestions.rules()?) };
                let report = replay::replay(&traffic, Question::Simulate(rules), &output, stop)?;
                written = write_charts(&report, Some(&suggestions), &output)?;
            }
            let text = if output.json { json(&suggestions)? } else { suggestions.to_string() };
            return Ok(Finished { text, written });
        }
        let report = replay::replay(&traffic, question, &output, stop)?;
        let written = if has_charts { write_charts(&report, None, &output)? } else { Vec::new() };
        let text = if output.json { json(&report)? } else { report.to_string() };
        Ok(Finished { text, written })
    }
}

/// Writes the page and the charts, if the options request them. Returns a message about each output.
fn write_charts(
    report: &Report,
    suggestions: Option<&Suggestions>,
    output: &Output,
) -> Result<Vec<String>, String> {
    let charts = charts(report)?;
    let mut written = Vec::new();
    if let Some(path) = &output.html {
        let page = page(report, suggestions, &charts);
        write(path, &page)?;
        written.push(format!("wrote {} ({})", path.display(), HumanBytes(page.len() as u64)));
    }
    if let Some(directory) = &output.svg {
        std::fs::create_dir_all(directory)
            .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
        let files: Vec<(String, String)> = charts.iter().map(|chart| chart.file()).collect();
        for (name, svg) in &files {
            write(&directory.join(name), svg)?;
        }
        let bytes: usize = files.iter().map(|(_, svg)| svg.len()).sum();
        let (count, bytes) = (files.len(), HumanBytes(bytes as u64));
        written.push(format!("wrote {count} charts into {} ({bytes})", directory.display()));
    }
    Ok(written)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn json(value: &impl Serialize) -> Result<String, String> {
    serde_json::to_string(value).map_err(|error| error.to_string())
}

/// Parses a line as every trace format, after `header` as the first line of a table. Returns the number of formats that
/// accept it. Only for `fuzz/targets/trace.rs`.
#[cfg(fuzzing)]
#[doc(hidden)]
pub fn fuzz_line(header: &str, line: &str) -> usize {
    traffic::fuzz_line(header, line)
}
