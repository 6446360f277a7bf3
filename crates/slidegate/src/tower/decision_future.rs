//! Future of a decision that releases its permits if the caller goes away.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;

use super::background::{FinalCorrection, Runtime, settle_with_retries};
use crate::{Checks, Decision, Error, Limiter, Rules, Store};

pub(super) struct DecisionFuture<S: Store + 'static> {
    /// `None` once the decision is made.
    decision: Option<Pin<Box<BoxedDecision>>>,
    /// Limiter that releases held permits; `None` if no rule can hold permits.
    releaser: Option<Arc<Limiter<S>>>,
}

type BoxedDecision = dyn Future<Output = Result<Arc<Decision>, Error>> + Send;

impl<S: Store + 'static> DecisionFuture<S> {
    pub(super) fn new(limiter: &Arc<Limiter<S>>, rules: Arc<Rules>, checks: Checks) -> Self {
        let holds = checks.as_slice().iter().any(|check| check.quota.is_held());
        let releaser = holds.then(|| Arc::clone(limiter));
        let limiter = Arc::clone(limiter);
        // Boxed, because decisions are large and the future is moved.
        let decision = Box::pin(async move { limiter.decide(rules, checks).await.map(Arc::new) });
        DecisionFuture { decision: Some(decision), releaser }
    }

    /// Returns the decision if it is ready at the first poll, as with the memory store.
    pub(super) fn poll_once(&mut self) -> Option<Result<Arc<Decision>, Error>> {
        let decision = self.decision.as_mut()?.as_mut().now_or_never()?;
        self.decision = None;
        Some(decision)
    }

    /// Polls the decision. Must not be called again once it is ready.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Arc<Decision>, Error>> {
        let Some(decision) = &mut self.decision else { return Poll::Pending };
        let decision = std::task::ready!(decision.as_mut().poll(context));
        self.decision = None;
        Poll::Ready(decision)
    }
}

/// Completes the decision in the background if the caller is gone. Permits that the store then admits are released, because
/// no request uses them.
impl<S: Store + 'static> Drop for DecisionFuture<S> {
    fn drop(&mut self) {
        let (Some(decision), Some(limiter)) = (self.decision.take(), self.releaser.take()) else { return };
        Runtime::here().run_in_background(async move {
            if let Ok(decision) = decision.await
                && let Some(reservation) = decision.reservation()
            {
                settle_with_retries(limiter, reservation, FinalCorrection::Release).await;
            }
        });
    }
}
