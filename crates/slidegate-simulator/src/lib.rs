//! `slidegate simulate`: what rules will do, before they do it.
//!
//! # Layout
//!
//! `options` is what can be typed, `plan` what it means. `traffic/` has the requests: traces, a file a format, and patterns that
//! are made up. A `lane` is a set of rules in virtual time, with the limiter and the store of production; `lanes` are several
//! over the same requests. `tally/` counts, in bounded memory; `run` is one reading of the traffic, `suggest` several, and
//! `report/` says what came of it.

mod baseline;
mod decision_log;
mod options;
mod plan;
mod progress;
mod report;
mod run;
mod scenario;
mod scenarios;
mod stats;
mod suggest;
mod traffic;

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

pub use self::options::SimulateArgs;
use self::plan::{Output, Plan, Question};
use self::report::{Report, page, pictures};
use crate::common::console::{fail, say};

#[cfg(fuzzing)]
pub(crate) use self::traffic::fuzz_line;

/// Simulates, and says what came of it. Exit code 0, or 2 if it could not be done.
pub fn run(args: SimulateArgs) -> ExitCode {
    match simulate(args) {
        Ok(text) => {
            say(text.trim_end());
            ExitCode::SUCCESS
        }
        Err(message) => fail(&message),
    }
}

/// What to print.
fn simulate(args: SimulateArgs) -> Result<String, String> {
    let Plan { traffic, question, output } = args.check()?;
    let stop = progress::interrupted();
    if let Question::Suggest(wish) = question {
        let suggestions = suggest::suggest(&traffic, wish, &stop)?;
        return if output.json { json(&suggestions) } else { Ok(suggestions.to_string()) };
    }
    let report = run::run(&traffic, question, &output, &stop)?;
    write_pictures(&report, &output)?;
    if output.json { json(&report) } else { Ok(report.to_string()) }
}

fn write_pictures(report: &Report, output: &Output) -> Result<(), String> {
    if output.html.is_none() && output.svg.is_none() {
        return Ok(());
    }
    let pictures = pictures(report)?;
    if let Some(path) = &output.html {
        write(path, &page(report, &pictures))?;
    }
    if let Some(directory) = &output.svg {
        std::fs::create_dir_all(directory)
            .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
        for (name, svg) in pictures.iter().map(|picture| picture.file()) {
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
