//! Future of one request through the layer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::decision_future::DecisionFuture;
use super::denial::Protocol;
use super::in_flight::InFlight;
use super::shared::{PrepareError, Shared};
use super::{Denial, Rejection, ResponseBody};
use crate::{Decision, Error, Store};

pin_project! {
    /// Future of the response of a [`RateLimit`](super::RateLimit).
    pub struct ResponseFuture<Inner, B, S>
    where
        Inner: Service<Request<B>>,
        S: Store,
        S: 'static,
    {
        #[pin]
        state: State<Inner, Inner::Future, B, S>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<Inner, F, B, S>
    where
        S: Store,
        S: 'static,
    {
        Deciding { deciding: DecisionFuture<S>, waiting: Option<Waiting<Inner, B, S>> },
        // `None` if there was no decision: the store failed, and the layer fails open.
        Serving { #[pin] future: F, in_flight: Option<InFlight<S>> },
        Denied { answer: Option<Response<Bytes>> },
    }
}

/// A request that waits for a decision, with a service that is ready for it.
struct Waiting<Inner, B, S: Store> {
    shared: Arc<Shared<S>>,
    protocol: Protocol,
    inner: Inner,
    request: Request<B>,
}

impl<Inner, B, S> ResponseFuture<Inner, B, S>
where
    Inner: Service<Request<B>> + Clone,
    S: Store + 'static,
{
    /// Starts a request with `inner` ready. If the decision is ready at once, `inner` itself is called. Otherwise it moves
    /// into the future, and a clone takes its place.
    pub(super) fn new(shared: &Arc<Shared<S>>, inner: &mut Inner, request: Request<B>) -> Self {
        let (head, body) = request.into_parts();
        let protocol = shared.protocol(&head);
        let prepared = shared.checks(&head);
        let request = Request::from_parts(head, body);
        let state = match prepared {
            Err(PrepareError::Rejected(rejection)) => State::rejected(shared, protocol, &rejection),
            Err(PrepareError::Failed(error)) => State::decided(shared, protocol, Err(error), inner, request),
            Ok((rules, checks)) => {
                let mut deciding = DecisionFuture::new(&shared.limiter, rules, checks);
                match deciding.poll_once() {
                    Some(decision) => State::decided(shared, protocol, decision, inner, request),
                    None => {
                        let clone = inner.clone();
                        let inner = std::mem::replace(inner, clone);
                        let waiting = Waiting { shared: Arc::clone(shared), protocol, inner, request };
                        State::Deciding { deciding, waiting: Some(waiting) }
                    }
                }
            }
        };
        if let State::Denied { .. } = state {
            // Dropping the ready service frees the capacity that it has reserved for this request.
            *inner = inner.clone();
        }
        ResponseFuture { state }
    }
}

impl<Inner, B, S> State<Inner, Inner::Future, B, S>
where
    Inner: Service<Request<B>>,
    S: Store + 'static,
{
    fn decided(
        shared: &Arc<Shared<S>>,
        protocol: Protocol,
        decision: Result<Arc<Decision>, Error>,
        inner: &mut Inner,
        mut request: Request<B>,
    ) -> Self {
        match decision {
            Ok(decision) if decision.allowed() => {
                if shared.options.passes_decision {
                    request.extensions_mut().insert(Arc::clone(&decision));
                }
                let mut in_flight = InFlight::new(Arc::clone(shared), decision);
                let future = inner.call(request);
                in_flight.running = false;
                State::Serving { future, in_flight: Some(in_flight) }
            }
            Ok(decision) => State::denied(shared, protocol, &Denial::OverLimit(&decision)),
            Err(error) if !error.is_unavailable() => {
                State::rejected(shared, protocol, &Rejection::from(&error))
            }
            Err(_) if shared.options.fail_open => {
                State::Serving { future: inner.call(request), in_flight: None }
            }
            Err(error) => State::denied(shared, protocol, &Denial::Unavailable(&error)),
        }
    }

    fn rejected(shared: &Shared<S>, protocol: Protocol, rejection: &Rejection) -> Self {
        State::denied(shared, protocol, &Denial::Rejected(rejection))
    }

    fn denied(shared: &Shared<S>, protocol: Protocol, denial: &Denial<'_>) -> Self {
        State::Denied { answer: Some(shared.answer(denial, protocol)) }
    }
}

impl<Inner, B, S, R> Future for ResponseFuture<Inner, B, S>
where
    Inner: Service<Request<B>, Response = Response<R>>,
    S: Store + 'static,
{
    type Output = Result<Response<ResponseBody<R>>, Inner::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                StateProjection::Deciding { deciding, waiting } => {
                    let decision = ready!(deciding.poll(context));
                    let Some(waiting) = waiting.take() else { return Poll::Pending };
                    let Waiting { shared, protocol, mut inner, request } = waiting;
                    state.set(State::decided(&shared, protocol, decision, &mut inner, request));
                }
                StateProjection::Serving { future, in_flight } => {
                    in_flight.iter_mut().for_each(|in_flight| in_flight.running = true);
                    let result = future.poll(context);
                    in_flight.iter_mut().for_each(|in_flight| in_flight.running = false);
                    return Poll::Ready(match (ready!(result), in_flight.take()) {
                        (Ok(response), Some(in_flight)) => Ok(in_flight.respond(response)),
                        (Ok(response), None) => {
                            Ok(response.map(|body| ResponseBody::from_service(body, None)))
                        }
                        (Err(error), in_flight) => {
                            in_flight.iter().for_each(InFlight::failed);
                            Err(error)
                        }
                    });
                }
                StateProjection::Denied { answer } => {
                    let Some(answer) = answer.take() else { return Poll::Pending };
                    return Poll::Ready(Ok(answer.map(ResponseBody::denial)));
                }
            }
        }
    }
}
