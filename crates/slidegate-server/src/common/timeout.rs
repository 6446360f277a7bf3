//! Timeout that arms a timer only if the first poll is pending.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// Returns the output of `future`. None if it takes longer than `timeout`. A future that is ready at once needs no
/// timer.
///
/// The future is passed by reference: moving a future that contains a store call costs more than the decision itself.
pub(crate) async fn within<F: Future>(timeout: Duration, mut future: Pin<&mut F>) -> Option<F::Output> {
    match poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
        Poll::Ready(output) => Some(output),
        Poll::Pending => tokio::time::timeout(timeout, future).await.ok(),
    }
}
