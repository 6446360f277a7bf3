//! Parsing of YAML text into nodes with positions, by the rules of YAML 1.2.

use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

use super::{Node, Value};
use crate::Problem;

/// Maximum number of nodes in a file, including the nodes that aliases repeat.
const MAX_NODES: usize = 250_000;

/// Maximum nesting depth of collections.
const MAX_DEPTH: usize = 128;

/// Parses a file with one document.
pub(super) fn parse(text: &str) -> Result<Node, Problem> {
    let mut options = granit_parser::Options::default();
    options.set_emit_comments(false);
    let events = Parser::new_from_str_with_options(text, options);
    let mut builder = Builder { events, anchors: HashMap::new(), nodes: 0 };
    let mut document = None;
    while let Some((event, span)) = builder.next()? {
        match event {
            Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd | Event::StreamEnd => {}
            _ if document.is_some() => {
                return Err(problem(span, "a file must have one YAML document: remove the `---`"));
            }
            event => document = Some(builder.build(event, span, MAX_DEPTH)?.0),
        }
    }
    Ok(document.unwrap_or(Node { line: 1, column: 1, source: None, value: Value::Null }))
}

/// A node that an alias may repeat.
struct Anchor {
    node: Node,
    /// Number of nodes in it, itself included.
    nodes: usize,
    depth: usize,
}

struct Builder<'t> {
    events: Parser<'t, StrInput<'t>>,
    /// Complete nodes by the number of their anchor.
    anchors: HashMap<usize, Anchor>,
    /// Nodes so far.
    nodes: usize,
}

impl<'t> Builder<'t> {
    fn next(&mut self) -> Result<Option<(Event<'t>, Span)>, Problem> {
        self.events.next_event().transpose().map_err(|error| syntax_problem(&error))
    }

    /// Builds the node that begins with `event`, in which collections are nested at most `room` levels deep. Returns
    /// the node and its depth.
    fn build(&mut self, event: Event<'t>, span: Span, room: usize) -> Result<(Node, usize), Problem> {
        let too_large = || problem(span, "the file is too large, too deeply nested, or has too many aliases");
        let before = self.nodes;
        self.nodes += 1;
        if self.nodes > MAX_NODES || room == 0 {
            return Err(too_large());
        }
        let at = span.start;
        let (line, column) = (at.line() as u64, at.col() as u64 + 1);
        let node_of = |value| Node { line, column, source: None, value };
        let (value, depth, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => (scalar(&text, style, tag.as_deref()), 1, anchor),
            Event::SequenceStart(_, anchor, _) => {
                let (mut items, mut depth) = (Vec::new(), 0);
                while let Some((item, item_depth)) = self.build_next(room - 1)? {
                    items.push(item);
                    depth = depth.max(item_depth);
                }
                (Value::List(items), depth + 1, anchor)
            }
            Event::MappingStart(_, anchor, _) => {
                let (mut entries, mut merged, mut depth) = (Vec::new(), Vec::new(), 0);
                while let Some((key, key_depth)) = self.build_next(room - 1)? {
                    let Some((value, value_depth)) = self.build_next(room - 1)? else { break };
                    depth = depth.max(key_depth).max(value_depth);
                    if key.is_word("<<") { merged.push(value) } else { entries.push((key, value)) }
                }
                if !merged.is_empty() {
                    let mut names =
                        entries.iter().filter_map(|(key, _)| key.text().map(str::to_owned)).collect();
                    merged.into_iter().for_each(|merged| merge(&mut entries, &mut names, merged));
                }
                (Value::Map(entries), depth + 1, anchor)
            }
            Event::Alias(anchor) => {
                let Some(anchor) = self.anchors.get(&anchor) else {
                    return Err(problem(span, "an alias must not be inside the value that it repeats"));
                };
                self.nodes += anchor.nodes - 1;
                if self.nodes > MAX_NODES || anchor.depth > room {
                    return Err(too_large());
                }
                return Ok((node_of(anchor.node.value.clone()), anchor.depth));
            }
            _ => (Value::Null, 1, 0),
        };
        let node = node_of(value);
        if anchor > 0 {
            let nodes = self.nodes - before;
            self.anchors.insert(anchor, Anchor { node: node.clone(), nodes, depth });
        }
        Ok((node, depth))
    }

    /// Builds the next node of a collection; returns none at the end of the collection.
    fn build_next(&mut self, room: usize) -> Result<Option<(Node, usize)>, Problem> {
        match self.next()? {
            None | Some((Event::SequenceEnd | Event::MappingEnd, _)) => Ok(None),
            Some((event, span)) => self.build(event, span, room).map(Some),
        }
    }
}

/// Adds the entries of a merge key, `<<`, whose value is a mapping or a list of mappings. An entry whose name is
/// already in `names` is not added.
fn merge(entries: &mut Vec<(Node, Node)>, names: &mut HashSet<String>, merged: Node) {
    match merged.value {
        Value::Map(merged) => {
            for (key, value) in merged {
                if key.text().is_none_or(|name| names.insert(name.to_owned())) {
                    entries.push((key, value));
                }
            }
        }
        Value::List(items) => items.into_iter().for_each(|item| merge(entries, names, item)),
        _ => {}
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    let is_plain = match tag {
        Some(tag) => tag.core_suffix().is_some_and(|name| name != "str"),
        None => style == ScalarStyle::Plain,
    };
    if !is_plain {
        return Value::Text(text.to_owned());
    }
    plain(text)
}

/// Resolves a scalar without quotes.
pub(super) fn plain(text: &str) -> Value {
    // `mode: off` is a word, not a boolean.
    match text {
        "" | "~" => Value::Null,
        _ if text.eq_ignore_ascii_case("null") => Value::Null,
        _ if text.eq_ignore_ascii_case("true") => Value::Bool(true),
        _ if text.eq_ignore_ascii_case("false") => Value::Bool(false),
        _ => integer(text)
            .map(Value::Integer)
            .or_else(|| float(text).map(Value::Float))
            .unwrap_or_else(|| Value::Text(text.to_owned())),
    }
}

/// Parses `-5`, `1_000`, `0x1f`, `0o17` or `0b11`, if the number has at most 64 bits.
fn integer(text: &str) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefixes = [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2)];
    let prefixed = prefixes.iter().find_map(|(prefix, radix)| Some((digits.strip_prefix(prefix)?, *radix)));
    let (digits, radix) = prefixed.unwrap_or((digits, 10));
    let is_group = |group: &str| !group.is_empty() && group.bytes().all(|b| b.is_ascii_alphanumeric());
    let leads_with_zero = radix == 10 && digits.len() > 1 && digits.starts_with('0');
    if leads_with_zero || !digits.split('_').all(is_group) {
        return None;
    }
    let number = sign * i128::from(u64::from_str_radix(&digits.replace('_', ""), radix).ok()?);
    (number >= i128::from(i64::MIN)).then_some(number)
}

/// Parses a number with a point or an exponent, or one that is too large for an integer.
fn float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    match unsigned.to_ascii_lowercase().as_str() {
        ".inf" => Some(if text.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY }),
        ".nan" => Some(f64::NAN),
        // Rust also parses `inf` and `nan`, which are words in YAML.
        number if number.starts_with(|c: char| c.is_ascii_digit() || c == '.') => text.parse().ok(),
        _ => None,
    }
}

fn problem(span: Span, message: &str) -> Problem {
    let at = span.start;
    Problem { line: at.line() as u64, column: at.col() as u64 + 1, message: message.to_owned() }
}

fn syntax_problem(error: &ScanError) -> Problem {
    let at = error.marker();
    let message = super::one_line(&error.info());
    Problem { line: at.line().max(1) as u64, column: at.col() as u64 + 1, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a node in a form that shows its types.
    fn show(node: &Node) -> String {
        let join = |items: Vec<String>| items.join(", ");
        match &node.value {
            Value::List(items) => format!("[{}]", join(items.iter().map(show).collect())),
            Value::Map(entries) => {
                let entries = entries.iter().map(|(key, value)| format!("{}: {}", show(key), show(value)));
                format!("{{{}}}", join(entries.collect()))
            }
            Value::Null => "null".into(),
            Value::Bool(b) => format!("{b}"),
            Value::Integer(n) => format!("{n}"),
            Value::Float(n) => format!("{n:?}"),
            Value::Text(text) => format!("{text:?}"),
        }
    }

    fn read(text: &str) -> String {
        match parse(text) {
            Ok(node) => show(&node),
            Err(Problem { line, column, message }) => format!("{line}:{column}: {message}"),
        }
    }

    #[test]
    fn resolves_scalars_by_the_core_schema() {
        for (text, value) in [
            ("", "null"),
            ("~", "null"),
            ("Null", "null"),
            ("True", "true"),
            ("off", "\"off\""),
            ("yes", "\"yes\""),
            ("-5", "-5"),
            ("+5", "5"),
            ("1_000", "1000"),
            ("1__0", "\"1__0\""),
            ("0x1F", "31"),
            ("0o17", "15"),
            ("0b11", "3"),
            ("0x", "\"0x\""),
            ("0127", "127.0"),
            ("18446744073709551615", "18446744073709551615"),
            ("18446744073709551616", "1.8446744073709552e19"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("1.5e3", "1500.0"),
            (".5", "0.5"),
            ("1e999", "inf"),
            ("-.inf", "-inf"),
            (".NaN", "NaN"),
            ("inf", "\"inf\""),
            ("nan", "\"nan\""),
            (".", "\".\""),
            ("1.2.3.4", "\"1.2.3.4\""),
            ("5s", "\"5s\""),
            ("'5'", "\"5\""),
            ("\"true\"", "\"true\""),
            ("!!str 5", "\"5\""),
            ("!!int '5'", "5"),
            ("! 5", "\"5\""),
            ("|\n  a\n  b\n", "\"a\\nb\\n\""),
        ] {
            assert_eq!(read(text), value, "{text}");
        }
    }

    #[test]
    fn repeats_aliases_and_merges_mappings() {
        let text = "base: &b {x: 1, y: 2}\none: {<<: *b, y: 3}\ntwo: {<<: [*b, {z: 4}]}\nthree: [*b]";
        let base = r#"{"x": 1, "y": 2}"#;
        let expected = [
            &format!(r#""base": {base}"#),
            r#""one": {"y": 3, "x": 1}"#,
            r#""two": {"x": 1, "y": 2, "z": 4}"#,
            &format!(r#""three": [{base}]"#),
        ];
        assert_eq!(read(text), format!("{{{}}}", expected.join(", ")));
        // Mistakes in a repeated value are reported where it is repeated.
        let node = parse("a: &a x\nb:\n  - *a\n").unwrap();
        let alias = &node.field("b").unwrap().items()[0];
        assert_eq!((alias.line, alias.column), (3, 5));
    }

    #[test]
    fn bounds_repetition_and_depth() {
        let too_large = "the file is too large, too deeply nested, or has too many aliases";
        let lines = (1..30).map(|n| format!("a{n}: &a{n} [*a{0}, *a{0}]\n", n - 1));
        let doubling: String = std::iter::once("a0: &a0 [x]\n".to_owned()).chain(lines).collect();
        let chain = |n| (1..n).map(|n| format!("a{n}: &a{n} [*a{}]\n", n - 1)).collect::<String>();
        for text in [
            doubling,
            "[".repeat(200) + &"]".repeat(200),
            format!("a0: &a0 x\n{}", chain(200)),
            format!("a: [{}]", "x,".repeat(300_000)),
        ] {
            assert!(read(&text).ends_with(too_large), "{}", read(&text));
        }
        assert!(read(&format!("a0: &a0 x\n{}", chain(100))).starts_with('{'));
        assert_eq!(read("a: &a [*a]"), "1:8: an alias must not be inside the value that it repeats");
        assert_eq!(read("a: 1\n---\nb: 2"), "3:1: a file must have one YAML document: remove the `---`");
        assert!(read("a: [1, 2").starts_with("1:"), "{}", read("a: [1, 2"));
        assert!(read("a: *b").contains("unknown anchor"), "{}", read("a: *b"));
    }
}
