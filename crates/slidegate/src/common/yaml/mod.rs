//! YAML reader that reports all mistakes at once, each with its line.
//!
//! Serde stops at the first error. A file is therefore first parsed into [`Node`]s with positions, and then read field by
//! field: a [`Reader`] collects the mistakes and continues. The server reads its part of the file with the same types.

mod parse;
mod reader;

use std::sync::Arc;

pub use self::reader::{Fields, Reader, nearest};
pub use super::percent::hundredths;
use crate::{Error, Problem};

/// Largest file, in bytes.
pub const MAX_FILE: usize = 4 << 20;

/// A value and its position in the file.
#[derive(Clone, Debug)]
pub struct Node {
    line: u64,
    column: u64,
    /// Name of the variable or the flag that the value is from, if it is not from the file.
    source: Option<Arc<str>>,
    value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
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

    /// Creates a text without a position.
    pub fn from_text(text: impl Into<String>) -> Node {
        Node::without_position(Value::Text(text.into()))
    }

    /// Creates a number, a flag or a text, as YAML reads a scalar without quotes. The node has no position.
    pub fn from_scalar(text: &str) -> Node {
        Node::without_position(parse::plain(text))
    }

    fn without_position(value: Value) -> Node {
        Node { line: 0, column: 0, source: None, value }
    }

    /// Returns the same value with the name of a variable or a flag instead of positions. Messages about the value name
    /// this source.
    #[must_use]
    pub fn with_source(mut self, source: &Arc<str>) -> Node {
        (self.line, self.column, self.source) = (0, 0, Some(Arc::clone(source)));
        self.map_children(|child| child.with_source(source))
    }

    /// Returns the same value with all positions replaced by the position of `other`.
    #[must_use]
    pub fn with_position_of(mut self, other: &Node) -> Node {
        (self.line, self.column, self.source) = (other.line, other.column, other.source.clone());
        self.map_children(|child| child.with_position_of(other))
    }

    fn map_children(mut self, change: impl Fn(Node) -> Node) -> Node {
        for child in self.children_mut() {
            let taken = std::mem::replace(child, Node::without_position(Value::Null));
            *child = change(taken);
        }
        self
    }

    /// Returns the line, from 1; 0 if the value is not from the file.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Returns the name of the variable or the flag that the value is from; none if it is from the file.
    pub fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    pub(super) fn value(&self) -> &Value {
        &self.value
    }

    /// Returns true if the value is null, which counts as not given.
    pub fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// Returns the items of a list, or the values of a mapping.
    pub fn children_mut(&mut self) -> Vec<&mut Node> {
        match &mut self.value {
            Value::List(items) => items.iter_mut().collect(),
            Value::Map(entries) => entries.iter_mut().map(|(_, value)| value).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns true if a text in the value, nested ones included, meets a condition.
    pub fn any_text(&self, condition: &impl Fn(&str) -> bool) -> bool {
        match &self.value {
            Value::Text(text) => condition(text),
            Value::List(items) => items.iter().any(|item| item.any_text(condition)),
            Value::Map(entries) => entries.iter().any(|(_, value)| value.any_text(condition)),
            _ => false,
        }
    }

    /// Returns the field of a mapping by name, if there is one.
    pub fn field_mut(&mut self, name: &str) -> Option<&mut Node> {
        let Value::Map(map) = &mut self.value else { return None };
        map.iter_mut().find(|(key, _)| key.is_word(name)).map(|(_, value)| value)
    }

    /// Sets the field at a path of mappings. Mappings that are missing are created with the position of `value`. If
    /// another kind of value is on the path, which is a mistake in the file, nothing changes.
    pub fn set(&mut self, path: &[&str], value: Node) {
        let Some((name, rest)) = path.split_first() else {
            *self = value;
            return;
        };
        if self.is_null() {
            *self = Node::without_position(Value::Map(Vec::new())).with_position_of(&value);
        }
        let Value::Map(map) = &mut self.value else { return };
        let index = map.iter().position(|(key, _)| key.is_word(name)).unwrap_or_else(|| {
            let key = Node::from_text(*name).with_position_of(&value);
            map.push((key, Node::without_position(Value::Null)));
            map.len() - 1
        });
        map[index].1.set(rest, value);
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
    /// such a text may be a secret that was entered in the wrong field.
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
