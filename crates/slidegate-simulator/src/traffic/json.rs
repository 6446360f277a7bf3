//! Parses logs of JSON lines: one object per line, with any field names.

use std::borrow::Cow;

use serde_json::{Map, Value};
use slidegate::Request;

use super::event::Event;
use super::fields::{Fields, unseen_fields_note};
use super::time::read_time;

/// Default fields for the time: the first that a line has is used.
pub(super) const TIME_FIELDS: [&str; 6] = ["time", "timestamp", "@timestamp", "ts", "at", "date"];

/// Parser for JSON lines.
#[derive(Debug)]
pub(super) struct Json {
    fields: Fields,
    line: Value,
    /// Numbers and booleans of the line as text, with the index of their attribute.
    non_strings: Vec<(usize, String)>,
    /// For each attribute, true if any line has had its field.
    seen: Vec<bool>,
}

impl Json {
    pub(super) fn new(fields: &Fields) -> Self {
        Json {
            line: Value::Null,
            non_strings: Vec::new(),
            seen: vec![false; fields.attributes.len()],
            fields: fields.clone(),
        }
    }

    /// Parses one line and gives its request to `visit`.
    pub(super) fn read(
        &mut self,
        line: &str,
        visit: impl FnOnce(Event<'_, '_>) -> Result<(), String>,
    ) -> Result<(), String> {
        self.line =
            serde_json::from_str(line).map_err(|error| format!("not JSON: {}", describe_error(&error)))?;
        let Value::Object(object) = &self.line else { return Err("not a JSON object".to_owned()) };
        let time = match &self.fields.time {
            Some(field) => find_field(object, field).ok_or_else(|| format!("the line has no `{field}`"))?,
            None => {
                let time = TIME_FIELDS.iter().find_map(|field| find_field(object, field));
                time.ok_or_else(|| format!("the line has no time field (one of {})", TIME_FIELDS.join(", ")))?
            }
        };
        let time = text(time).unwrap_or_default();
        let at = read_time(&time).ok_or_else(|| format!("\"{time}\" is not a time"))?;
        let permits = match &self.fields.permits {
            Some(field) => {
                let permits =
                    find_field(object, field).ok_or_else(|| format!("the line has no `{field}`"))?;
                permits.as_u64().ok_or_else(|| format!("`{field}` is not a whole number"))?
            }
            None => 1,
        };
        self.non_strings.clear();
        for (index, attribute) in self.fields.attributes.iter().enumerate() {
            let value = find_field(object, &attribute.field).and_then(text);
            self.seen[index] |= value.is_some();
            if let Some(Cow::Owned(non_string)) = value {
                self.non_strings.push((index, non_string));
            }
        }
        let non_string =
            |index| self.non_strings.iter().find(|(of, _)| *of == index).map(|(_, text)| text.as_str());
        let pairs = self.fields.attributes.iter().enumerate().filter_map(|(index, attribute)| {
            let text =
                find_field(object, &attribute.field).and_then(Value::as_str).or_else(|| non_string(index));
            Some((attribute.attribute.as_str(), text.filter(|text| !text.is_empty())?))
        });
        let request = Request::new(pairs.chain(self.fields.constants())).permits(permits);
        visit(Event::new(at, &request))
    }

    /// Returns a note for the report about fields that no line had.
    pub(super) fn note(&self) -> Option<String> {
        let seen = self.fields.attributes.iter().zip(&self.seen);
        unseen_fields_note(seen.map(|(named, seen)| (named.field.as_str(), *seen)))
    }
}

/// Formats the error with its column. The parser's line number is left out: it is always 1.
pub(super) fn describe_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let (why, _) = text.rsplit_once(" at line ").unwrap_or((&text, ""));
    format!("{why} at column {}", error.column())
}

/// Finds a field by its name, or by its path, such as `request.remote_ip`.
fn find_field<'v>(object: &'v Map<String, Value>, field: &str) -> Option<&'v Value> {
    if let Some(value) = object.get(field) {
        return Some(value);
    }
    let (first, rest) = field.split_once('.')?;
    find_field(object.get(first)?.as_object()?, rest)
}

/// Returns a value as text; none if it cannot be an attribute.
fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        Value::Bool(flag) => Some(Cow::Owned(flag.to_string())),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
