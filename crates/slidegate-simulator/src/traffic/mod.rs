//! What is asked: a trace of what happened, or a pattern that somebody is afraid of.

mod access_log;
mod batch;
mod csv;
mod event;
mod fields;
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
pub(crate) use self::fields::{Fields, Pair, attribute_names};
pub(crate) use self::parse_errors::ParseErrors;
pub(crate) use self::pattern::{Instants, Pattern, Shape};
pub(crate) use self::synthetic_clients::SyntheticClients;
pub(crate) use self::time::format_time;
pub(crate) use self::trace::Format;
pub(crate) use self::trace::Trace;
use super::progress::Progress;

#[cfg(fuzzing)]
pub(crate) use self::trace::fuzz_line;

/// Where requests come from. A trace on standard input can be read once, everything else again and again.
#[derive(Debug)]
pub(crate) enum Traffic {
    Trace(Trace),
    Pattern(Pattern),
}

/// What came of reading it all.
#[derive(Debug, Default)]
pub(crate) struct ReadSummary {
    /// How a trace is written.
    pub(crate) format: Option<Format>,
    pub(crate) parse_errors: ParseErrors,
    /// Whether somebody ended it early.
    pub(crate) interrupted: bool,
    pub(crate) notes: Vec<String>,
}

impl Traffic {
    /// Gives every request to `visit`, in the order of the trace. What it calls an error is a bad line.
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

    /// What it is, for people.
    pub(crate) fn name(&self) -> String {
        match self {
            Traffic::Trace(trace) => trace.name(),
            Traffic::Pattern(pattern) => pattern.to_string(),
        }
    }

    pub(crate) fn is_read_once(&self) -> bool {
        matches!(self, Traffic::Trace(trace) if trace.is_standard_input())
    }

    /// When it begins, if that is not its first request.
    pub(crate) fn begin(&self) -> Option<Micros> {
        matches!(self, Traffic::Pattern(_)).then_some(pattern::BEGIN)
    }

    /// Bytes of a trace, requests of a pattern; none if it is not known.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Traffic::Trace(trace) => trace.length(),
            Traffic::Pattern(pattern) => Some(pattern.length()),
        }
    }
}
