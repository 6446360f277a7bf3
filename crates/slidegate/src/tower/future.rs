//! Future of one request through the layer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::decision_future::Deciding;
use super::denial::Speech;
use super::in_flight::Served;
use super::shared::{Shared, Unasked};
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
    #[project = Now]
    enum State<Inner, F, B, S>
    where
        S: Store,
        S: 'static,
    {
        Deciding { deciding: Deciding<S>, waiting: Option<Waiting<Inner, B, S>> },
        // `None` if there was no decision: the store failed, and the layer fails open.
        Serving { #[pin] future: F, served: Option<Served<S>> },
        Denied { answer: Option<Response<Bytes>> },
    }
}

/// A request that waits for a decision, with a service that is ready for it.
struct Waiting<Inner, B, S: Store> {
    gate: Arc<Shared<S>>,
    speech: Speech,
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
    pub(super) fn new(gate: &Arc<Shared<S>>, inner: &mut Inner, request: Request<B>) -> Self {
        let (head, body) = request.into_parts();
        let speech = gate.speech(&head);
        let asked = gate.ask(&head);
        let request = Request::from_parts(head, body);
        let state = match asked {
            Err(Unasked::Rejected(rejection)) => State::rejected(gate, speech, &rejection),
            Err(Unasked::Failed(error)) => State::decided(gate, speech, Err(error), inner, request),
            Ok((rules, ask)) => {
                let mut deciding = Deciding::new(&gate.limiter, rules, ask);
                match deciding.at_once() {
                    Some(decision) => State::decided(gate, speech, decision, inner, request),
                    None => {
                        let clone = inner.clone();
                        let inner = std::mem::replace(inner, clone);
                        let waiting = Waiting { gate: Arc::clone(gate), speech, inner, request };
                        State::Deciding { deciding, waiting: Some(waiting) }
                    }
                }
            }
        };
        if let State::Denied { .. } = state {
            // The clone is not ready: the reserved capacity of the service moves with the original.
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
        gate: &Arc<Shared<S>>,
        speech: Speech,
        decision: Result<Arc<Decision>, Error>,
        inner: &mut Inner,
        mut request: Request<B>,
    ) -> Self {
        match decision {
            Ok(decision) if decision.allowed() => {
                if gate.options.passes_decision {
                    request.extensions_mut().insert(Arc::clone(&decision));
                }
                let mut served = Served::new(Arc::clone(gate), decision);
                let future = inner.call(request);
                served.set_running(false);
                State::Serving { future, served: Some(served) }
            }
            Ok(decision) => State::denied(gate, speech, &Denial::OverLimit(&decision)),
            Err(error) if !error.is_unavailable() => State::rejected(gate, speech, &Rejection::from(&error)),
            Err(_) if gate.options.fail_open => State::Serving { future: inner.call(request), served: None },
            Err(error) => State::denied(gate, speech, &Denial::Unavailable(&error)),
        }
    }

    fn rejected(gate: &Shared<S>, speech: Speech, rejection: &Rejection) -> Self {
        State::denied(gate, speech, &Denial::Rejected(rejection))
    }

    fn denied(gate: &Shared<S>, speech: Speech, denial: &Denial<'_>) -> Self {
        State::Denied { answer: Some(gate.answer(denial, speech)) }
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
                Now::Deciding { deciding, waiting } => {
                    let decision = ready!(deciding.poll(context));
                    let Some(waiting) = waiting.take() else { return Poll::Pending };
                    let Waiting { gate, speech, mut inner, request } = waiting;
                    state.set(State::decided(&gate, speech, decision, &mut inner, request));
                }
                Now::Serving { future, served } => {
                    served.iter_mut().for_each(|served| served.set_running(true));
                    let result = future.poll(context);
                    served.iter_mut().for_each(|served| served.set_running(false));
                    return Poll::Ready(match (ready!(result), served.take()) {
                        (Ok(response), Some(served)) => Ok(served.respond(response)),
                        (Ok(response), None) => Ok(response.map(|body| ResponseBody::served(body, None))),
                        (Err(error), served) => {
                            served.into_iter().for_each(Served::fail);
                            Err(error)
                        }
                    });
                }
                Now::Denied { answer } => {
                    let Some(answer) = answer.take() else { return Poll::Pending };
                    return Poll::Ready(Ok(answer.map(ResponseBody::denial)));
                }
            }
        }
    }
}
