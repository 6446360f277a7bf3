//! The JSON of requests and decisions.

use std::borrow::Cow;
use std::fmt;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use slidegate::{Decision, Error, MAX_LIMIT, Micros, Mode, RequestId};

use super::MAX_BATCH;
use super::error::ApiError;

/// A body that says it is JSON, whole and within its size.
pub(super) struct JsonBytes(Bytes);

impl<S: Send + Sync> FromRequest<S> for JsonBytes {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, state: &S) -> Result<Self, ApiError> {
        let kind =
            request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
        let kind = kind.split(';').next().unwrap_or("").trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            return Err(ApiError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported-media-type",
                "the body must be JSON: send `content-type: application/json`",
            ));
        }
        match Bytes::from_request(request, state).await {
            Ok(bytes) => Ok(JsonBytes(bytes)),
            Err(rejection) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                let message = "the body is too large: 65536 bytes at most, 1048576 for a batch";
                Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", message))
            }
            Err(_) => Err(ApiError::bad_request("invalid-json", "the body did not arrive whole")),
        }
    }
}

impl JsonBytes {
    pub(super) fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, ApiError> {
        // Serde would take a list of the fields' values as well.
        if self.0.trim_ascii_start().first() == Some(&b'[') {
            return Err(ApiError::bad_request("invalid-json", "the body must be an object, not a list"));
        }
        serde_json::from_slice(&self.0).map_err(|error| {
            ApiError::bad_request("invalid-json", format!("the body is not as it should be: {error}"))
        })
    }
}

/// For bodies that borrow nothing.
pub(super) fn owned<T: DeserializeOwned>(bytes: &JsonBytes) -> Result<T, ApiError> {
    bytes.read()
}

/// What `acquire` and `peek` take.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `attributes` or `resource`")]
pub(super) struct AcquireBody<'a> {
    #[serde(borrow)]
    attributes: Option<Attributes<'a>>,
    #[serde(borrow)]
    resource: Option<Cow<'a, str>>,
    limit: Option<Whole>,
    #[serde(borrow)]
    window: Option<Cow<'a, str>>,
    permits: Option<Whole>,
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
}

/// What `acquire/batch` takes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `requests`")]
pub(super) struct BatchBody<'a> {
    #[serde(borrow, deserialize_with = "no_more_than_a_batch")]
    pub(super) requests: Vec<AcquireBody<'a>>,
}

/// Stops reading at the bound, so that a small body cannot ask for much memory.
fn no_more_than_a_batch<'de: 'a, 'a, D: Deserializer<'de>>(
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
            (Some(_), Some(_)) => return Err(Error::invalid("give `attributes` or `resource`, not both")),
            (None, None) => {
                return Err(Error::invalid(
                    "give `attributes`, or a `resource` with its `limit` and `window`",
                ));
            }
            (Some(attributes), None) => {
                if self.limit.is_some() || self.window.is_some() {
                    return Err(Error::invalid(
                        "`limit` and `window` go with `resource`; the rules limit `attributes`",
                    ));
                }
                slidegate::Request::new(attributes.0.iter().map(|(name, value)| (&**name, &**value)))
            }
            (None, Some(resource)) => self.own_limit(resource)?,
        };
        if let Some(Whole(permits)) = self.permits {
            request = request.permits(permits);
        }
        if let Some(id) = &self.id {
            request = request.id(RequestId::new(id)?);
        }
        Ok(request)
    }

    fn own_limit<'r>(&self, resource: &'r str) -> Result<slidegate::Request<'r>, Error> {
        let mut request = slidegate::Request::resource(resource);
        if let Some(Whole(limit)) = self.limit {
            request = request.limit(limit);
        }
        if let Some(window) = &self.window {
            let window: Micros = window
                .parse()
                .map_err(|_| Error::invalid("`window` must be a length of time such as 250ms, 5s or 1h"))?;
            request = request.window(window.into());
        }
        Ok(request)
    }
}

/// A whole number that says what it should have been.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole(pub(super) u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WholeVisitor)
    }
}

struct WholeVisitor;

impl Visitor<'_> for WholeVisitor {
    type Value = Whole;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 0 to {MAX_LIMIT}")
    }

    fn visit_u64<E>(self, n: u64) -> Result<Whole, E> {
        Ok(Whole(n))
    }
}

/// Names and values in the order they came, so that a name given twice is noticed.
#[derive(Debug)]
struct Attributes<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AttributesVisitor)
    }
}

struct AttributesVisitor;

impl<'de> Visitor<'de> for AttributesVisitor {
    type Value = Attributes<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of names and texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Attributes<'de>, A::Error> {
        let mut attributes = Vec::new();
        while let Some((Text(name), Text(value))) = entries.next_entry()? {
            attributes.push((name, value));
        }
        Ok(Attributes(attributes))
    }
}

/// A `Cow` that borrows where it can; serde's own never does inside a pair.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The answer to one request.
#[derive(Debug, Serialize)]
pub(super) struct DecisionBody<'d> {
    allowed: bool,
    code: u32,
    denied_by: Option<&'d str>,
    retry_after_ms: u64,
    limits: Vec<LimitBody<'d>>,
    reservation: Option<String>,
    source: &'static str,
}

#[derive(Debug, Serialize)]
struct LimitBody<'d> {
    rule: &'d str,
    key: &'d str,
    limit: u64,
    used: u64,
    remaining: u64,
    retry_after_ms: u64,
    reset_after_ms: u64,
    /// Only on shadow rules: whether it would have refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    would_refuse: Option<bool>,
}

impl<'d> From<&'d Decision> for DecisionBody<'d> {
    fn from(decision: &'d Decision) -> Self {
        let limits = decision.limits().map(|limit| LimitBody {
            rule: limit.rule(),
            key: limit.key().as_str(),
            limit: limit.limit(),
            used: limit.used(),
            remaining: limit.remaining(),
            retry_after_ms: millis(limit.retry_after()),
            reset_after_ms: millis(limit.reset_after()),
            would_refuse: (limit.mode() == Mode::Shadow).then_some(limit.outcome().refuses()),
        });
        DecisionBody {
            allowed: decision.allowed(),
            code: decision.code(),
            denied_by: decision.denied_by(),
            retry_after_ms: millis(decision.retry_after()),
            limits: limits.collect(),
            reservation: decision.reservation().map(|reservation| reservation.to_string()),
            source: decision.source().as_str(),
        }
    }
}

/// Rounded up: who waits that long has waited long enough.
fn millis(wait: Micros) -> u64 {
    wait.ceil_millis()
}
