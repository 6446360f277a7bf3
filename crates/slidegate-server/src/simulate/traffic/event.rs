//! One request of a trace or a pattern.

use std::borrow::Cow;

use slidegate::{Micros, Request};

/// What was asked, when, and what was decided then if that is known.
pub(crate) struct Event<'a> {
    pub(crate) at: Micros,
    pub(crate) request: Request<'a>,
    pub(crate) decided: Option<Decided<'a>>,
}

/// What a server decided when it recorded the request.
pub(crate) struct Decided<'a> {
    pub(crate) allowed: bool,
    pub(crate) denied_by: Option<Cow<'a, str>>,
}
