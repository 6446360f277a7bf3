//! Lines that say nothing that can be judged: counted, the first of them shown, and never the end of a run.

use serde::Serialize;
use slidegate::yaml::one_line;

/// How many are shown.
const MAX_SHOWN: usize = 10;

/// Enough of a reason to understand it.
const MAX_LENGTH: usize = 200;

/// The lines of a trace that were left out.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ParseErrors {
    pub(crate) count: u64,
    pub(crate) first: Vec<BadLine>,
}

/// One of them.
#[derive(Debug, Serialize)]
pub(crate) struct BadLine {
    /// From 1.
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

/// What somebody else may have written, as a terminal can show it.
pub(super) fn printable(text: &str) -> String {
    let mut line = one_line(text);
    if let Some((end, _)) = line.char_indices().nth(MAX_LENGTH) {
        line.truncate(end);
        line.push('…');
    }
    line
}
