//! Conditions on the values of attributes.

use std::fmt;

/// Condition on the value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Exactly this value.
    Is(String),
    /// Any value with this prefix; written `prefix*`.
    StartsWith(String),
}

impl Pattern {
    /// Parses a pattern of the rules file.
    pub fn new(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(prefix) => Pattern::StartsWith(prefix.to_owned()),
            None => Pattern::Is(text.to_owned()),
        }
    }

    pub(super) fn matches(&self, value: &str) -> bool {
        match self {
            Pattern::Is(text) => value == text,
            Pattern::StartsWith(prefix) => value.starts_with(prefix.as_str()),
        }
    }
}

/// Writes the pattern as in the rules file.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Is(text) => f.write_str(text),
            Pattern::StartsWith(prefix) => write!(f, "{prefix}*"),
        }
    }
}
