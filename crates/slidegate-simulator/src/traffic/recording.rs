//! Parses recordings of `slidegate serve --record`: one JSON object per line, with a request and its decision.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use slidegate::{AdHocLimit, Micros, Request, RequestId, bounds::MAX_ATTRIBUTES};

use super::event::{Event, RecordedDecision};
use super::json::describe_error;
use crate::recorded_line::RecordedLine;

type Line<'a> = RecordedLine<'a, Attributes<'a>>;

/// Returns true if this is a line of a recording.
pub(super) fn recognises(line: &str) -> bool {
    serde_json::from_str::<Line<'_>>(line)
        .is_ok_and(|line| line.attributes.is_some() || line.resource.is_some())
}

/// Parses one line and gives its request to `visit`.
pub(super) fn read(
    line: &str,
    visit: impl FnOnce(Event<'_, '_>) -> Result<(), String>,
) -> Result<(), String> {
    let line: Line<'_> = serde_json::from_str(line)
        .map_err(|error| format!("not a line of a recording: {}", describe_error(&error)))?;
    let mut request = match (&line.attributes, &line.resource) {
        (Some(Attributes(pairs)), None) => {
            if line.limit.is_some() || line.window.is_some() || line.burst.is_some() {
                return Err("`limit`, `window` and `burst` need `resource`".to_owned());
            }
            Request::new(pairs.iter().map(|(name, value)| (&**name, &**value)))
        }
        (None, Some(resource)) => {
            let window = line.window.as_ref().map(|window| window.parse());
            let window = window.transpose().map_err(|error| format!("`window` is {error}"))?;
            let limit = AdHocLimit { limit: line.limit, window, burst: line.burst };
            Request::resource(resource).with_own_limit(limit)
        }
        _ => return Err("the line needs either `attributes` or `resource`".to_owned()),
    };
    if let Some(permits) = line.permits {
        request = request.permits(permits);
    }
    if let Some(id) = &line.id {
        request = request.id(RequestId::new(id).map_err(|error| error.to_string())?);
    }
    let recorded =
        line.allowed.map(|allowed| RecordedDecision { allowed, denied_by: line.denied_by.as_deref() });
    visit(Event { at: Micros::new(line.at), request: &request, recorded })
}

/// Attributes in the order of the line.
#[derive(Debug)]
struct Attributes<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

/// Text that is borrowed from the line if it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AttributesVisitor)
    }
}

struct AttributesVisitor;

impl<'de> Visitor<'de> for AttributesVisitor {
    type Value = Attributes<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with string values")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Attributes<'de>, M::Error> {
        let mut pairs = Vec::new();
        while let Some((Text(name), Text(value))) = map.next_entry()? {
            // One attribute more than the maximum is enough for the limiter to reject the request, as a server does.
            if pairs.len() <= MAX_ATTRIBUTES {
                pairs.push((name, value));
            }
        }
        Ok(Attributes(pairs))
    }
}
