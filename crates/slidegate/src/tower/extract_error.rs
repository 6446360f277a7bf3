//! Rejections: requests that are invalid before the limiter is called.

use std::borrow::Cow;
use std::fmt;

use http::StatusCode;

use crate::Error;

/// An invalid request: the status and the message for its client.
///
/// A text converts to a rejection with status 400.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    status: StatusCode,
    message: Cow<'static, str>,
}

impl Rejection {
    /// Creates a rejection with this status and a message for the client.
    pub fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Rejection { status, message: message.into() }
    }

    /// Returns the status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the message for the client.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Rejection {}

impl From<&'static str> for Rejection {
    fn from(message: &'static str) -> Self {
        Rejection::new(StatusCode::BAD_REQUEST, message)
    }
}

impl From<String> for Rejection {
    fn from(message: String) -> Self {
        Rejection::new(StatusCode::BAD_REQUEST, message)
    }
}

/// Converts a mistake of the caller, such as more permits than the limit will ever have.
impl From<&Error> for Rejection {
    fn from(error: &Error) -> Self {
        error.to_string().into()
    }
}
