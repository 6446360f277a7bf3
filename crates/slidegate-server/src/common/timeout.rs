//! Patience that costs nothing where none is needed.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// What comes of `future`; none if it has to be waited for longer than `timeout`. What is ready at once needs no timer.
///
/// It takes the future where it lies: to move one that has a store's in it costs more than to decide.
pub(crate) async fn within<F: Future>(timeout: Duration, mut future: Pin<&mut F>) -> Option<F::Output> {
    match poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
        Poll::Ready(output) => Some(output),
        Poll::Pending => tokio::time::timeout(timeout, future).await.ok(),
    }
}
