//! Reads a configuration file and reports every mistake in it.

use std::io;
use std::path::Path;

use slidegate::{Error, Problem};

use super::{Config, Inputs};
use crate::common::console::warn;

/// Reads and checks a file with values from outside, and logs its warnings. The error lists every mistake.
pub(crate) fn load(path: &Path, inputs: &Inputs) -> Result<Config, String> {
    let name = path.display();
    let text = read_text(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    parse(&name.to_string(), &text, inputs)
}

/// Checks the text of a file, as [`load`] does. `name` names it in messages.
pub(crate) fn parse(name: &str, text: &str, inputs: &Inputs) -> Result<Config, String> {
    let config = Config::parse_with(text, inputs).map_err(|error| mistakes(name, &error))?;
    for warning in &config.warnings {
        warn(&located(name, warning));
    }
    Ok(config)
}

/// Returns the message of an error, with one line for each mistake.
pub(crate) fn mistakes(name: &str, error: &Error) -> String {
    let problems = error.problems();
    let place = if problems.iter().any(|problem| problem.line > 0) { name } else { "the configuration" };
    let lines = problems.iter().map(|problem| format!("\n  {}", located(name, problem)));
    format!("{place} has mistakes:{}", lines.collect::<String>())
}

/// Returns a mistake with the name of its file, unless it is in a variable.
fn located(name: &str, problem: &Problem) -> String {
    if problem.line > 0 { format!("{name}:{problem}") } else { problem.to_string() }
}

/// Reads a file, or standard input if the path is `-`.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    if path == Path::new("-") { io::read_to_string(io::stdin()) } else { std::fs::read_to_string(path) }
}
