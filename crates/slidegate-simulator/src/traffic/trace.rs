//! Reads a trace: parses its lines on one thread, and gives the requests to another.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use super::ReadSummary;
use super::batch::Batch;
use super::event::Event;
use super::fields::{Fields, MappedAttribute};
use super::format::{Format, LineParser};
use super::line_reader::{Line, LineReader, MAX_LINE};
use super::parse_errors::printable;
use crate::progress::Progress;

/// Number of lines in a batch, and number of batches to read ahead.
const BATCH_LINES: usize = 2_048;
const BATCHES_AHEAD: usize = 4;

/// File with recorded requests.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) path: PathBuf,
    /// None to recognise the format by the beginning of the file.
    pub(crate) format: Option<Format>,
    pub(crate) fields: Fields,
    /// True to fail at the first line that cannot be parsed.
    pub(crate) strict: bool,
}

impl Trace {
    pub(super) fn name(&self) -> String {
        if self.is_standard_input() { "standard input".to_owned() } else { self.path.display().to_string() }
    }

    pub(super) fn is_standard_input(&self) -> bool {
        self.path == Path::new("-")
    }

    pub(super) fn length(&self) -> Option<u64> {
        if self.is_standard_input() {
            return None;
        }
        std::fs::metadata(&self.path).ok().filter(|file| file.is_file()).map(|file| file.len())
    }

    fn open(&self) -> io::Result<LineReader> {
        if self.is_standard_input() {
            LineReader::new(io::stdin())
        } else {
            LineReader::new(File::open(&self.path)?)
        }
    }

    pub(super) fn for_each(
        &self,
        progress: &mut Progress,
        mut visit: impl FnMut(Event<'_, '_>) -> Result<(), String>,
    ) -> Result<ReadSummary, String> {
        let name = self.name();
        let unreadable = |error: io::Error| format!("cannot read {name}: {error}");
        let mut lines = self.open().map_err(unreadable)?;
        let format = match self.format {
            Some(format) => format,
            None => match lines.peek().map_err(unreadable)? {
                [] => return Err(format!("{name} is empty")),
                beginning => Format::recognise(beginning).ok_or_else(|| {
                    format!(
                        "cannot detect the format of {name}: set --format to combined, json, csv or recording"
                    )
                })?,
            },
        };
        let line_parser = LineParser::new(format, &self.fields)?;
        let mut reader =
            BatchReader { lines, line_parser, name: &name, strict: self.strict, read_error: None };
        let mut evaluator =
            Evaluator { trace: self, name: &name, summary: ReadSummary::default(), accepted: 0 };
        let findings = if self.is_standard_input() {
            // Input that is typed, or a log that is followed, is decided line by line, without waiting for a full batch.
            let mut batch = Batch::default();
            while reader.fill(&mut batch, 1)? && evaluator.evaluate_batch(&batch, progress, &mut visit)? {}
            reader.finish()
        } else {
            read_ahead(reader, |batch| evaluator.evaluate_batch(batch, progress, &mut visit))?
        };
        let Evaluator { mut summary, accepted, .. } = evaluator;
        if accepted == 0 && !summary.interrupted {
            let first = summary.parse_errors.first.first();
            let reason = first
                .map_or("all lines are empty".to_owned(), |bad| format!("line {}: {}", bad.line, bad.why));
            return Err(format!("{name} has no valid line (expected {}): {reason}", format.article()));
        }
        summary.format = Some(format);
        summary.notes.extend(findings.notes);
        summary.mapped = findings.mapped;
        Ok(summary)
    }
}

/// Reads and parses lines into batches.
struct BatchReader<'t> {
    lines: LineReader,
    line_parser: LineParser,
    name: &'t str,
    strict: bool,
    /// Reason why the file could not be read to its end.
    read_error: Option<String>,
}

/// Findings of a reader for the report.
#[derive(Default)]
struct ReaderFindings {
    /// Missing attributes, and an error at the end of the file.
    notes: Vec<String>,
    mapped: Vec<MappedAttribute>,
}

impl BatchReader<'_> {
    fn finish(self) -> ReaderFindings {
        let notes = self.line_parser.notes().into_iter().chain(self.read_error).collect();
        ReaderFindings { notes, mapped: self.line_parser.mapped() }
    }

    /// Fills the batch with the next lines that are not empty, up to `most`. Returns false if there are
    /// no more lines, or after a read error.
    fn fill(&mut self, batch: &mut Batch, most: usize) -> Result<bool, String> {
        batch.clear();
        while batch.len() < most {
            let before = self.lines.line_count();
            let (number, line) = match self.lines.next() {
                Ok(Some(next)) => next,
                Ok(None) => break,
                // The readable part of a truncated file counts, such as a gzip file of a process that was killed.
                Err(error) if before > 0 && !self.strict => {
                    self.read_error = Some(format!("cannot read {} after line {before}: {error}", self.name));
                    break;
                }
                Err(error) => return Err(format!("cannot read {}: {error}", self.name)),
            };
            let mut add = |event: Event<'_, '_>| {
                batch.add(number, event);
                Ok(())
            };
            let done = match line {
                Line::TooLong => Err(format!("the line is longer than {MAX_LINE} bytes")),
                Line::Whole(line) if line.trim_ascii().is_empty() => continue,
                Line::Whole(line) => match std::str::from_utf8(line) {
                    Ok(line) => self.line_parser.read(line, &mut add)?,
                    Err(_) => self.line_parser.read(&String::from_utf8_lossy(line), &mut add)?,
                },
            };
            if let Err(reason) = done {
                batch.add_error(number, reason);
            }
        }
        batch.position = self.lines.position();
        Ok(batch.len() > 0 && self.read_error.is_none())
    }
}

/// Reads batches on another thread and evaluates them on this one, until `evaluate` returns false. Returns the findings of
/// the reader.
fn read_ahead(
    mut reader: BatchReader<'_>,
    mut evaluate: impl FnMut(&Batch) -> Result<bool, String>,
) -> Result<ReaderFindings, String> {
    std::thread::scope(|scope| {
        let (filled_sender, filled) = mpsc::sync_channel(BATCHES_AHEAD);
        // Evaluated batches go back to the reader, which fills them again.
        let (empty_sender, empty) = mpsc::channel();
        let builder = std::thread::Builder::new().name("reading".to_owned());
        let reader_thread = builder.spawn_scoped(scope, move || {
            loop {
                let mut batch = empty.try_recv().unwrap_or_else(|_| Batch::default());
                let result = reader.fill(&mut batch, BATCH_LINES);
                let more = matches!(result, Ok(true));
                // Sending fails if this side has stopped early.
                if filled_sender.send(result.map(|_| batch)).is_err() || !more {
                    return reader.finish();
                }
            }
        });
        let reader_thread = reader_thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        for batch in &filled {
            let batch = batch?;
            if batch.len() == 0 || !evaluate(&batch)? {
                break;
            }
            let _ = empty_sender.send(batch);
        }
        drop(filled);
        Ok(reader_thread.join().unwrap_or_default())
    })
}

/// Evaluates batches and counts the results.
struct Evaluator<'t> {
    trace: &'t Trace,
    name: &'t str,
    summary: ReadSummary,
    accepted: u64,
}

impl Evaluator<'_> {
    /// Evaluates all lines of a batch. Returns false if the pass must end.
    fn evaluate_batch(
        &mut self,
        batch: &Batch,
        progress: &mut Progress,
        visit: &mut impl FnMut(Event<'_, '_>) -> Result<(), String>,
    ) -> Result<bool, String> {
        batch.for_each(|number, line| {
            if !progress.advance(batch.position) {
                self.summary.interrupted = true;
                return Ok(false);
            }
            let result = match line {
                Ok(event) => visit(event),
                Err(reason) => Err(reason.to_owned()),
            };
            match result {
                Ok(()) => self.accepted += 1,
                Err(reason) if self.trace.strict => {
                    return Err(format!("{}:{number}: {}", self.name, printable(&reason)));
                }
                Err(reason) => self.summary.parse_errors.add(number, &reason),
            }
            Ok(true)
        })
    }
}
