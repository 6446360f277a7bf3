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

    /// Returns a warning about a text that looks like a pattern of another program and is compared literally.
    #[cfg(feature = "yaml")]
    pub(super) fn warning(text: &str) -> Option<&'static str> {
        if text.starts_with(['~', '^']) {
            return Some("regular expressions are not supported, so this is compared character by character");
        }
        let before = text.strip_suffix('*').unwrap_or(text);
        before.contains('*').then_some(
            "`*` stands for any text only at the end of a pattern; elsewhere it is compared as it is",
        )
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
