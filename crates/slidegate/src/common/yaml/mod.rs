//! YAML reader that reports all mistakes at once, each with its line.
//!
//! Serde stops at the first error. A file is therefore first parsed into [`Node`]s with positions, and then read field by
//! field: a [`Reader`] collects the mistakes and continues. The server reads its part of the file with the same types.

mod parse;
mod reader;

pub use self::reader::{Fields, Reader};
pub use super::percent::hundredths;
use crate::{Error, Problem};

/// Largest file, in bytes.
pub const MAX_FILE: usize = 4 << 20;

/// A value and its position in the file.
#[derive(Clone, Debug)]
pub struct Node {
    line: u64,
    column: u64,
    value: Value,
}

#[derive(Clone, Debug)]
enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

impl Node {
    /// Parses a file. Fails only if the text is not YAML.
    pub fn parse(text: &str) -> Result<Node, Error> {
        if text.len() > MAX_FILE {
            let message = format!("the file has {} bytes; the maximum is {MAX_FILE}", text.len());
            return Err(Error::file(vec![Problem { line: 1, column: 1, message }]));
        }
        parse::parse(text).map_err(|problem| Error::file(vec![problem]))
    }

    /// Returns the field of a mapping by name, if there is one.
    pub fn field(&self, name: &str) -> Option<&Node> {
        let Value::Map(map) = &self.value else { return None };
        map.iter().find(|(key, _)| key.is_word(name)).map(|(_, value)| value)
    }

    /// Returns the items of a list; none if the value is no list.
    pub fn items(&self) -> &[Node] {
        if let Value::List(items) = &self.value { items } else { &[] }
    }

    /// Returns the text, if the value is one.
    pub fn text(&self) -> Option<&str> {
        if let Value::Text(text) = &self.value { Some(text) } else { None }
    }

    /// Returns true if the value is exactly this text.
    pub fn is_word(&self, word: &str) -> bool {
        self.text() == Some(word)
    }

    /// Describes the value in a message that expects something other than text. Long text and URLs are not quoted, because
    /// they may be a secret in the wrong place.
    fn describe_shape(&self) -> String {
        match &self.value {
            Value::Text(text) if text.len() >= 16 || text.contains("://") => "a text".into(),
            _ => self.describe(),
        }
    }

    /// Describes the value for a message: `"5s"`, `a list`.
    fn describe(&self) -> String {
        match &self.value {
            Value::Null => "nothing".into(),
            Value::Bool(b) => format!("{b}"),
            Value::Integer(n) => format!("{n}"),
            Value::Float(n) => format!("{n:?}"),
            Value::Text(text) => format!("\"{}\"", shorten(text)),
            Value::List(_) => "a list".into(),
            Value::Map(_) => "a mapping".into(),
        }
    }
}

/// Escapes control characters, so that a terminal can show a message that contains untrusted text.
pub fn one_line(message: &str) -> String {
    let mut line = String::with_capacity(message.len());
    for c in message.chars() {
        if c.is_control() { line.extend(c.escape_debug()) } else { line.push(c) }
    }
    line
}

/// Returns the first 60 characters of a text on one line, enough to recognise it.
fn shorten(text: &str) -> String {
    let line: String = text.chars().take(60).flat_map(char::escape_debug).collect();
    if text.chars().nth(60).is_some() { line + "…" } else { line }
}
