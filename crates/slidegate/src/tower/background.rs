//! Background work that outlives the request: settlements and releases.

use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::runtime::Handle;

use crate::common::retry::until_ok;
use crate::{Limiter, Reservation, Store};

/// Tokio runtime of a request; `None` outside of Tokio. Values that start background work on drop store it, because
/// they may be dropped on a thread without a runtime.
#[derive(Clone)]
pub(super) struct Runtime(Option<Handle>);

impl Runtime {
    pub(super) fn here() -> Self {
        Runtime(Handle::try_current().ok())
    }

    /// Polls the work once, and spawns a task if it is not complete. Without Tokio, incomplete work is dropped.
    pub(super) fn run_in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        let _entered = self.0.as_ref().map(Handle::enter);
        let mut work = Box::pin(work);
        if work.as_mut().now_or_never().is_none()
            && let Some(runtime) = &self.0
        {
            runtime.spawn(work);
        }
    }

    /// Spawns a task; without Tokio, drops it.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.0 {
            runtime.spawn(work);
        }
    }
}

/// Final correction of an admission.
#[derive(Clone, Copy)]
pub(super) enum FinalCorrection {
    /// Sets the actual cost.
    Cost(u64),
    /// Releases the held permits.
    Release,
}

/// Applies the correction, and retries if it fails: settling twice changes nothing.
pub(super) async fn settle_with_retries<S: Store>(
    limiter: Arc<Limiter<S>>,
    reservation: Reservation,
    correction: FinalCorrection,
) {
    let (limiter, reservation) = (&*limiter, &reservation);
    let settle = || async move {
        match correction {
            FinalCorrection::Cost(permits) => limiter.settle(reservation, permits).await,
            FinalCorrection::Release => limiter.release(reservation).await,
        }
    };
    until_ok(settle, |pause| limiter.clock().sleep(pause.into())).await;
}
