//! JSON line of a decided request: the format of recordings and of decision logs.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A request and its decision, as one line of JSON. `slidegate serve --record` writes such lines, and the simulator reads them.
/// A decision log of the simulator has the decisions only.
///
/// `A` is the type of the attributes: a map of names to values.
#[derive(Debug, Serialize, Deserialize)]
pub struct RecordedLine<'a, A> {
    /// Time of the decision, in microseconds since 1970.
    pub at: u64,
    /// Attributes of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attributes: Option<A>,
    /// Resource of a request that gives its own limit.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub resource: Option<Cow<'a, str>>,
    /// Limit that the request gives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Window that the request gives, such as `1s`.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub window: Option<Cow<'a, str>>,
    /// Burst that the request gives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
    /// Permits of the request; 1 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permits: Option<u64>,
    /// Id of the request.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub id: Option<Cow<'a, str>>,
    /// Absent if the decision is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed: Option<bool>,
    /// Rule that denied.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub denied_by: Option<Cow<'a, str>>,
    /// Only in decision logs: wait until a retry, in microseconds; 0 if the request was allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_us: Option<u64>,
}
