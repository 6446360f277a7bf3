//! Format of a recording: one request as a line of JSON.

use std::borrow::Cow;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use slidegate::{Micros, Request};

use super::ClientSampler;

/// Result of a request.
#[derive(Clone, Copy)]
pub(super) struct Verdict<'v> {
    /// Time of the decision by the store's clock; zero if the store was not called.
    pub(super) at: Micros,
    pub(super) allowed: bool,
    /// Rule that denied. None also if no rule matches the request.
    pub(super) denied_by: Option<&'v str>,
}

#[derive(Serialize)]
pub(super) struct Line<'l, 'r> {
    /// Microseconds since 1970.
    at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    attributes: Option<Attributes<'l, 'r>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<Cow<'r, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    permits: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'l str>,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    denied_by: Option<&'l str>,
}

impl<'l, 'r> Line<'l, 'r> {
    pub(super) fn new(request: &'l Request<'r>, verdict: Verdict<'l>, sampler: &'l ClientSampler) -> Self {
        let (resource, ad_hoc) = request.own_limit().unzip();
        let ad_hoc = ad_hoc.unwrap_or_default();
        Line {
            at: verdict.at.get(),
            attributes: request.attributes().map(|all| Attributes { all, sampler }),
            resource: resource.map(|name| sampler.redact("resource", name)),
            limit: ad_hoc.limit,
            window: ad_hoc.window.map(|window| window.to_string()),
            burst: ad_hoc.burst,
            permits: request.cost(),
            id: request.request_id().map(|id| id.as_str()),
            allowed: verdict.allowed,
            denied_by: verdict.denied_by,
        }
    }
}

/// Attributes in the order of the request.
struct Attributes<'l, 'r> {
    all: &'l [(&'r str, &'r str)],
    sampler: &'l ClientSampler,
}

impl Serialize for Attributes<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.all.len()))?;
        for (name, value) in self.all {
            map.serialize_entry(name, &self.sampler.redact(name, value))?;
        }
        map.end()
    }
}
