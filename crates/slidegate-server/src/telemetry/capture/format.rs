//! Format of a recording: one request as a line of JSON.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use slidegate::{Micros, Request};
use slidegate_simulator::RecordedLine;

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

/// Returns the line of a request, without the attributes that the sampler hides.
pub(super) fn line<'l>(
    request: &'l Request<'_>,
    verdict: Verdict<'l>,
    sampler: &'l ClientSampler,
) -> RecordedLine<'l, impl Serialize> {
    let (resource, ad_hoc) = request.own_limit().unzip();
    let ad_hoc = ad_hoc.unwrap_or_default();
    RecordedLine {
        at: verdict.at.get(),
        attributes: request.attributes().map(|all| Attributes { all, sampler }),
        resource: resource.map(|name| sampler.redact("resource", name)),
        limit: ad_hoc.limit,
        window: ad_hoc.window.map(|window| window.to_string().into()),
        burst: ad_hoc.burst,
        permits: Some(request.cost()),
        id: request.request_id().map(|id| id.as_str().into()),
        allowed: Some(verdict.allowed),
        denied_by: verdict.denied_by.map(Into::into),
        retry_after_us: None,
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
