//! A decision that is on its way.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::background::{Ending, Runtime, end};
use crate::{Checks, Decision, Error, Limiter, Rules, Store};

pub(super) struct Deciding<S: Store + 'static> {
    /// None once it is made.
    decision: Option<Pin<Box<Decided>>>,
    /// Who gives back what may be held; none if nothing may.
    keeper: Option<Arc<Limiter<S>>>,
}

type Decided = dyn Future<Output = Result<Arc<Decision>, Error>> + Send;

impl<S: Store + 'static> Deciding<S> {
    pub(super) fn new(limiter: &Arc<Limiter<S>>, rules: Arc<Rules>, ask: Checks) -> Self {
        let holds = ask.checks().iter().any(|check| check.quota.is_held());
        let keeper = holds.then(|| Arc::clone(limiter));
        let limiter = Arc::clone(limiter);
        // Decisions are large, and what is on its way is moved about.
        let decision = Box::pin(async move { limiter.decide(rules, ask).await.map(Arc::new) });
        Deciding { decision: Some(decision), keeper }
    }

    /// The decision, if it takes no time, as in memory.
    pub(super) fn at_once(&mut self) -> Option<Result<Arc<Decision>, Error>> {
        match self.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => Some(decision),
            Poll::Pending => None,
        }
    }

    /// Must not be called again once it is made.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Arc<Decision>, Error>> {
        let Some(decision) = &mut self.decision else { return Poll::Pending };
        let decision = std::task::ready!(decision.as_mut().poll(context));
        self.decision = None;
        Poll::Ready(decision)
    }
}

/// Whoever asked has left. What the store admits nevertheless would be held by nobody.
impl<S: Store + 'static> Drop for Deciding<S> {
    fn drop(&mut self) {
        let (Some(decision), Some(limiter)) = (self.decision.take(), self.keeper.take()) else { return };
        Runtime::here().carry(async move {
            if let Ok(decision) = decision.await
                && let Some(reservation) = decision.reservation()
            {
                end(limiter, reservation, Ending::Release).await;
            }
        });
    }
}
