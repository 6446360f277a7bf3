//! A value as written in a file, without positions.

use std::fmt;

use serde::ser::{Serialize, Serializer};

use super::{Description, Kind};
use crate::common::yaml::{Node, Value};

/// Value as written in a file. `Display` writes YAML on one line.
#[derive(Clone, Debug, PartialEq)]
pub enum Shown {
    /// Not given.
    Null,
    /// `true` or `false`.
    Flag(bool),
    /// A whole number.
    Whole(u64),
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Shown>),
    /// A mapping, in the order of its declaration.
    Map(Vec<(String, Shown)>),
}

impl Shown {
    /// Returns the same value with the fields of all mappings in alphabetical order: a form that does not depend on the order of
    /// declarations.
    #[must_use]
    pub fn sorted(self) -> Self {
        match self {
            Shown::List(items) => Shown::List(items.into_iter().map(Shown::sorted).collect()),
            Shown::Map(mut fields) => {
                fields.sort_by(|(a, _), (b, _)| a.cmp(b));
                Shown::Map(fields.into_iter().map(|(name, value)| (name, value.sorted())).collect())
            }
            scalar => scalar,
        }
    }
}

impl Description {
    /// Returns a value of this section without the fields that have their default, also in nested sections.
    pub fn without_defaults(&self, shown: Shown) -> Shown {
        let Shown::Map(values) = shown else { return shown };
        let values = values.into_iter().filter_map(|(name, value)| {
            let (_, kind, default) = self.fields.iter().find(|(terms, ..)| terms.name == name)?;
            if default.as_ref().is_some_and(|default| *default == value.to_string()) {
                return None;
            }
            let Kind::Section(section) = kind else { return Some((name, value)) };
            Some((name, section.without_defaults(value)))
        });
        Shown::Map(values.collect())
    }
}

impl From<&Node> for Shown {
    fn from(node: &Node) -> Self {
        match node.value() {
            Value::Null => Shown::Null,
            Value::Bool(flag) => Shown::Flag(*flag),
            Value::Integer(number) => {
                u64::try_from(*number).map_or(Shown::Number(*number as f64), Shown::Whole)
            }
            Value::Float(number) => Shown::Number(*number),
            Value::Text(text) => Shown::Text(text.clone()),
            Value::List(items) => Shown::List(items.iter().map(Shown::from).collect()),
            Value::Map(entries) => {
                let name = |key: &Node| key.text().unwrap_or_default().to_owned();
                Shown::Map(entries.iter().map(|(key, value)| (name(key), Shown::from(value))).collect())
            }
        }
    }
}

impl Serialize for Shown {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Shown::Null => serializer.serialize_unit(),
            Shown::Flag(flag) => serializer.serialize_bool(*flag),
            Shown::Whole(number) => serializer.serialize_u64(*number),
            Shown::Number(number) => serializer.serialize_f64(*number),
            Shown::Text(text) => serializer.serialize_str(text),
            Shown::List(items) => serializer.collect_seq(items),
            Shown::Map(fields) => serializer.collect_map(fields.iter().map(|(name, value)| (name, value))),
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shown::Null => f.write_str("null"),
            Shown::Flag(flag) => flag.fmt(f),
            Shown::Whole(number) => number.fmt(f),
            Shown::Number(number) => number.fmt(f),
            Shown::Text(text) => write_text(f, text),
            Shown::List(items) => {
                let items: Vec<String> = items.iter().map(Shown::to_string).collect();
                write!(f, "[{}]", items.join(", "))
            }
            Shown::Map(fields) if fields.is_empty() => f.write_str("{}"),
            Shown::Map(fields) => {
                let field =
                    |(name, value): &(String, Shown)| format!("{}: {value}", Shown::Text(name.clone()));
                let fields: Vec<String> = fields.iter().map(field).collect();
                write!(f, "{{ {} }}", fields.join(", "))
            }
        }
    }
}

/// Writes a YAML scalar: quoted, unless it is clearly a word, a length of time or a percentage.
fn write_text(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    const RESERVED: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_./-".contains(&b))
        && !RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(text));
    let is_amount = text
        .strip_suffix(['s', 'm', 'h', 'd', '%'])
        .is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()) && !number.is_empty());
    if is_word || is_amount {
        return f.write_str(text);
    }
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}
