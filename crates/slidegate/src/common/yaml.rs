//! YAML reader that reports all mistakes at once, each with its line.
//!
//! Serde stops at the first error. A file is therefore first parsed into [`Node`]s with positions, and then read field by
//! field: a [`Reader`] collects the mistakes and continues. The server reads its part of the file with the same types.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};

use crate::{Error, Micros, Problem};

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
            let message = format!("the file has {} bytes; at most {MAX_FILE} are read", text.len());
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

    /// Returns true if the value is exactly this text.
    pub fn is_word(&self, word: &str) -> bool {
        matches!(&self.value, Value::Text(text) if text == word)
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
            "a file has one document: remove the `---`".to_owned()
        }
        m if m.starts_with("budget breached") => {
            "the file is too large, too deep, or repeats itself too often".to_owned()
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

/// Reads values from nodes and collects mistakes.
#[derive(Debug, Default)]
pub struct Reader {
    problems: Vec<Problem>,
}

impl Reader {
    /// Records a mistake at `node`.
    pub fn problem(&mut self, node: &Node, message: impl Into<String>) {
        let message = one_line(&message.into());
        self.problems.push(Problem { line: node.line, column: node.column, message });
    }

    /// Returns the result, or all mistakes.
    pub fn finish<T>(self, value: Option<T>) -> Result<T, Error> {
        match value {
            Some(value) if self.problems.is_empty() => Ok(value),
            _ => Err(Error::file(self.problems)),
        }
    }

    /// Records the error of `result`, if any, as a mistake at `node`.
    pub fn accept<T>(&mut self, node: &Node, result: Result<T, Error>) -> Option<T> {
        result.map_err(|error| self.problem(node, error.to_string())).ok()
    }

    /// Returns the fields of a mapping. `what` names the mapping in messages; `known` lists the permitted fields.
    pub fn fields<'n>(&mut self, node: &'n Node, what: &str, known: &[&str]) -> Option<Fields<'n>> {
        let entries = self.entries(node, what)?;
        for (key, name, _) in &entries {
            if !known.contains(&name.as_str()) {
                let known: Vec<String> = known.iter().map(|k| format!("`{k}`")).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                self.problem(
                    key,
                    format!("unknown field `{}` in {what}: it may have {known}", shorten(name)),
                );
            }
        }
        Some(Fields { node, entries })
    }

    /// Returns the entries of a mapping with user-defined names.
    pub fn entries<'n>(&mut self, node: &'n Node, what: &str) -> Option<Vec<(&'n Node, String, &'n Node)>> {
        let Value::Map(map) = &node.value else {
            self.problem(node, format!("{what} must be a mapping, not {}", node.describe_shape()));
            return None;
        };
        let (mut entries, mut names) = (Vec::new(), HashSet::new());
        for (key, value) in map {
            let Some(name) = self.text(key, "a field name") else { continue };
            if !names.insert(name) {
                self.problem(key, format!("`{}` is given twice in {what}", shorten(name)));
            } else {
                entries.push((key, name.to_owned(), value));
            }
        }
        Some(entries)
    }

    /// Returns the items of a list.
    pub fn list<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n [Node]> {
        match &node.value {
            Value::List(items) => Some(items),
            _ => {
                self.problem(node, format!("{what} must be a list, not {}", node.describe_shape()));
                None
            }
        }
    }

    /// Returns the items of a list, or a single value as a list of one.
    pub fn one_or_more<'n>(&mut self, node: &'n Node) -> &'n [Node] {
        match &node.value {
            Value::List(items) => items,
            _ => std::slice::from_ref(node),
        }
    }

    /// Reads text.
    pub fn text<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n str> {
        match &node.value {
            Value::Text(text) => Some(text),
            Value::Bool(_) | Value::Integer(_) | Value::Float(_) => {
                let found = node.describe();
                self.problem(node, format!("{what} must be text, not {found}: write \"{found}\" in quotes"));
                None
            }
            _ => {
                self.problem(node, format!("{what} must be text, not {}", node.describe()));
                None
            }
        }
    }

    /// Reads text, or a number or a flag as it is spelled in `source`, the whole file. For file formats without a difference
    /// between quoted and unquoted values.
    pub fn written(&mut self, node: &Node, what: &str, source: &str) -> Option<String> {
        if let Value::Bool(_) | Value::Integer(_) | Value::Float(_) = node.value {
            let index_of = |n: u64| usize::try_from(n.saturating_sub(1)).unwrap_or(usize::MAX);
            let line = source.lines().nth(index_of(node.line)).unwrap_or_default();
            let rest: String = line.chars().skip(index_of(node.column)).collect();
            let token = rest.split([' ', '\t', ',', ']', '}']).next().unwrap_or_default();
            if Node::parse(token).is_ok_and(|read| read.describe() == node.describe()) {
                return Some(token.to_owned());
            }
        }
        self.text(node, what).map(str::to_owned)
    }

    /// Reads a non-negative integer.
    pub fn whole(&mut self, node: &Node, what: &str) -> Option<u64> {
        if let Value::Integer(n) = node.value
            && let Ok(n) = u64::try_from(n)
        {
            return Some(n);
        }
        self.problem(node, format!("{what} must be a whole number, not {}", node.describe()));
        None
    }

    /// Reads `true` or `false`.
    pub fn flag(&mut self, node: &Node, what: &str) -> Option<bool> {
        if let Value::Bool(flag) = node.value {
            return Some(flag);
        }
        self.problem(node, format!("{what} must be true or false, not {}", node.describe()));
        None
    }

    /// Reads a length of time such as `250ms`, `5s` or `1h 30m`.
    pub fn duration(&mut self, node: &Node, what: &str) -> Option<Micros> {
        if let Value::Text(text) = &node.value
            && let Ok(duration) = text.parse()
        {
            return Some(duration);
        }
        let found = node.describe();
        self.problem(node, format!("{what} must be a length of time such as 250ms, 5s or 1h, not {found}"));
        None
    }

    /// Reads a share such as `10%` or `12.5%`, in hundredths of a percent.
    pub fn percent(&mut self, node: &Node, what: &str) -> Option<u32> {
        if let Value::Text(text) = &node.value
            && let Some(share) = hundredths(text)
        {
            return Some(share);
        }
        self.problem(
            node,
            format!("{what} must be a percentage such as 80% or 12.5%, not {}", node.describe()),
        );
        None
    }

    /// Reads a number such as `1.5`, in hundredths: rounded, and at most a million.
    pub fn hundredths(&mut self, node: &Node, what: &str) -> Option<u32> {
        let number = match node.value {
            Value::Integer(n) => n as f64,
            Value::Float(n) => n,
            _ => f64::NAN,
        };
        if (0.0..=1e6).contains(&number) {
            return Some((number * 100.0).round() as u32);
        }
        self.problem(node, format!("{what} must be a number such as 1.5, not {}", node.describe()));
        None
    }

    /// Reads one of several words, and returns its meaning.
    pub fn word<T: Copy>(&mut self, node: &Node, what: &str, words: &[(&str, T)]) -> Option<T> {
        if let Value::Text(text) = &node.value
            && let Some((_, meaning)) = words.iter().find(|(word, _)| word == text)
        {
            return Some(*meaning);
        }
        let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        self.problem(node, format!("{what} must be one of {}, not {}", words.join(", "), node.describe()));
        None
    }
}

/// Parses a share in hundredths of a percent: `12.5%` is 1,250. At most two decimals, and at most six digits before them.
pub fn hundredths(text: &str) -> Option<u32> {
    let number = text.strip_suffix('%')?.trim_end();
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let digits =
        |text: &str, most| (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole, 6) || !digits(decimals, 2) {
        return None;
    }
    let decimals = decimals.parse::<u32>().ok()? * if decimals.len() == 1 { 10 } else { 1 };
    Some(whole.parse::<u32>().ok()? * 100 + decimals)
}

/// Fields of one mapping.
#[derive(Debug)]
pub struct Fields<'n> {
    node: &'n Node,
    entries: Vec<(&'n Node, String, &'n Node)>,
}

impl<'n> Fields<'n> {
    /// Returns the mapping itself.
    pub fn node(&self) -> &'n Node {
        self.node
    }

    /// Returns a field, if it is given. A null field counts as not given.
    pub fn get(&self, name: &str) -> Option<&'n Node> {
        let (_, _, value) = self.entries.iter().find(|(_, known, _)| known == name)?;
        (!matches!(value.value, Value::Null)).then_some(*value)
    }

    /// Returns a field, and records a mistake if it is missing.
    pub fn required(&self, reader: &mut Reader, name: &str, what: &str) -> Option<&'n Node> {
        let value = self.get(name);
        if value.is_none() {
            reader.problem(self.node, format!("{what} needs `{name}`"));
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_exact() {
        let read = |text: &str| {
            let node = Node::parse(text).ok()?;
            Reader::default().percent(&node, "min")
        };
        for (text, share) in
            [("10%", 1_000), ("120%", 12_000), ("12.5%", 1_250), ("0.05%", 5), ("0%", 0), ("\"7 %\"", 700)]
        {
            assert_eq!(read(text), Some(share), "{text}");
        }
        for text in
            ["10", "0.1", "%", ".5%", "5.%", "1.234%", "-1%", "1e2%", "1234567%", "ten%", "[10%]", "10%%"]
        {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
