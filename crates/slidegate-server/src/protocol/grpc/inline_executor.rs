//! Executor that answers a gRPC call in the task that reads the connection, if the call is ready immediately.

use std::future::Future;

use futures_util::FutureExt;
use hyper::rt::Executor;

/// Polls each call once before it spawns a task for it.
///
/// A decision in memory is ready at the first poll, because the message arrives with its headers. A task would
/// cost more than the decision and move it to another core. A call that is pending becomes a task, whose first
/// poll registers the waker. So the poll in this executor needs no waker.
#[derive(Clone, Copy)]
pub(super) struct InlineExecutor;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for InlineExecutor {
    fn execute(&self, call: F) {
        let mut call = Box::pin(call);
        if call.as_mut().now_or_never().is_none() {
            tokio::spawn(call);
        }
    }
}
