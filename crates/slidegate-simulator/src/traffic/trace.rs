//! Reads a trace: recognises its format, parses its lines on one thread, and gives the requests to another.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use clap::ValueEnum;
use serde::Serialize;

use super::ReadSummary;
use super::access_log::AccessLog;
use super::batch::Batch;
use super::csv::Csv;
use super::event::Event;
use super::fields::Fields;
use super::json::{Json, TIME_FIELDS};
use super::line_reader::{Line, LineReader, MAX_LINE};
use super::parse_errors::printable;
use super::recording;
use crate::progress::Progress;

/// Number of lines to recognise the format by.
const SNIFFED_LINES: usize = 20;

/// Number of lines in a batch, and number of batches to read ahead.
const BATCH_LINES: usize = 2_048;
const BATCHES_AHEAD: usize = 4;

/// Format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Format {
    /// An access log: Common or Combined, as Apache and nginx write them
    Combined,
    /// One JSON object a line
    Json,
    /// A table whose first line names its columns
    Csv,
    /// What `slidegate serve --record` wrote
    Recording,
}

impl Format {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Format::Combined => "access log",
            Format::Json => "JSON lines",
            Format::Csv => "CSV",
            Format::Recording => "recording",
        }
    }

    /// Recognises the format by the beginning of a file.
    fn recognise(beginning: &[u8]) -> Option<Format> {
        let text = String::from_utf8_lossy(beginning);
        let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty()).take(SNIFFED_LINES);
        for line in lines() {
            match () {
                () if line.starts_with('{') && recording::recognises(line) => return Some(Format::Recording),
                () if line.starts_with('{') && line.ends_with('}') => return Some(Format::Json),
                () if AccessLog::recognises(line) => return Some(Format::Combined),
                () => {}
            }
        }
        // A table that has only a column of times has no comma.
        let header = |line: &&str| line.contains(',') || TIME_FIELDS.contains(line);
        lines().next().filter(header).map(|_| Format::Csv)
    }
}

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

/// Parser for lines of one format.
enum LineParser {
    AccessLog(AccessLog),
    Json(Json),
    /// A table before its header was read.
    CsvHeader(Fields),
    Csv(Csv),
    Recording,
}

impl LineParser {
    fn new(format: Format, fields: &Fields) -> Result<Self, String> {
        Ok(match format {
            Format::Combined => LineParser::AccessLog(AccessLog::new(fields)?),
            Format::Json => LineParser::Json(Json::new(fields)),
            Format::Csv => LineParser::CsvHeader(fields.clone()),
            Format::Recording if fields.has_explicit() => {
                return Err("a recording has its time, attributes and permits already: \
                            --attribute, --constant, --time and --permits are for logs"
                    .to_owned());
            }
            Format::Recording => LineParser::Recording,
        })
    }

    /// Parses one line. The outer error ends the pass; the inner error concerns this line only.
    #[inline(always)]
    fn read(
        &mut self,
        line: &str,
        visit: &mut impl FnMut(Event<'_, '_>) -> Result<(), String>,
    ) -> Result<Result<(), String>, String> {
        if let LineParser::CsvHeader(fields) = self {
            // Some programs begin a file with a byte order mark.
            *self = LineParser::Csv(Csv::new(line.trim_start_matches('\u{feff}'), fields)?);
            return Ok(Ok(()));
        }
        Ok(match self {
            LineParser::AccessLog(log) => log.read(line, visit),
            LineParser::Json(json) => json.read(line, visit),
            LineParser::Csv(csv) => csv.read(line, visit),
            LineParser::CsvHeader(_) => Ok(()),
            LineParser::Recording => recording::read(line, visit),
        })
    }

    fn note(&self) -> Option<String> {
        match self {
            LineParser::AccessLog(log) => log.note(),
            LineParser::Json(json) => json.note(),
            LineParser::Csv(csv) => csv.note(),
            LineParser::CsvHeader(_) | LineParser::Recording => None,
        }
    }
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
                    format!("cannot tell what {name} is: say --format combined, json, csv or recording")
                })?,
            },
        };
        let line_parser = LineParser::new(format, &self.fields)?;
        let mut reader =
            BatchReader { lines, line_parser, name: &name, strict: self.strict, read_error: None };
        let mut evaluator =
            Evaluator { trace: self, name: &name, summary: ReadSummary::default(), accepted: 0 };
        let notes = if self.is_standard_input() {
            // Input that is typed, or a log that is followed, is decided line by line, without waiting for a full batch.
            let mut batch = Batch::default();
            while reader.fill(&mut batch, 1)? && evaluator.evaluate_batch(&batch, progress, &mut visit)? {}
            reader.notes()
        } else {
            read_ahead(reader, |batch| evaluator.evaluate_batch(batch, progress, &mut visit))?
        };
        let Evaluator { mut summary, accepted, .. } = evaluator;
        if accepted == 0 && !summary.interrupted {
            let first = summary.parse_errors.first.first();
            let reason = first.map_or("all its lines are empty".to_owned(), |bad| {
                format!("line {}: {}", bad.line, bad.why)
            });
            return Err(format!("{name} has no line that is one of {}: {reason}", format.article()));
        }
        summary.format = Some(format);
        summary.notes.extend(notes);
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

impl BatchReader<'_> {
    /// Returns notes for the report: missing attributes, and an error at the end of the file.
    fn notes(self) -> Vec<String> {
        self.line_parser.note().into_iter().chain(self.read_error).collect()
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
                Line::TooLong => Err(format!("it is longer than {MAX_LINE} bytes")),
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

/// Reads batches on another thread and evaluates them on this one, until `evaluate` returns false. Returns the notes of the
/// reader.
fn read_ahead(
    mut reader: BatchReader<'_>,
    mut evaluate: impl FnMut(&Batch) -> Result<bool, String>,
) -> Result<Vec<String>, String> {
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
                    return reader.notes();
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

impl Format {
    fn article(self) -> &'static str {
        match self {
            Format::Combined => "an access log",
            Format::Json => "JSON lines with a time",
            Format::Csv => "a CSV table",
            Format::Recording => "a recording",
        }
    }
}

/// Parses a line as every format, after `header` as the first line of a table. Returns the number of formats that accept it.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz_line(header: &str, line: &str) -> usize {
    let names = ["api", "ip", "user"].map(str::to_owned).into();
    let pair = |name: &str, value: &str| super::Pair { name: name.to_owned(), value: value.to_owned() };
    let log_fields = [pair("api", "path"), pair("agent", "user-agent")];
    let mut accepted = 0;
    let _ = Format::recognise(line.as_bytes());
    for format in Format::value_variants() {
        // The fields of an access log are fixed, so their names must be valid. Other formats may lack fields.
        let explicit: &[_] = if *format == Format::Combined { &log_fields } else { &[] };
        let Ok(mut line_parser) = LineParser::new(*format, &Fields::new(&names, explicit, &[])) else {
            continue;
        };
        let mut visit = |event: Event<'_, '_>| {
            accepted += 1;
            let rules = slidegate::Rules::new([]).map_err(|error| error.to_string())?;
            rules.checks_for(event.request).map(drop).map_err(|error| error.to_string())
        };
        if *format == Format::Csv && line_parser.read(header, &mut visit).is_err() {
            continue;
        }
        if let Ok(Err(reason)) = line_parser.read(line, &mut visit) {
            assert!(!printable(&reason).contains(char::is_control), "{reason:?}");
        }
    }
    accepted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::fuzz_line;

    /// Lines composed of random pieces. `fuzz/targets/trace.rs` tests the same for longer.
    fn pieces() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just("1.2.3.4 - - ["),
            Just("shop:443 ::1 - a b ["),
            Just("17/Nov/2026:01:50:51 +0000"),
            Just("] \""),
            Just("GET /a?b HTTP/1.1"),
            Just("\" 200 5 \""),
            Just("\\"),
            Just("é"),
            Just("{\"time\":1794880251,\"ip\":\"1\""),
            Just("{\"at\":5,\"attributes\":{\"api\":\"/a\"}"),
            Just("{\"at\":5,\"resource\":\"r\",\"window\":\"1s\""),
            Just(",\"permits\":99999999999999999999"),
            Just("}"),
            Just(","),
            Just("\"\""),
            Just("\u{1b}[2J"),
            Just("1794880251.5"),
            Just("2026-11-17 01:50:51,5"),
        ];
        let any = prop_oneof![4 => piece.prop_map(str::to_owned), 1 => ".{0,8}"];
        prop::collection::vec(any, 0..10).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn every_line_is_parsed_or_rejected_with_a_reason(header in pieces(), line in pieces()) {
            prop_assert!(fuzz_line(&header, &line) <= 4, "one request a format");
            prop_assert!(fuzz_line("time,ip,api", &line) <= 4, "one request a format");
        }
    }
}
