//! Parses logs of JSON lines: one object per line, with any field names.

use std::borrow::Cow;

use serde_json::{Map, Value};
use slidegate::Request;

use super::event::Event;
use super::fields::{AttributeField, Fields, MappedAttribute, unseen_fields_note};
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
    /// Source of each attribute, as far as it is known from the lines so far.
    sources: Vec<FieldSource>,
}

/// Field of an attribute in JSON lines, whose fields are only known line by line. A synonym is used until a line has the field
/// itself.
#[derive(Clone, Debug, Default)]
struct FieldSource {
    /// True if any line has had the field itself, with any value.
    has_field: bool,
    synonym: Option<&'static str>,
    /// Number of lines whose value is that of the synonym.
    by_synonym: u64,
    /// True if any line has had a value.
    seen: bool,
}

impl FieldSource {
    /// Looks for the field in a line, and for a synonym until a line has had the field.
    fn update(&mut self, attribute: &AttributeField, object: &Map<String, Value>) {
        if self.has_field {
            return;
        }
        self.has_field = find_field(object, &attribute.field).is_some();
        if self.has_field {
            return;
        }
        if self.synonym.is_none() {
            let mut synonyms = attribute.synonyms.iter().copied();
            self.synonym = synonyms.find(|synonym| find_field(object, synonym).is_some());
        }
        self.by_synonym += u64::from(self.synonym.is_some());
    }

    fn value<'v>(&self, attribute: &AttributeField, object: &'v Map<String, Value>) -> Option<&'v Value> {
        let synonym = self.synonym.filter(|_| !self.has_field);
        find_field(object, synonym.unwrap_or(&attribute.field))
    }
}

impl Json {
    pub(super) fn new(fields: &Fields) -> Self {
        Json {
            line: Value::Null,
            non_strings: Vec::new(),
            sources: vec![FieldSource::default(); fields.attributes.len()],
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
        for (index, (attribute, source)) in self.fields.attributes.iter().zip(&mut self.sources).enumerate() {
            source.update(attribute, object);
            let value = source.value(attribute, object).and_then(text);
            source.seen |= value.is_some();
            if let Some(Cow::Owned(non_string)) = value {
                self.non_strings.push((index, non_string));
            }
        }
        let non_string =
            |index| self.non_strings.iter().find(|(of, _)| *of == index).map(|(_, text)| text.as_str());
        let attributes = self.fields.attributes.iter().zip(&self.sources).enumerate();
        let pairs = attributes.filter_map(|(index, (attribute, source))| {
            let value = source.value(attribute, object);
            let text = value.and_then(Value::as_str).or_else(|| non_string(index));
            Some((attribute.attribute.as_str(), text.filter(|text| !text.is_empty())?))
        });
        let request = Request::new(pairs.chain(self.fields.constants())).permits(permits);
        visit(Event::new(at, &request))
    }

    /// Returns notes for the report: fields that no line had, and fields that only later lines had.
    pub(super) fn notes(&self) -> Vec<String> {
        let attributes = || self.fields.attributes.iter().zip(&self.sources);
        let unseen =
            unseen_fields_note(attributes().map(|(named, source)| (named.field.as_str(), source.seen)));
        let mixed = attributes().filter(|(_, source)| source.has_field && source.by_synonym > 0);
        let mixed = mixed.filter_map(|(named, source)| {
            let AttributeField { attribute, field, .. } = named;
            Some(format!(
                "`{attribute}` is the field `{}` in the lines before the first line with `{field}` (lines: {}): --attribute {attribute}=FIELD \
                 names one field for all lines",
                source.synonym?, source.by_synonym
            ))
        });
        unseen.into_iter().chain(mixed).collect()
    }

    pub(super) fn mapped(&self) -> Vec<MappedAttribute> {
        let attributes = self.fields.attributes.iter().zip(&self.sources);
        let mapped = attributes.filter(|(_, source)| !source.has_field).filter_map(|(named, source)| {
            Some(MappedAttribute { attribute: named.attribute.clone(), field: source.synonym?.to_owned() })
        });
        mapped.collect()
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
