//! Batch of requests that share one call to the store, and the callers that wait for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::{Checks, Error, Micros, Verdicts};

pub(super) type SharedResult = Result<Verdicts, Error>;

/// Requests that share one call. The batch collects requests, is sent, and is completed with one result per request.
pub(super) struct Batch(Mutex<State>);

#[derive(Default)]
struct State {
    /// An entry is `None` after the request was sent, or if its caller went away before that.
    requests: Vec<Option<Checks>>,
    /// Arrival of the first request.
    since: Micros,
    sent: bool,
    results: Vec<Option<SharedResult>>,
    wakers: Vec<Option<Waker>>,
}

/// Future of one caller, which resolves to the result of its request.
pub(super) struct Waiter {
    batch: Arc<Batch>,
    pub(super) index: usize,
}

/// A batch that is being sent. If it is dropped, the waiting callers get an error.
pub(super) struct InFlightBatch {
    batch: Arc<Batch>,
    pub(super) requests: Vec<Checks>,
    pub(super) since: Micros,
    /// For each request, its index in the batch.
    waiters: Vec<usize>,
}

impl Batch {
    pub(super) fn with_first(checks: &Checks, now: Micros) -> (Arc<Batch>, Waiter) {
        let state = State { requests: vec![Some(checks.clone())], since: now, ..State::default() };
        let batch = Arc::new(Batch(Mutex::new(state)));
        (Arc::clone(&batch), Waiter { batch, index: 0 })
    }

    /// Adds a request to the batch; none if the batch is full.
    pub(super) fn join(self: &Arc<Self>, checks: &Checks, size: usize) -> Option<Waiter> {
        let mut state = self.0.lock();
        let index = state.requests.len();
        if index >= size {
            return None;
        }
        state.requests.push(Some(checks.clone()));
        Some(Waiter { batch: Arc::clone(self), index })
    }

    /// Returns the number of requests that joined, including those whose callers have gone away.
    pub(super) fn len(&self) -> usize {
        self.0.lock().requests.len()
    }

    pub(super) fn into_in_flight(self: Arc<Self>) -> InFlightBatch {
        let (mut requests, mut waiters) = (Vec::new(), Vec::new());
        let since = {
            let mut state = self.0.lock();
            state.sent = true;
            requests.reserve_exact(state.requests.len());
            waiters.reserve_exact(state.requests.len());
            for (index, checks) in state.requests.iter_mut().enumerate() {
                if let Some(checks) = checks.take() {
                    requests.push(checks);
                    waiters.push(index);
                }
            }
            state.since
        };
        InFlightBatch { batch: self, requests, since, waiters }
    }

    fn complete(&self, results: impl Iterator<Item = (usize, SharedResult)>) {
        let wakers = {
            let mut state = self.0.lock();
            let size = state.requests.len();
            state.results.resize_with(size, || None);
            for (index, result) in results {
                state.results[index] = Some(result);
            }
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl InFlightBatch {
    pub(super) fn complete(mut self, results: Vec<SharedResult>) {
        let waiters = std::mem::take(&mut self.waiters);
        let results = results.into_iter().chain(std::iter::repeat_with(|| Err(Error::short_answer())));
        self.batch.complete(waiters.into_iter().zip(results));
    }
}

impl Drop for InFlightBatch {
    fn drop(&mut self) {
        if !self.waiters.is_empty() {
            let lost = || Error::unavailable("the shared call of this request was dropped");
            self.batch.complete(self.waiters.drain(..).map(|index| (index, Err(lost()))));
        }
    }
}

impl Future for Waiter {
    type Output = SharedResult;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<SharedResult> {
        let mut state = self.batch.0.lock();
        if let Some(result) = state.results.get_mut(self.index).and_then(Option::take) {
            return Poll::Ready(result);
        }
        if state.wakers.len() <= self.index {
            let size = state.requests.len().max(self.index + 1);
            state.wakers.resize_with(size, || None);
        }
        state.wakers[self.index] = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Waiter {
    /// A request whose caller goes away before the batch is sent is not sent, so it is not charged.
    fn drop(&mut self) {
        let mut state = self.batch.0.lock();
        if !state.sent {
            state.requests[self.index] = None;
        }
    }
}
