//! Why a request was not even asked about.

use std::borrow::Cow;
use std::fmt;

use http::StatusCode;

use crate::Error;

/// A request that cannot be asked about as it stands: its status, and what its client is told.
///
/// A text is a rejection with status 400.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    status: StatusCode,
    message: Cow<'static, str>,
}

impl Rejection {
    /// Answers with this status, and tells the client why.
    pub fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Rejection { status, message: message.into() }
    }

    /// What it is answered with.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// What its client is told.
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

/// The caller's mistake, such as more permits than the limit will ever have.
impl From<&Error> for Rejection {
    fn from(error: &Error) -> Self {
        error.to_string().into()
    }
}
