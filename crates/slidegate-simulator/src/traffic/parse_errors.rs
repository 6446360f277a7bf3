//! Counts lines that cannot be parsed or decided, and keeps the first of them for the report.

use serde::Serialize;
use slidegate::yaml::one_line;

/// Maximum number of lines to keep.
const MAX_SHOWN: usize = 10;

/// Maximum length of a reason, in characters.
const MAX_LENGTH: usize = 200;

/// Lines of a trace that were left out.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ParseErrors {
    pub(crate) count: u64,
    pub(crate) first: Vec<BadLine>,
}

/// A line that was left out, and the reason.
#[derive(Debug, Serialize)]
pub(crate) struct BadLine {
    /// Number of the line, from 1.
    pub(crate) line: u64,
    pub(crate) why: String,
}

impl ParseErrors {
    pub(super) fn add(&mut self, line: u64, why: &str) {
        self.count += 1;
        if self.first.len() < MAX_SHOWN {
            self.first.push(BadLine { line, why: printable(why) });
        }
    }
}

/// Makes untrusted text safe for a terminal: one line, without control characters, and not too long.
pub(super) fn printable(text: &str) -> String {
    let mut line = one_line(text);
    if let Some((end, _)) = line.char_indices().nth(MAX_LENGTH) {
        line.truncate(end);
        line.push('…');
    }
    line
}
