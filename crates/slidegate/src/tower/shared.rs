//! State shared by all requests of a layer, and the preparation of a request for the limiter.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, request, response};
use smallvec::SmallVec;

use super::denial::Protocol;
use super::permit_guard::HeldPermits;
use super::{Denial, Extract, Rejection, grpc};
use crate::quota::MAX_LIMIT;
use crate::{Checks, Error, Limiter, Request, Rules, Store};

type Permits = dyn Fn(&request::Parts) -> Result<u64, Rejection> + Send + Sync;
type When = dyn Fn(&response::Parts) -> bool + Send + Sync;
type Cost = dyn Fn(&response::Parts) -> Option<u64> + Send + Sync;
type Answer = dyn Fn(&Denial<'_>, Response<Bytes>) -> Response<Bytes> + Send + Sync;

pub(super) struct Shared<S: Store> {
    pub(super) limiter: Arc<Limiter<S>>,
    pub(super) holds: Arc<HeldPermits<S>>,
    pub(super) options: Options,
}

impl<S: Store> Clone for Shared<S> {
    fn clone(&self) -> Self {
        Shared {
            limiter: Arc::clone(&self.limiter),
            holds: Arc::clone(&self.holds),
            options: self.options.clone(),
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct Options {
    pub(super) attributes: Vec<(Box<str>, Extract)>,
    /// Number of permits of a request; `None` means one.
    pub(super) permits: Option<Arc<Permits>>,
    pub(super) refunds_failures: bool,
    pub(super) refund_when: Option<Arc<When>>,
    pub(super) cost_from: Option<Arc<Cost>>,
    pub(super) fail_open: bool,
    /// True if responses to allowed requests have no rate-limit headers.
    pub(super) headers_on_denials_only: bool,
    /// True to add `X-RateLimit-*`.
    pub(super) older_headers: bool,
    pub(super) passes_decision: bool,
    /// Protocol of denials; `None` to detect it from the request.
    pub(super) protocol: Option<Protocol>,
    pub(super) answer: Option<Arc<Answer>>,
}

/// Reason why a request has no checks.
pub(super) enum PrepareError {
    Rejected(Rejection),
    Failed(Error),
}

impl From<Rejection> for PrepareError {
    fn from(rejection: Rejection) -> Self {
        PrepareError::Rejected(rejection)
    }
}

impl<S: Store> Shared<S> {
    /// Extracts the attributes of a request, and returns its checks.
    pub(super) fn checks(&self, request: &request::Parts) -> Result<(Arc<Rules>, Checks), PrepareError> {
        let mut values: SmallVec<[(&str, Cow<'_, str>); 4]> = SmallVec::new();
        for (name, extract) in &self.options.attributes {
            if let Some(value) = extract.value(name, request)? {
                values.push((name, value));
            }
        }
        let permits = match &self.options.permits {
            Some(permits) => permits(request)?,
            None => 1,
        };
        let limiter_request =
            Request::new(values.iter().map(|(name, value)| (*name, &**value))).permits(permits);
        let rules = self.limiter.rules();
        let checks = rules.checks_for(&limiter_request).map_err(PrepareError::Failed)?;
        Ok((rules, checks))
    }

    pub(super) fn protocol(&self, request: &request::Parts) -> Protocol {
        self.options.protocol.unwrap_or_else(|| Protocol::of(&request.headers))
    }

    pub(super) fn answer(&self, denial: &Denial<'_>, protocol: Protocol) -> Response<Bytes> {
        let usual = protocol.answer(denial, self.options.older_headers);
        match &self.options.answer {
            Some(answer) => answer(denial, usual),
            None => usual,
        }
    }

    /// Returns the actual cost of a request, if it differs from the charge.
    pub(super) fn cost(&self, response: &response::Parts) -> Option<u64> {
        let Options { refunds_failures, refund_when, cost_from, .. } = &self.options;
        if *refunds_failures && failed(response) || refund_when.as_ref().is_some_and(|when| when(response)) {
            return Some(0);
        }
        cost_from.as_ref().and_then(|cost| cost(response)).map(|cost| cost.min(MAX_LIMIT))
    }
}

/// Returns true if the response reports a failure of the service.
pub(super) fn failed(response: &response::Parts) -> bool {
    response.status.is_server_error() || grpc::failed(&response.headers)
}
