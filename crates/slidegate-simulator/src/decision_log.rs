//! A file of decisions, one JSON object a request.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use slidegate::Decision;

/// One line.
#[derive(Serialize)]
struct Line<'a> {
    /// Microseconds since 1970 at which it was judged.
    at: u64,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    denied_by: Option<&'a str>,
    /// Zero if it was allowed.
    retry_after_us: u64,
}

/// Where decisions are written.
pub(crate) struct DecisionLog {
    path: PathBuf,
    file: BufWriter<File>,
    /// The first thing that went wrong.
    error: Option<io::Error>,
}

impl DecisionLog {
    pub(crate) fn create(path: &Path) -> Result<Self, String> {
        let file = File::create(path).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(DecisionLog { path: path.to_owned(), file: BufWriter::new(file), error: None })
    }

    /// Adds what was decided at `at`, in microseconds.
    pub(crate) fn add(&mut self, at: u64, decision: &Decision) {
        let line = Line {
            at,
            allowed: decision.allowed(),
            denied_by: decision.denied_by(),
            retry_after_us: decision.retry_after().get(),
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
