//! JSON bodies of requests.

use std::borrow::Cow;
use std::fmt;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use axum::http::{Request, header};
use http_body_util::{BodyExt, LengthLimitError};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::json;
use slidegate::yaml::one_line;
use slidegate::{
    AdHocLimit, Error, Micros, RequestId,
    bounds::{MAX_ATTRIBUTES, MAX_ID, MAX_LIMIT, MAX_NAME},
};

use super::MAX_BATCH;
use super::error::{ApiError, Code};

/// Reads the body of a request, whose content type must be JSON. The body itself must enforce the size limit.
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
        // The error may quote a field name as the client wrote it.
        let error = one_line(&error.to_string());
        ApiError::new(Code::InvalidJson, format!("invalid body: {error}"))
    })
}

fn too_large(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source()).any(|error| error.is::<LengthLimitError>())
}

/// A request for permits. It has either `attributes`, which the rules match, or a `resource` with its own limit.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "an object with `attributes` or `resource`")]
#[schemars(rename = "Acquire", transform = require_attributes_or_resource)]
pub(super) struct AcquireBody<'a> {
    /// Attributes of the request. The rules match them and build keys from them.
    #[serde(borrow)]
    attributes: Option<Attributes<'a>>,
    /// Name of a resource that is limited by `limit` and `window` of this request.
    #[serde(borrow)]
    #[schemars(length(min = 1))]
    resource: Option<Cow<'a, str>>,
    /// Limit of `resource`, within the bounds of `ad-hoc`.
    limit: Option<JsonU64>,
    /// Window of `resource`, within the bounds of `ad-hoc`: a length of time such as `250ms`, `5s` or `1h`.
    #[serde(borrow)]
    window: Option<Cow<'a, str>>,
    /// Number of permits. 0 is a peek, which charges nothing. Default: 1.
    permits: Option<JsonU64>,
    /// Id of the request (idempotency key). A retry with the same id is not charged again.
    #[serde(borrow)]
    #[schemars(length(min = 1, max = MAX_ID), pattern(r"^[A-Za-z0-9._:-]+$"))]
    id: Option<Cow<'a, str>>,
}

/// Adds the constraints between fields that [`AcquireBody::request`] checks to the schema.
fn require_attributes_or_resource(schema: &mut Schema) {
    let (text, object, nothing) =
        (json!({ "type": "string" }), json!({ "type": "object" }), json!({ "type": "null" }));
    let alternatives = json!([
        { "required": ["attributes"], "properties": { "attributes": object, "resource": nothing, "limit": nothing, "window": nothing } },
        { "required": ["resource"], "properties": { "resource": text, "attributes": nothing } },
    ]);
    schema.insert("oneOf".to_owned(), alternatives);
}

/// A batch of requests.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "an object with `requests`")]
#[schemars(rename = "Batch")]
pub(super) struct BatchBody<'a> {
    /// Requests, in the order in which they are decided.
    #[serde(borrow, deserialize_with = "bounded_batch")]
    #[schemars(length(max = MAX_BATCH))]
    pub(super) requests: Vec<AcquireBody<'a>>,
}

/// Deserializes at most [`MAX_BATCH`] requests, so that a small body cannot request much memory.
fn bounded_batch<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<AcquireBody<'a>>, D::Error> {
    deserializer.deserialize_seq(BatchVisitor)
}

struct BatchVisitor;

impl<'de> Visitor<'de> for BatchVisitor {
    type Value = Vec<AcquireBody<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX_BATCH} requests")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut requests = Vec::new();
        while let Some(request) = items.next_element()? {
            if requests.len() == MAX_BATCH {
                return Err(A::Error::invalid_length(MAX_BATCH + 1, &self));
            }
            requests.push(request);
        }
        Ok(requests)
    }
}

impl AcquireBody<'_> {
    pub(super) fn request(&self) -> Result<slidegate::Request<'_>, Error> {
        let mut request = match (&self.attributes, &self.resource) {
            (Some(_), Some(_)) => return Err(Error::invalid("set `attributes` or `resource`, not both")),
            (None, None) => {
                return Err(Error::invalid("set `attributes`, or `resource` with `limit` and `window`"));
            }
            (Some(attributes), None) => {
                if self.limit.is_some() || self.window.is_some() {
                    return Err(Error::invalid(
                        "`limit` and `window` need `resource`; `attributes` are limited by the rules",
                    ));
                }
                slidegate::Request::new(attributes.pairs())
            }
            (None, Some(resource)) => self.ad_hoc_request(resource)?,
        };
        if let Some(JsonU64(permits)) = self.permits {
            request = request.permits(permits);
        }
        if let Some(id) = &self.id {
            request = request.id(RequestId::new(id)?);
        }
        Ok(request)
    }

    fn ad_hoc_request<'r>(&self, resource: &'r str) -> Result<slidegate::Request<'r>, Error> {
        let window = self.window.as_ref().map(|window| window.parse::<Micros>()).transpose();
        let window = window
            .map_err(|_| Error::invalid("`window` must be a length of time such as 250ms, 5s or 1h"))?;
        let limit = AdHocLimit { limit: self.limit.map(|JsonU64(limit)| limit), window, burst: None };
        Ok(slidegate::Request::resource(resource).with_own_limit(limit))
    }
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

/// Names and values in the order of the body, so that a repeated name is noticed.
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
