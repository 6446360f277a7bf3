//! Reader of nodes: takes values out of a mapping and collects mistakes.

use std::collections::HashSet;

use super::{Node, Value, one_line, shorten};
use crate::common::percent::hundredths;
use crate::{Error, Micros, Problem};

/// Reads values from nodes and collects mistakes.
#[derive(Debug, Default)]
pub struct Reader {
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl Reader {
    /// Records a mistake at `node`.
    pub fn problem(&mut self, node: &Node, message: impl Into<String>) {
        self.problems.push(problem_at(node, message.into()));
    }

    /// Records a mistake at `node`, and returns `None`.
    pub(crate) fn reject<T>(&mut self, node: &Node, message: impl Into<String>) -> Option<T> {
        self.problem(node, message);
        None
    }

    /// Returns `value`. Records a mistake if it is `None`.
    fn expect<T>(&mut self, node: &Node, what: &str, wanted: &str, value: Option<T>) -> Option<T> {
        if value.is_none() {
            self.problem(node, format!("{what} must be {wanted}, not {}", node.describe()));
        }
        value
    }

    /// Records a warning at `node`: the value is valid, but probably not intended.
    pub fn warning(&mut self, node: &Node, message: impl Into<String>) {
        self.warnings.push(problem_at(node, message.into()));
    }

    /// Takes the warnings.
    pub fn take_warnings(&mut self) -> Vec<Problem> {
        std::mem::take(&mut self.warnings)
    }

    /// Returns the number of mistakes so far.
    pub fn count(&self) -> usize {
        self.problems.len()
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
        for (key, name, _) in entries.iter().filter(|(_, name, _)| !known.contains(&name.as_str())) {
            let names: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
            let hint = match nearest(name, known) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None if known.is_empty() => "no fields are allowed".to_owned(),
                None => format!("the fields are {}", names.join(", ")),
            };
            self.problem(key, format!("unknown field `{}` in {what}: {hint}", shorten(name)));
        }
        Some(Fields { node, entries })
    }

    /// Returns the entries of a mapping with user-defined names.
    pub fn entries<'n>(&mut self, node: &'n Node, what: &str) -> Option<Vec<(&'n Node, String, &'n Node)>> {
        let Value::Map(map) = &node.value else {
            return self.reject(node, format!("{what} must be a mapping, not {}", node.describe_shape()));
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
            _ => self.reject(node, format!("{what} must be a list, not {}", node.describe_shape())),
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
        let found = match &node.value {
            Value::Text(text) => return Some(text),
            Value::Bool(_) | Value::Integer(_) | Value::Float(_) => {
                format!("{0}: write \"{0}\" in quotes", node.describe())
            }
            _ => node.describe(),
        };
        self.reject(node, format!("{what} must be text, not {found}"))
    }

    /// Reads text, or a whole number as text.
    pub fn text_or_whole(&mut self, node: &Node, what: &str) -> Option<String> {
        match node.value {
            Value::Integer(n) => Some(n.to_string()),
            _ => self.text(node, what).map(str::to_owned),
        }
    }

    /// Reads text. Returns a number or a flag with its spelling in `source`, the text of the whole file. This is for
    /// file formats that do not distinguish quoted and unquoted values.
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
        let number = if let Value::Integer(n) = node.value { u64::try_from(n).ok() } else { None };
        self.expect(node, what, "a whole number", number)
    }

    /// Reads `true` or `false`.
    pub fn flag(&mut self, node: &Node, what: &str) -> Option<bool> {
        let flag = if let Value::Bool(flag) = node.value { Some(flag) } else { None };
        self.expect(node, what, "true or false", flag)
    }

    /// Reads a length of time such as `250ms`, `5s` or `1h 30m`.
    pub fn duration(&mut self, node: &Node, what: &str) -> Option<Micros> {
        let duration = node.text().and_then(|text| text.parse().ok());
        self.expect(node, what, "a length of time such as 250ms, 5s or 1h", duration)
    }

    /// Reads a share such as `10%` or `12.5%`, in hundredths of a percent.
    pub fn percent(&mut self, node: &Node, what: &str) -> Option<u32> {
        self.expect(node, what, "a percentage such as 80% or 12.5%", node.text().and_then(hundredths))
    }

    /// Reads a number such as `1.5`, and returns it in hundredths, rounded. The number must be from 0 to a million.
    pub fn hundredths(&mut self, node: &Node, what: &str) -> Option<u32> {
        let number = match node.value {
            Value::Integer(n) => n as f64,
            Value::Float(n) => n,
            _ => f64::NAN,
        };
        let hundredths = (0.0..=1e6).contains(&number).then(|| (number * 100.0).round() as u32);
        self.expect(node, what, "a number such as 1.5", hundredths)
    }

    /// Reads one of several words, and returns its meaning.
    pub fn word<T: Copy>(&mut self, node: &Node, what: &str, words: &[(&str, T)]) -> Option<T> {
        let meaning = words.iter().find(|(word, _)| node.is_word(word)).map(|(_, meaning)| *meaning);
        let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        self.expect(node, what, &format!("one of {}", words.join(", ")), meaning)
    }
}

/// Returns a problem at the position of a node. The message names the source of a value that is not from the file.
fn problem_at(node: &Node, message: String) -> Problem {
    let message = match node.source() {
        Some(source) => one_line(&format!("{source}: {message}")),
        None => one_line(&message),
    };
    Problem { line: node.line, column: node.column, message }
}

/// Returns the known name that differs from `name` by the fewest typing mistakes, if they are few.
pub fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    if name.len() > 40 {
        return None;
    }
    let distances = known.iter().map(|known| (typing_mistakes(name.as_bytes(), known.as_bytes()), *known));
    let (mistakes, nearest) = distances.min()?;
    (mistakes <= (name.len() / 3).clamp(1, 3)).then_some(nearest)
}

/// Returns the number of bytes to insert, remove, replace or swap with their neighbour to turn `a` into `b`.
fn typing_mistakes(a: &[u8], b: &[u8]) -> usize {
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
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
