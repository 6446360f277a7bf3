//! YAML reader that reports all mistakes at once, each with its line.
//!
//! Serde stops at the first error. A file is therefore first parsed into [`Node`]s with positions, and then read field by
//! field: a [`Reader`] collects the mistakes and continues. The server reads its part of the file with the same types.

mod reader;

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};

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
        let options = serde_saphyr::options! {
            // Duplicate keys are reported later, together with all other mistakes.
            duplicate_keys: DuplicateKeyPolicy::LastWins,
            // `mode: off` is a word, not a boolean.
            strict_booleans: true,
            non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        };
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
            let message = one_line(&syntax_message(&error.without_snippet().to_string()));
            Error::file(vec![Problem { line: line.max(1), column: column.max(1), message }])
        })
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

/// Returns the message of the parser without its position.
fn syntax_message(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let message = line.split(" at line ").next().unwrap_or(line);
    match message {
        m if m.starts_with("multiple YAML documents") => {
            "a file must have one YAML document: remove the `---`".to_owned()
        }
        m if m.starts_with("budget breached") => {
            "the file is too large, too deeply nested, or has too many aliases".to_owned()
        }
        m => m.to_owned(),
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

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = serde_saphyr::Spanned::<Value>::deserialize(deserializer)?;
        let at = spanned.referenced;
        Ok(Node { line: at.line().max(1), column: at.column().max(1), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }

    fn visit_bool<E>(self, b: bool) -> Result<Value, E> {
        Ok(Value::Bool(b))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Value, E> {
        Ok(Value::Integer(n.into()))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Value, E> {
        Ok(Value::Integer(n.into()))
    }

    fn visit_i128<E>(self, n: i128) -> Result<Value, E> {
        Ok(Value::Integer(n))
    }

    fn visit_u128<E>(self, n: u128) -> Result<Value, E> {
        Ok(Value::Integer(i128::try_from(n).unwrap_or(i128::MAX)))
    }

    fn visit_f64<E>(self, n: f64) -> Result<Value, E> {
        Ok(Value::Float(n))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Value::Map(map))
    }
}
