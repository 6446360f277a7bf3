//! One request of a trace or a pattern.

use slidegate::{Micros, Request};

/// A request, its time, and the decision that was recorded for it, if any.
#[derive(Clone, Copy)]
pub(crate) struct Event<'e, 'r> {
    pub(crate) at: Micros,
    pub(crate) request: &'e Request<'r>,
    pub(crate) recorded: Option<RecordedDecision<'e>>,
}

/// Decision of the server that recorded the request.
#[derive(Clone, Copy)]
pub(crate) struct RecordedDecision<'a> {
    pub(crate) allowed: bool,
    pub(crate) denied_by: Option<&'a str>,
}

impl<'e, 'r> Event<'e, 'r> {
    /// Creates an event without a recorded decision.
    pub(crate) fn new(at: Micros, request: &'e Request<'r>) -> Self {
        Event { at, request, recorded: None }
    }
}
