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

use serde::Serialize;

pub use self::options::SimulateArgs;
pub use self::plan::Plan;
use self::plan::{Output, Question};
pub use self::recorded_line::RecordedLine;
use self::report::{Report, charts, page};

impl Plan {
    /// Runs the simulation, writes the files that the options name, and returns the text to print: a summary, or one JSON
    /// object.
    ///
    /// The simulation ends early when `stop` becomes true. It then reports the requests up to that point.
    pub fn run(self, stop: &Arc<AtomicBool>) -> Result<String, String> {
        let Plan { traffic, question, output } = self;
        if let Question::Suggest(goal) = question {
            let suggestions = suggest::suggest(&traffic, goal, stop)?;
            return if output.json { json(&suggestions) } else { Ok(suggestions.to_string()) };
        }
        let report = replay::replay(&traffic, question, &output, stop)?;
        write_charts(&report, &output)?;
        if output.json { json(&report) } else { Ok(report.to_string()) }
    }
}

fn write_charts(report: &Report, output: &Output) -> Result<(), String> {
    if output.html.is_none() && output.svg.is_none() {
        return Ok(());
    }
    let charts = charts(report)?;
    if let Some(path) = &output.html {
        write(path, &page(report, &charts))?;
    }
    if let Some(directory) = &output.svg {
        std::fs::create_dir_all(directory)
            .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
        for (name, svg) in charts.iter().map(|chart| chart.file()) {
            write(&directory.join(name), &svg)?;
        }
    }
    Ok(())
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
