//! Work that goes on though whoever began it has left: what was taken is given back.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::{Limiter, Reservation, Store};

/// How often a settlement that failed is tried again, and the wait before the first time; it doubles.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(20);

/// The runtime that a request came in by; none if it is none of tokio's. Kept, because what is dropped may be dropped
/// anywhere.
#[derive(Clone)]
pub(super) struct Runtime(Option<Handle>);

impl Runtime {
    pub(super) fn here() -> Self {
        Runtime(Handle::try_current().ok())
    }

    /// Does at once what can be, and the rest in a task of its own. Without tokio, a rest is given up.
    pub(super) fn carry(&self, work: impl Future<Output = ()> + Send + 'static) {
        let _entered = self.0.as_ref().map(Handle::enter);
        let mut work = Box::pin(work);
        let done = work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        if !done && let Some(runtime) = &self.0 {
            runtime.spawn(work);
        }
    }

    /// Starts a task; without tokio, drops it.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.0 {
            runtime.spawn(work);
        }
    }
}

/// What is to become of an admission in the end.
#[derive(Clone, Copy)]
pub(super) enum Ending {
    /// It counts what it really cost.
    Cost(u64),
    /// What it holds is given back.
    Release,
}

/// Settles; tries again where it fails, for settling twice changes nothing.
pub(super) async fn end<S: Store>(limiter: Arc<Limiter<S>>, reservation: Reservation, ending: Ending) {
    let mut pause = PAUSE;
    for _ in 0..TRIES {
        let settled = match ending {
            Ending::Cost(permits) => limiter.settle(&reservation, permits).await,
            Ending::Release => limiter.release(&reservation).await,
        };
        if settled.is_ok() {
            return;
        }
        limiter.clock().sleep(pause.into()).await;
        pause *= 2;
    }
}
