//! Formats of traces: recognises the format of a file, and parses its lines.

use clap::ValueEnum;
use serde::Serialize;

use super::access_log::AccessLog;
use super::csv::Csv;
use super::event::Event;
use super::fields::{Fields, MappedAttribute};
use super::json::{Json, TIME_FIELDS};
#[cfg(any(fuzzing, test))]
use super::parse_errors::printable;
use super::recording;

/// Number of lines to recognise the format by.
const SNIFFED_LINES: usize = 20;

/// Format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Format {
    /// Access log of Apache or nginx: Common or Combined
    Combined,
    /// One JSON object per line
    Json,
    /// Table whose first line names its columns
    Csv,
    /// Output of `slidegate serve --record`
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

    pub(super) fn article(self) -> &'static str {
        match self {
            Format::Combined => "an access log",
            Format::Json => "JSON lines with a time",
            Format::Csv => "a CSV table",
            Format::Recording => "a recording",
        }
    }

    /// Recognises the format by the beginning of a file.
    pub(super) fn recognise(beginning: &[u8]) -> Option<Format> {
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
        // A table whose only column is the time has no comma.
        let header = |line: &&str| line.contains(',') || TIME_FIELDS.contains(line);
        lines().next().filter(header).map(|_| Format::Csv)
    }
}

/// Parser for lines of one format.
pub(super) enum LineParser {
    AccessLog(AccessLog),
    Json(Json),
    /// A table before its header was read.
    CsvHeader(Fields),
    Csv(Csv),
    Recording,
}

impl LineParser {
    pub(super) fn new(format: Format, fields: &Fields) -> Result<Self, String> {
        Ok(match format {
            Format::Combined => LineParser::AccessLog(AccessLog::new(fields)?),
            Format::Json => LineParser::Json(Json::new(fields)),
            Format::Csv => LineParser::CsvHeader(fields.clone()),
            Format::Recording if fields.has_explicit() => {
                return Err("a recording contains time, attributes and permits: \
                            --attribute, --constant, --time and --permits are only for other formats"
                    .to_owned());
            }
            Format::Recording => LineParser::Recording,
        })
    }

    /// Parses one line. The outer error ends the pass; the inner error concerns this line only.
    #[inline(always)]
    pub(super) fn read(
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

    /// Returns notes for the report about attributes that are missing.
    pub(super) fn notes(&self) -> Vec<String> {
        match self {
            LineParser::AccessLog(log) => log.note().into_iter().collect(),
            LineParser::Json(json) => json.notes(),
            LineParser::Csv(csv) => csv.note().into_iter().collect(),
            LineParser::CsvHeader(_) | LineParser::Recording => Vec::new(),
        }
    }

    /// Returns the attributes that use a field of another name.
    pub(super) fn mapped(&self) -> Vec<MappedAttribute> {
        match self {
            LineParser::AccessLog(log) => log.mapped(),
            LineParser::Json(json) => json.mapped(),
            LineParser::Csv(csv) => csv.mapped(),
            LineParser::CsvHeader(_) | LineParser::Recording => Vec::new(),
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
