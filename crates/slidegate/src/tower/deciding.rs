//! A decision that is on its way.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::carry::{Ending, Runtime, end};
use super::gate::Gate;
use crate::{Ask, Decision, Error, Rules, Store};

pub(super) struct Deciding<S: Store + 'static> {
    gate: Arc<Gate<S>>,
    /// None once it is made.
    decision: Option<Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send>>>,
    /// Whether it may hold permits, which must then be given back.
    holds: bool,
}

impl<S: Store + 'static> Deciding<S> {
    pub(super) fn new(gate: Arc<Gate<S>>, rules: Arc<Rules>, ask: Ask) -> Self {
        let holds = ask.checks().iter().any(|check| check.quota.is_held());
        let limiter = Arc::clone(&gate.limiter);
        let decision = Box::pin(async move { limiter.decide(rules, ask).await });
        Deciding { gate, decision: Some(decision), holds }
    }

    /// The decision, if it takes no time, as in memory.
    pub(super) fn at_once(&mut self) -> Option<Result<Decision, Error>> {
        match self.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => Some(decision),
            Poll::Pending => None,
        }
    }

    /// Must not be called again once it is made.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Decision, Error>> {
        let Some(decision) = &mut self.decision else { return Poll::Pending };
        let decision = std::task::ready!(decision.as_mut().poll(context));
        self.decision = None;
        Poll::Ready(decision)
    }
}

/// Whoever asked has left. What the store admits nevertheless would be held by nobody.
impl<S: Store + 'static> Drop for Deciding<S> {
    fn drop(&mut self) {
        let Some(decision) = self.decision.take().filter(|_| self.holds) else { return };
        let limiter = Arc::clone(&self.gate.limiter);
        Runtime::here().carry(async move {
            if let Ok(decision) = decision.await
                && let Some(reservation) = decision.reservation()
            {
                end(limiter, reservation, Ending::Release).await;
            }
        });
    }
}
