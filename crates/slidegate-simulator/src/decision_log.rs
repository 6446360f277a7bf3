//! Writes the decisions to a file, one JSON object per request.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use slidegate::Decision;

use crate::recorded_line::RecordedLine;

/// File that decisions are written to.
pub(crate) struct DecisionLog {
    path: PathBuf,
    file: BufWriter<File>,
    /// The first write error. [`DecisionLog::finish`] returns it.
    error: Option<io::Error>,
}

impl DecisionLog {
    pub(crate) fn create(path: &Path) -> Result<Self, String> {
        let file = File::create(path).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(DecisionLog { path: path.to_owned(), file: BufWriter::new(file), error: None })
    }

    /// Adds a decision that was made at `at`, in microseconds since 1970.
    pub(crate) fn add(&mut self, at: u64, decision: &Decision) {
        let line: RecordedLine<'_, ()> = RecordedLine {
            at,
            attributes: None,
            resource: None,
            limit: None,
            window: None,
            burst: None,
            permits: None,
            id: None,
            allowed: Some(decision.allowed()),
            denied_by: decision.denied_by().map(Cow::Borrowed),
            retry_after_us: Some(decision.retry_after().get()),
        };
        if self.error.is_none() {
            let written = serde_json::to_writer(&mut self.file, &line).map_err(io::Error::from);
            self.error = written.and_then(|()| self.file.write_all(b"\n")).err();
        }
    }

    pub(crate) fn finish(mut self) -> Result<(), String> {
        let error = self.error.take().or_else(|| self.file.flush().err());
        error.map_or(Ok(()), |error| Err(format!("cannot write {}: {error}", self.path.display())))
    }
}
