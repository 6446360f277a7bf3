//! Traffic to simulate: a recorded trace, or a synthetic pattern.

mod access_log;
mod batch;
mod csv;
mod event;
mod fields;
mod format;
mod json;
mod line_reader;
mod parse_errors;
mod pattern;
mod recording;
mod synthetic_clients;
mod time;
mod trace;

use slidegate::Micros;

pub(crate) use self::event::{Event, RecordedDecision};
pub(crate) use self::fields::{Fields, MappedAttribute, Pair, attribute_names};
pub(crate) use self::format::Format;
pub(crate) use self::parse_errors::ParseErrors;
pub(crate) use self::pattern::{Instants, Pattern, Shape};
pub(crate) use self::synthetic_clients::SyntheticClients;
pub(crate) use self::time::format_time;
pub(crate) use self::trace::Trace;
use super::progress::Progress;

#[cfg(fuzzing)]
pub(crate) use self::format::fuzz_line;

/// Source of requests. A trace on standard input can be read once, every other source any number of times.
#[derive(Debug)]
pub(crate) enum Traffic {
    Trace(Trace),
    Pattern(Pattern),
}

/// Result of one pass over the traffic.
#[derive(Debug, Default)]
pub(crate) struct ReadSummary {
    /// Format of the trace; none for a pattern.
    pub(crate) format: Option<Format>,
    pub(crate) parse_errors: ParseErrors,
    /// True if the pass was ended early.
    pub(crate) interrupted: bool,
    /// Attributes that use a field of another name.
    pub(crate) mapped: Vec<MappedAttribute>,
    pub(crate) notes: Vec<String>,
}

impl Traffic {
    /// Gives every request to `visit`, in the order of the trace. A line of a trace counts as a parse error if `visit` returns an
    /// error for it.
    pub(crate) fn for_each(
        &self,
        progress: &mut Progress,
        visit: impl FnMut(Event<'_, '_>) -> Result<(), String>,
    ) -> Result<ReadSummary, String> {
        match self {
            Traffic::Trace(trace) => trace.for_each(progress, visit),
            Traffic::Pattern(pattern) => pattern.for_each(progress, visit),
        }
    }

    /// Returns a description for the report.
    pub(crate) fn name(&self) -> String {
        match self {
            Traffic::Trace(trace) => trace.name(),
            Traffic::Pattern(pattern) => pattern.to_string(),
        }
    }

    pub(crate) fn is_read_once(&self) -> bool {
        matches!(self, Traffic::Trace(trace) if trace.is_standard_input())
    }

    /// Returns the start of a pattern; none for a trace, which starts with its first request.
    pub(crate) fn begin(&self) -> Option<Micros> {
        matches!(self, Traffic::Pattern(_)).then_some(pattern::BEGIN)
    }

    /// Returns the number of bytes of a trace or requests of a pattern; none if it is not known.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Traffic::Trace(trace) => trace.length(),
            Traffic::Pattern(pattern) => Some(pattern.length()),
        }
    }
}
