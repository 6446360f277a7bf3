//! JSON bodies of requests, and the types of their fields.

use std::borrow::Cow;
use std::fmt;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use axum::http::{Request, header};
use http_body_util::{BodyExt, LengthLimitError};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use slidegate::bounds::{MAX_ATTRIBUTES, MAX_LIMIT, MAX_NAME};
use slidegate::yaml::one_line;

use super::error::{ApiError, Code};

/// Reads the body of a request, whose content type must be JSON. The body type `B` must enforce the size limit.
pub(super) async fn read_body<B>(request: Request<B>) -> Result<Bytes, ApiError>
where
    B: HttpBody<Error: Into<BoxError>>,
{
    if !request.headers().get(header::CONTENT_TYPE).is_some_and(|kind| is_json(kind.as_bytes())) {
        let message = "the body must be JSON: send `content-type: application/json`";
        return Err(ApiError::new(Code::UnsupportedMediaType, message));
    }
    match request.into_body().collect().await.map_err(Into::into) {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if too_large(&*error) => {
            let message = "the body is too large: 65536 bytes at most, 1048576 for a batch";
            Err(ApiError::new(Code::TooLarge, message))
        }
        Err(_) => Err(ApiError::new(Code::InvalidJson, "the body is incomplete")),
    }
}

/// Returns true for the content type of JSON, with any parameters.
pub(super) fn is_json(kind: &[u8]) -> bool {
    let kind = kind.split(|&b| b == b';').next().unwrap_or_default();
    kind.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

pub(super) fn read_json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ApiError> {
    // Serde would also accept a list of the fields' values.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(ApiError::new(Code::InvalidJson, "the body must be an object, not a list"));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        // The error may quote a field name exactly as the client wrote it, including line breaks.
        let error = one_line(&error.to_string());
        ApiError::new(Code::InvalidJson, format!("invalid body: {error}"))
    })
}

fn too_large(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source()).any(|error| error.is::<LengthLimitError>())
}

/// Unsigned integer whose error message states the accepted range.
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonU64(pub(super) u64);

impl<'de> Deserialize<'de> for JsonU64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonU64Visitor)
    }
}

struct JsonU64Visitor;

impl JsonSchema for JsonU64 {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Whole".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 0, "maximum": MAX_LIMIT })
    }
}

impl Visitor<'_> for JsonU64Visitor {
    type Value = JsonU64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 0 to {MAX_LIMIT}")
    }

    fn visit_u64<E>(self, n: u64) -> Result<JsonU64, E> {
        Ok(JsonU64(n))
    }
}

/// Names and values in the order of the body. Repeated names are kept, so that they can be rejected.
#[derive(Debug)]
pub(super) struct Attributes<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl Attributes<'_> {
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AttributesVisitor)
    }
}

impl JsonSchema for Attributes<'_> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Attributes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "maxProperties": MAX_ATTRIBUTES,
            "propertyNames": { "pattern": format!("^[A-Za-z0-9_.-]{{1,{MAX_NAME}}}$") },
            "additionalProperties": { "type": "string", "minLength": 1 },
        })
    }
}

struct AttributesVisitor;

impl<'de> Visitor<'de> for AttributesVisitor {
    type Value = Attributes<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with string values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Attributes<'de>, A::Error> {
        let mut attributes = Vec::new();
        while let Some((Text(name), Text(value))) = entries.next_entry()? {
            attributes.push((name, value));
        }
        Ok(Attributes(attributes))
    }
}

/// `Cow` that borrows if possible; the `Cow` of serde never borrows inside a pair.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
