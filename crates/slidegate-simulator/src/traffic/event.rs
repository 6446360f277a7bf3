//! One request of a trace or a pattern.

use slidegate::{Micros, Request};

/// What was asked, when, and what was decided then if that is known.
#[derive(Clone, Copy)]
pub(crate) struct Event<'e, 'r> {
    pub(crate) at: Micros,
    pub(crate) request: &'e Request<'r>,
    pub(crate) recorded: Option<RecordedDecision<'e>>,
}

/// What a server decided when it recorded the request.
#[derive(Clone, Copy)]
pub(crate) struct RecordedDecision<'a> {
    pub(crate) allowed: bool,
    pub(crate) denied_by: Option<&'a str>,
}

impl<'e, 'r> Event<'e, 'r> {
    /// Of which no more is known.
    pub(crate) fn new(at: Micros, request: &'e Request<'r>) -> Self {
        Event { at, request, recorded: None }
    }
}
