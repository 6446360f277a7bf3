//! The layer and the service it makes.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, request, response};
use tower_layer::Layer;
use tower_service::Service;

use super::denial::Speech;
use super::future::ResponseFuture;
use super::permit_guard::Holds;
use super::shared::{Options, Shared};
use super::{Denial, Extract, Rejection, ResponseBody};
use crate::request::{MAX_ATTRIBUTES, check_name};
use crate::{Error, Limiter, MemoryStore, Store};

/// Lets through what a [`Limiter`] allows, and answers the rest itself. Cheap to clone; clones count together.
///
/// See [the module](super) for an example.
pub struct RateLimitLayer<S: Store = MemoryStore> {
    gate: Arc<Shared<S>>,
}

impl<S: Store + 'static> RateLimitLayer<S> {
    /// Asks `limiter`, or one that others ask too, in an `Arc`. Without an [attribute](Self::attribute), only rules
    /// without a `key` apply.
    pub fn new(limiter: impl Into<Arc<Limiter<S>>>) -> Self {
        let limiter = limiter.into();
        let holds = Arc::new(Holds::new(Arc::clone(&limiter)));
        RateLimitLayer { gate: Arc::new(Shared { limiter, holds, options: Options::default() }) }
    }

    /// Requests have the attribute `name`, for rules to match and to count by.
    pub fn attribute(self, name: &str, extract: impl Into<Extract>) -> Result<Self, Error> {
        let extract = extract.into();
        check_name(name)?;
        extract.check()?;
        let known = &self.gate.options.attributes;
        if known.iter().any(|(other, _)| **other == *name) {
            return Err(Error::invalid(format!("attribute `{name}` is given twice")));
        }
        if known.len() == MAX_ATTRIBUTES {
            return Err(Error::invalid(format!("a request may have {MAX_ATTRIBUTES} attributes, not more")));
        }
        Ok(self.with(|options| options.attributes.push((name.into(), extract))))
    }

    /// How many permits a request is charged; one each, unless told.
    #[must_use]
    pub fn permits(
        self,
        permits: impl Fn(&request::Parts) -> Result<u64, Rejection> + Send + Sync + 'static,
    ) -> Self {
        self.with(|options| options.permits = Some(Arc::new(permits)))
    }

    /// Takes back what was charged if the service fails: an error, a panic, a status from 500 on, a gRPC status in the
    /// head that is the server's fault. Who hangs up gets nothing back.
    #[must_use]
    pub fn refund_failures(self) -> Self {
        self.with(|options| options.refunds_failures = true)
    }

    /// Takes back what was charged for responses such as these.
    #[must_use]
    pub fn refund_when(self, when: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|options| options.refund_when = Some(Arc::new(when)))
    }

    /// Corrects what was charged to what the head of the response says that it cost; none leaves it.
    #[must_use]
    pub fn cost_from(self, cost: impl Fn(&response::Parts) -> Option<u64> + Send + Sync + 'static) -> Self {
        self.with(|options| options.cost_from = Some(Arc::new(cost)))
    }

    /// Lets requests through while the store cannot decide; otherwise they are answered with status 503. A store in a
    /// [`Failover`](crate::Failover) always decides.
    #[must_use]
    pub fn fail_open(self) -> Self {
        self.with(|options| options.fail_open = true)
    }

    /// Says nothing of limits in responses of the service; a denial always does.
    #[must_use]
    pub fn headers_on_denials_only(self) -> Self {
        self.with(|options| options.tells_allowed = false)
    }

    /// Adds `X-RateLimit-Limit`, `-Remaining` and `-Reset` to the headers of the IETF draft.
    #[must_use]
    pub fn older_headers(self) -> Self {
        self.with(|options| options.older_headers = true)
    }

    /// Tells the service what was decided: the extension `Arc<Decision>` of a request.
    #[must_use]
    pub fn pass_decision(self) -> Self {
        self.with(|options| options.passes_decision = true)
    }

    /// Answers denials as gRPC, whatever the content type of a request; otherwise those whose type is
    /// `application/grpc…` are.
    #[must_use]
    pub fn always_grpc(self) -> Self {
        self.with(|options| options.speech = Some(Speech::Grpc { web: false }))
    }

    /// Answers denials as HTTP, whatever the content type of a request.
    #[must_use]
    pub fn never_grpc(self) -> Self {
        self.with(|options| options.speech = Some(Speech::Http))
    }

    /// Answers what does not go on with another response. It is given the usual one, to change or to replace.
    #[must_use]
    pub fn answer_with(
        self,
        answer: impl Fn(&Denial<'_>, Response<Bytes>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.with(|options| options.answer = Some(Arc::new(answer)))
    }

    fn with(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut Arc::make_mut(&mut self.gate).options);
        self
    }
}

impl<S: Store> Clone for RateLimitLayer<S> {
    fn clone(&self) -> Self {
        RateLimitLayer { gate: Arc::clone(&self.gate) }
    }
}

impl<Inner, S: Store> Layer<Inner> for RateLimitLayer<S> {
    type Service = RateLimit<Inner, S>;

    fn layer(&self, inner: Inner) -> Self::Service {
        RateLimit { inner, gate: Arc::clone(&self.gate) }
    }
}

/// A service behind a [`RateLimitLayer`].
///
/// It is ready when the service behind it is, so nothing is charged for what has to wait for that.
pub struct RateLimit<Inner, S: Store = MemoryStore> {
    inner: Inner,
    gate: Arc<Shared<S>>,
}

impl<Inner: Clone, S: Store> Clone for RateLimit<Inner, S> {
    fn clone(&self) -> Self {
        RateLimit { inner: self.inner.clone(), gate: Arc::clone(&self.gate) }
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
        ResponseFuture::new(&self.gate, &mut self.inner, request)
    }
}
