//! A file of requests that happened: which format it is, and every line of it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use clap::ValueEnum;
use serde::Serialize;

use super::Read;
use super::access_log::Combined;
use super::batch::Batch;
use super::csv::Csv;
use super::event::Event;
use super::fields::Fields;
use super::json::{Json, TIMES};
use super::line_reader::{Line, Lines, MAX_LINE};
use super::parse_errors::shown;
use super::recording;
use crate::progress::Progress;

/// Lines that are looked at to find out the format.
const LOOKED_AT: usize = 20;

/// Lines that are judged in one go, and how many such runs are read ahead.
const AT_ONCE: usize = 2_048;
const AHEAD: usize = 4;

/// How a trace is written.
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

    /// What the beginning of a file looks like.
    fn recognise(beginning: &[u8]) -> Option<Format> {
        let text = String::from_utf8_lossy(beginning);
        let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty()).take(LOOKED_AT);
        for line in lines() {
            match () {
                () if line.starts_with('{') && recording::knows(line) => return Some(Format::Recording),
                () if line.starts_with('{') && line.ends_with('}') => return Some(Format::Json),
                () if Combined::knows(line) => return Some(Format::Combined),
                () => {}
            }
        }
        // A table of nothing but times has no comma.
        let header = |line: &&str| line.contains(',') || TIMES.contains(line);
        lines().next().filter(header).map(|_| Format::Csv)
    }
}

/// A file to read requests from.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) path: PathBuf,
    /// Found out, unless given.
    pub(crate) format: Option<Format>,
    pub(crate) fields: Fields,
    /// Whether a bad line is the end.
    pub(crate) strict: bool,
}

/// Who reads lines of a format.
enum Reader {
    Combined(Combined),
    Json(Json),
    /// Until the header has come.
    CsvHeader(Fields),
    Csv(Csv),
    Recording,
}

impl Reader {
    fn new(format: Format, fields: &Fields) -> Result<Self, String> {
        Ok(match format {
            Format::Combined => Reader::Combined(Combined::new(fields)?),
            Format::Json => Reader::Json(Json::new(fields)),
            Format::Csv => Reader::CsvHeader(fields.clone()),
            Format::Recording if fields.are_said() => {
                return Err("a recording has its time, attributes and permits already: \
                            --attribute, --constant, --time and --permits are for logs"
                    .to_owned());
            }
            Format::Recording => Reader::Recording,
        })
    }

    /// Reads one line. The outer error is the end, whatever follows.
    #[inline(always)]
    fn read(
        &mut self,
        line: &str,
        visit: &mut impl FnMut(Event<'_, '_>) -> Result<(), String>,
    ) -> Result<Result<(), String>, String> {
        if let Reader::CsvHeader(fields) = self {
            // Some programs begin a file with a mark that it is Unicode.
            *self = Reader::Csv(Csv::new(line.trim_start_matches('\u{feff}'), fields)?);
            return Ok(Ok(()));
        }
        Ok(match self {
            Reader::Combined(combined) => combined.read(line, visit),
            Reader::Json(json) => json.read(line, visit),
            Reader::Csv(csv) => csv.read(line, visit),
            Reader::CsvHeader(_) => Ok(()),
            Reader::Recording => recording::read(line, visit),
        })
    }

    fn note(&self) -> Option<String> {
        match self {
            Reader::Combined(combined) => combined.note(),
            Reader::Json(json) => json.note(),
            Reader::Csv(csv) => csv.note(),
            Reader::CsvHeader(_) | Reader::Recording => None,
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

    fn open(&self) -> io::Result<Lines> {
        if self.is_standard_input() { Lines::new(io::stdin()) } else { Lines::new(File::open(&self.path)?) }
    }

    pub(super) fn each(
        &self,
        progress: &mut Progress,
        mut visit: impl FnMut(Event<'_, '_>) -> Result<(), String>,
    ) -> Result<Read, String> {
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
        let reader = Reader::new(format, &self.fields)?;
        let mut parser = Parser { lines, reader, name: &name, strict: self.strict, torn: None };
        let mut evaluate = Judge { trace: self, name: &name, read: Read::default(), good: 0 };
        let notes = if self.is_standard_input() {
            // Who types, or follows a log, has every line judged when it comes.
            let mut batch = Batch::default();
            while parser.fill(&mut batch, 1)? && evaluate.all(&batch, progress, &mut visit)? {}
            parser.notes()
        } else {
            ahead(parser, |batch| evaluate.all(batch, progress, &mut visit))?
        };
        let Judge { mut read, good, .. } = evaluate;
        if good == 0 && !read.interrupted {
            let first = read.bad.first.first();
            let why = first.map_or("all its lines are empty".to_owned(), |bad| {
                format!("line {}: {}", bad.line, bad.why)
            });
            return Err(format!("{name} has no line that is one of {}: {why}", format.article()));
        }
        read.format = Some(format);
        read.notes.extend(notes);
        Ok(read)
    }
}

/// Reads lines, and makes requests of them.
struct Parser<'t> {
    lines: Lines,
    reader: Reader,
    name: &'t str,
    strict: bool,
    /// Why the file could not be read to its end.
    torn: Option<String>,
}

impl Parser<'_> {
    /// What is not as it seems, for people.
    fn notes(self) -> Vec<String> {
        self.reader.note().into_iter().chain(self.torn).collect()
    }

    /// The next so many lines that are not empty; false if there is none.
    fn fill(&mut self, batch: &mut Batch, most: usize) -> Result<bool, String> {
        batch.clear();
        while batch.len() < most {
            let before = self.lines.read_so_far();
            let (number, line) = match self.lines.next() {
                Ok(Some(next)) => next,
                Ok(None) => break,
                // A file that was cut off, such as a packed one whose writer was killed, is good as far as it goes.
                Err(error) if before > 0 && !self.strict => {
                    self.torn = Some(format!("cannot read {} after line {before}: {error}", self.name));
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
                    Ok(line) => self.reader.read(line, &mut add)?,
                    Err(_) => self.reader.read(&String::from_utf8_lossy(line), &mut add)?,
                },
            };
            if let Err(why) = done {
                batch.add_bad(number, why);
            }
        }
        batch.position = self.lines.position();
        Ok(batch.len() > 0 && self.torn.is_none())
    }
}

/// Reads on one thread what is judged on this one, until `evaluate` says that it is enough. What the reader has to say.
fn ahead(
    mut parser: Parser<'_>,
    mut evaluate: impl FnMut(&Batch) -> Result<bool, String>,
) -> Result<Vec<String>, String> {
    std::thread::scope(|scope| {
        let (full, read) = mpsc::sync_channel(AHEAD);
        // Those that were judged are filled again.
        let (back, empty) = mpsc::channel();
        let named = std::thread::Builder::new().name("reading".to_owned());
        let reading = named.spawn_scoped(scope, move || {
            loop {
                let mut batch = empty.try_recv().unwrap_or_else(|_| Batch::default());
                let filled = parser.fill(&mut batch, AT_ONCE);
                let more = matches!(filled, Ok(true));
                // Nobody listens any more where it was enough.
                if full.send(filled.map(|_| batch)).is_err() || !more {
                    return parser.notes();
                }
            }
        });
        let reading = reading.map_err(|error| format!("cannot start a thread: {error}"))?;
        for batch in &read {
            let batch = batch?;
            if batch.len() == 0 || !evaluate(&batch)? {
                break;
            }
            let _ = back.send(batch);
        }
        drop(read);
        Ok(reading.join().unwrap_or_default())
    })
}

/// What becomes of lines.
struct Judge<'t> {
    trace: &'t Trace,
    name: &'t str,
    read: Read,
    good: u64,
}

impl Judge<'_> {
    /// Whether it goes on after them.
    fn all(
        &mut self,
        batch: &Batch,
        progress: &mut Progress,
        visit: &mut impl FnMut(Event<'_, '_>) -> Result<(), String>,
    ) -> Result<bool, String> {
        batch.each(|number, line| {
            if !progress.go_on(batch.position) {
                self.read.interrupted = true;
                return Ok(false);
            }
            let judged = match line {
                Ok(event) => visit(event),
                Err(why) => Err(why.to_owned()),
            };
            match judged {
                Ok(()) => self.good += 1,
                Err(why) if self.trace.strict => {
                    return Err(format!("{}:{number}: {}", self.name, shown(&why)));
                }
                Err(why) => self.read.bad.add(number, &why),
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

/// How many formats take this line, which of a table has this header.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz_line(header: &str, line: &str) -> usize {
    let names = ["api", "ip", "user"].map(str::to_owned).into();
    let pair = |name: &str, value: &str| super::Pair { name: name.to_owned(), value: value.to_owned() };
    let log_fields = [pair("api", "path"), pair("agent", "user-agent")];
    let mut taken = 0;
    let _ = Format::recognise(line.as_bytes());
    for format in Format::value_variants() {
        // An access log must have the fields; others may.
        let said: &[_] = if *format == Format::Combined { &log_fields } else { &[] };
        let Ok(mut reader) = Reader::new(*format, &Fields::new(&names, said, &[])) else { continue };
        let mut visit = |event: Event<'_, '_>| {
            taken += 1;
            let rules = slidegate::Rules::new([]).map_err(|error| error.to_string())?;
            rules.ask(event.request).map(drop).map_err(|error| error.to_string())
        };
        if *format == Format::Csv && reader.read(header, &mut visit).is_err() {
            continue;
        }
        if let Ok(Err(why)) = reader.read(line, &mut visit) {
            assert!(!shown(&why).contains(char::is_control), "{why:?}");
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::fuzz_line;

    /// Pieces that lines are made of, in any order: what `fuzz/targets/trace.rs` has more time for.
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
        fn whatever_a_line_says_it_is_read_or_told_why_not(header in pieces(), line in pieces()) {
            prop_assert!(fuzz_line(&header, &line) <= 4, "one request a format");
            prop_assert!(fuzz_line("time,ip,api", &line) <= 4, "one request a format");
        }
    }
}
