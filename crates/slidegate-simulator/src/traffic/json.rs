//! Logs of JSON lines: one object a line, whatever its fields are called.

use std::borrow::Cow;

use serde_json::{Map, Value};
use slidegate::Request;

use super::event::Event;
use super::fields::{Fields, never_seen};
use super::time::read_time;

/// Where the time is, unless said otherwise: the first of these that a line has.
pub(super) const TIMES: [&str; 6] = ["time", "timestamp", "@timestamp", "ts", "at", "date"];

/// Reads lines of JSON.
#[derive(Debug)]
pub(super) struct Json {
    fields: Fields,
    line: Value,
    /// What is not text in the line, by its attribute's place.
    numbers: Vec<(usize, String)>,
    /// Which of the fields that somebody named were ever there.
    seen: Vec<bool>,
}

impl Json {
    pub(super) fn new(fields: &Fields) -> Self {
        Json {
            line: Value::Null,
            numbers: Vec::new(),
            seen: vec![false; fields.attributes.len()],
            fields: fields.clone(),
        }
    }

    /// Gives one line to `visit`.
    pub(super) fn read(
        &mut self,
        line: &str,
        visit: impl FnOnce(Event<'_, '_>) -> Result<(), String>,
    ) -> Result<(), String> {
        self.line =
            serde_json::from_str(line).map_err(|error| format!("it is not JSON: {}", in_one_line(&error)))?;
        let Value::Object(object) = &self.line else { return Err("it is not a JSON object".to_owned()) };
        let time = match &self.fields.time {
            Some(field) => find(object, field).ok_or_else(|| format!("it has no `{field}`"))?,
            None => {
                let time = TIMES.iter().find_map(|field| find(object, field));
                time.ok_or_else(|| format!("it has no time, which would be one of {}", TIMES.join(", ")))?
            }
        };
        let time = text(time).unwrap_or_default();
        let at = read_time(&time).ok_or_else(|| format!("\"{time}\" is not a time"))?;
        let permits = match &self.fields.permits {
            Some(field) => {
                let permits = find(object, field).ok_or_else(|| format!("it has no `{field}`"))?;
                permits.as_u64().ok_or_else(|| format!("`{field}` is not a whole number"))?
            }
            None => 1,
        };
        self.numbers.clear();
        for (place, attribute) in self.fields.attributes.iter().enumerate() {
            let value = find(object, &attribute.field).and_then(text);
            self.seen[place] |= value.is_some();
            if let Some(Cow::Owned(number)) = value {
                self.numbers.push((place, number));
            }
        }
        let number = |place| self.numbers.iter().find(|(of, _)| *of == place).map(|(_, text)| text.as_str());
        let pairs = self.fields.attributes.iter().enumerate().filter_map(|(place, attribute)| {
            let text = find(object, &attribute.field).and_then(Value::as_str).or_else(|| number(place));
            Some((attribute.attribute.as_str(), text.filter(|text| !text.is_empty())?))
        });
        let request = Request::new(pairs.chain(self.fields.constants())).permits(permits);
        visit(Event::new(at, &request))
    }

    /// What is not as it seems, for people.
    pub(super) fn note(&self) -> Option<String> {
        let seen = self.fields.attributes.iter().zip(&self.seen);
        never_seen(seen.map(|(named, seen)| (named.field.as_str(), *seen)))
    }
}

/// What is wrong and in which column. The line's number is known better.
pub(super) fn in_one_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let (why, _) = text.rsplit_once(" at line ").unwrap_or((&text, ""));
    format!("{why} at column {}", error.column())
}

/// A field by its name, or by its path such as `request.remote_ip`.
fn find<'v>(object: &'v Map<String, Value>, field: &str) -> Option<&'v Value> {
    if let Some(value) = object.get(field) {
        return Some(value);
    }
    let (first, rest) = field.split_once('.')?;
    find(object.get(first)?.as_object()?, rest)
}

/// What can be an attribute.
fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        Value::Bool(flag) => Some(Cow::Owned(flag.to_string())),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
