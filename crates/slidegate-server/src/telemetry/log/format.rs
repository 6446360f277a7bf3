//! Log format: one line for every event, and for every span when it ends.
//!
//! Text is `TIME LEVEL MESSAGE name=value …`. JSON is an object with `timestamp`, `level`, `message` and all other
//! fields. All commands except `serve` print `slidegate: MESSAGE`. Every message is one line, whatever it contains. The
//! only exception in text is a line break followed by two spaces. Only messages of the server itself contain it.
//!
//! An event with the field [`EVENT`] has a complete message, so its fields are only in JSON.

use std::fmt::Debug;
use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use serde::ser::{Serialize, SerializeMap, Serializer};
use slidegate::{Clock, SystemClock};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::Format;

/// Prefix of fields that only exporters use.
const EXPORT_ONLY_PREFIX: &str = "otel.";

/// Field with the name of an event, for programs.
const EVENT: &str = "event";

pub(super) struct LineWriter {
    format: Format,
    clock: SystemClock,
}

impl LineWriter {
    pub(super) fn new(format: Format) -> Self {
        LineWriter { format, clock: SystemClock::new() }
    }

    fn write(&self, level: Level, message: &str, fields: &Fields) {
        let at = UNIX_EPOCH + Duration::from(self.clock.now());
        let timestamp = humantime::format_rfc3339_micros(at);
        let mut line = match self.format {
            Format::Plain => text("slidegate: ", message, fields),
            Format::Text => text(&format!("{timestamp} {level:>5} "), message, fields),
            Format::Json => json(&timestamp.to_string(), level, message, fields),
        };
        line.push('\n');
        // The line is written at once, so that lines of several threads do not mix. A failure cannot be reported
        // anywhere.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LineWriter {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let message = std::mem::take(&mut fields.message);
        self.write(*event.metadata().level(), &message, &fields);
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let fields = span.extensions_mut().remove::<Fields>();
        if let Some(fields) = fields {
            self.write(*span.metadata().level(), span.name(), &fields);
        }
    }
}

/// Fields of an event or a span, in the order in which they were recorded.
#[derive(Default)]
struct Fields {
    message: String,
    rest: Vec<(&'static str, Value)>,
}

#[derive(serde::Serialize)]
#[serde(untagged)]
enum Value {
    Bool(bool),
    Number(u64),
    Text(String),
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        match value {
            Value::Text(text) if field.name() == "message" => self.message = text,
            value if !field.name().starts_with(EXPORT_ONLY_PREFIX) => self.rest.push((field.name(), value)),
            _ => {}
        }
    }
}

impl Visit for Fields {
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, Value::Bool(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, Value::Number(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, Value::Text(value.to_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, Value::Text(format!("{value:?}")));
    }
}

fn text(start: &str, message: &str, fields: &Fields) -> String {
    let mut line = start.to_owned();
    push_escaped(&mut line, message);
    if fields.rest.iter().any(|(name, _)| *name == EVENT) {
        return line;
    }
    for (name, value) in &fields.rest {
        line.extend([" ", name, "="]);
        match value {
            Value::Bool(value) => line.push_str(if *value { "true" } else { "false" }),
            Value::Number(value) => line.push_str(itoa::Buffer::new().format(*value)),
            Value::Text(value) if value.contains([' ', '"']) => push_quoted(&mut line, value),
            Value::Text(value) => push_escaped(&mut line, value),
        }
    }
    line
}

fn push_quoted(line: &mut String, value: &str) {
    line.push('"');
    push_escaped(line, &value.replace('\\', r"\\").replace('"', "\\\""));
    line.push('"');
}

/// Appends `text` with control characters, which a terminal would obey, and forged line breaks escaped.
fn push_escaped(line: &mut String, text: &str) {
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let continues = c == '\n' && rest.as_str().starts_with("  ");
        if !continues && is_unsafe(c) { line.extend(c.escape_default()) } else { line.push(c) }
    }
}

/// Returns true for control characters, Unicode line breaks, and characters that change the text direction.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

struct JsonLine<'l> {
    timestamp: &'l str,
    level: Level,
    message: &'l str,
    fields: &'l Fields,
}

impl Serialize for JsonLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("timestamp", self.timestamp)?;
        object.serialize_entry("level", self.level.as_str())?;
        object.serialize_entry("message", self.message)?;
        for (name, value) in &self.fields.rest {
            object.serialize_entry(name, value)?;
        }
        object.end()
    }
}

fn json(timestamp: &str, level: Level, message: &str, fields: &Fields) -> String {
    // Serializing our own types does not fail.
    serde_json::to_string(&JsonLine { timestamp, level, message, fields }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Fields {
        let texts =
            [("keys", "a:#1 b:#2"), ("odd", "\u{1b}[2J\nslidegate: forged"), ("quoted", "a \"b\"\\\n")];
        let texts = texts.map(|(name, text)| (name, Value::Text(text.to_owned())));
        let rest = [("allowed", Value::Bool(true)), ("took_us", Value::Number(12))].into_iter().chain(texts);
        Fields { rest: rest.collect(), ..Default::default() }
    }

    #[test]
    fn text_event_is_one_line() {
        assert_eq!(text("slidegate: ", "Redis is back", &Fields::default()), "slidegate: Redis is back");
        let line = text("12:00  INFO ", "decision", &fields());
        let expected = r#"12:00  INFO decision allowed=true took_us=12 keys="a:#1 b:#2" odd="\u{1b}[2J\nslidegate: forged" quoted="a \"b\"\\\n""#;
        assert_eq!(line, expected);
        for odd in ["\r", "\n", "\u{9b}31m", "\u{2028}", "\u{202e}", "\0", "\n slidegate: ", "\n\n"] {
            let line = text("", &format!("a{odd}b"), &Fields::default());
            assert!(!line.chars().any(is_unsafe), "{line:?}");
        }
        // Messages of the server itself may have several lines.
        let mistakes = "f has mistakes:\n  f:1:2: no\n  f:3:4: nor that";
        assert_eq!(text("", mistakes, &Fields::default()), mistakes);
        // The message of a named event is complete, so the text has no fields.
        let named = Fields { rest: vec![(EVENT, Value::Text("ready".to_owned()))], ..Fields::default() };
        assert_eq!(text("", "ready", &named), "ready");
    }

    #[test]
    fn json_event_is_one_object() {
        let line = json("2026-01-02T03:04:05.000006Z", Level::WARN, "two\nlines \u{1b}[2J", &fields());
        assert!(!line.chars().any(char::is_control), "{line}");
        assert!(
            line.starts_with(r#"{"timestamp":"2026-01-02T03:04:05.000006Z","level":"WARN","message":"two\n"#),
            "{line}"
        );
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["message"], "two\nlines \u{1b}[2J");
        assert_eq!((&value["allowed"], &value["took_us"]), (&true.into(), &12.into()));
        assert_eq!(value["odd"], "\u{1b}[2J\nslidegate: forged");
    }
}
