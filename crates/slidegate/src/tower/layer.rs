//! Layer and service.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, request, response};
use tower_layer::Layer;
use tower_service::Service;

use super::denial::Protocol;
use super::future::ResponseFuture;
use super::permit_guard::HeldPermits;
use super::shared::{Options, Shared};
use super::{Denial, Extract, Rejection, ResponseBody};
use crate::request::{MAX_ATTRIBUTES, check_name};
use crate::{Error, Limiter, MemoryStore, Store};

/// Forwards requests that a [`Limiter`] allows, and responds to all others itself. Cheap to clone; clones count together.
///
/// See [the module](super) for an example.
pub struct RateLimitLayer<S: Store = MemoryStore> {
    shared: Arc<Shared<S>>,
}

impl<S: Store + 'static> RateLimitLayer<S> {
    /// Creates a layer with a limiter, which may be shared in an `Arc`. Without an [attribute](Self::attribute), only rules
    /// without a `key` apply.
    pub fn new(limiter: impl Into<Arc<Limiter<S>>>) -> Self {
        let limiter = limiter.into();
        let holds = Arc::new(HeldPermits::new(Arc::clone(&limiter)));
        RateLimitLayer { shared: Arc::new(Shared { limiter, holds, options: Options::default() }) }
    }

    /// Adds the attribute `name` to requests, for rules to match and to count by.
    pub fn attribute(self, name: &str, extract: impl Into<Extract>) -> Result<Self, Error> {
        let extract = extract.into();
        check_name(name)?;
        extract.check()?;
        let known = &self.shared.options.attributes;
        let first = known.iter().all(|(other, _)| **other != *name);
        ensure!(first, "attribute `{name}` is given twice");
        ensure!(known.len() < MAX_ATTRIBUTES, "a request may have at most {MAX_ATTRIBUTES} attributes");
        Ok(self.with(|options| options.attributes.push((name.into(), extract))))
    }

    /// Sets the number of permits per request; one by default.
    #[must_use]
    pub fn permits(
        self,
        permits: impl Fn(&request::Parts) -> Result<u64, Rejection> + Send + Sync + 'static,
    ) -> Self {
        self.with(|options| options.permits = Some(Arc::new(permits)))
    }

    /// Refunds requests that fail: an error, a panic, a status from 500 on, or a gRPC status in the head that is the server's
    /// fault. A client that disconnects gets no refund.
    #[must_use]
    pub fn refund_failures(self) -> Self {
        self.with(|options| options.refunds_failures = true)
    }

    /// Refunds requests with responses for which `when` returns true.
    #[must_use]
    pub fn refund_when(self, when: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|options| options.refund_when = Some(Arc::new(when)))
    }

    /// Settles the charge to the cost that `cost` reads from the head of the response; `None` leaves the charge
    /// unchanged.
    #[must_use]
    pub fn cost_from(self, cost: impl Fn(&response::Parts) -> Option<u64> + Send + Sync + 'static) -> Self {
        self.with(|options| options.cost_from = Some(Arc::new(cost)))
    }

    /// Forwards requests while the store cannot decide; by default they get status 503. A store in a
    /// [`Failover`](crate::Failover) always decides.
    #[must_use]
    pub fn fail_open(self) -> Self {
        self.with(|options| options.fail_open = true)
    }

    /// Omits rate-limit headers from responses of the service; denials always have them.
    #[must_use]
    pub fn headers_on_denials_only(self) -> Self {
        self.with(|options| options.headers_on_denials_only = true)
    }

    /// Adds `X-RateLimit-Limit`, `-Remaining` and `-Reset` to the headers of the IETF draft.
    #[must_use]
    pub fn older_headers(self) -> Self {
        self.with(|options| options.older_headers = true)
    }

    /// Passes the decision to the service: as the extension `Arc<Decision>` of the request.
    #[must_use]
    pub fn pass_decision(self) -> Self {
        self.with(|options| options.passes_decision = true)
    }

    /// Sends denials as gRPC, regardless of the content type of a request. By default only requests of type
    /// `application/grpc…` get gRPC denials.
    #[must_use]
    pub fn always_grpc(self) -> Self {
        self.with(|options| options.protocol = Some(Protocol::Grpc { web: false }))
    }

    /// Sends denials as HTTP, regardless of the content type of a request.
    #[must_use]
    pub fn never_grpc(self) -> Self {
        self.with(|options| options.protocol = Some(Protocol::Http))
    }

    /// Sets a function that changes or replaces the response to a denied, rejected or undecided request.
    #[must_use]
    pub fn answer_with(
        self,
        answer: impl Fn(&Denial<'_>, Response<Bytes>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.with(|options| options.answer = Some(Arc::new(answer)))
    }

    fn with(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut Arc::make_mut(&mut self.shared).options);
        self
    }
}

impl<S: Store> Clone for RateLimitLayer<S> {
    fn clone(&self) -> Self {
        RateLimitLayer { shared: Arc::clone(&self.shared) }
    }
}

impl<Inner, S: Store> Layer<Inner> for RateLimitLayer<S> {
    type Service = RateLimit<Inner, S>;

    fn layer(&self, inner: Inner) -> Self::Service {
        RateLimit { inner, shared: Arc::clone(&self.shared) }
    }
}

/// A service behind a [`RateLimitLayer`].
///
/// It is ready when the inner service is, so nothing is charged while a request waits for the inner service.
pub struct RateLimit<Inner, S: Store = MemoryStore> {
    inner: Inner,
    shared: Arc<Shared<S>>,
}

impl<Inner: Clone, S: Store> Clone for RateLimit<Inner, S> {
    fn clone(&self) -> Self {
        RateLimit { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<Inner, B, R, S> Service<Request<B>> for RateLimit<Inner, S>
where
    Inner: Service<Request<B>, Response = Response<R>> + Clone,
    S: Store + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = Inner::Error;
    type Future = ResponseFuture<Inner, B, S>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Inner::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        ResponseFuture::new(&self.shared, &mut self.inner, request)
    }
}
