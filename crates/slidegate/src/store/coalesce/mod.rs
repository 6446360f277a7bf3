//! Request coalescing: concurrent callers share calls to the store.
//!
//! While a call to a server is in flight, further requests wait and are sent together as the next batch. So under
//! load a call carries as many requests as arrived during the previous call. There is no timer, and a single caller
//! is not delayed. A full batch is sent at once, so that the server does not idle while its answers are read. Each
//! request gets the same result as if it were sent alone.

mod batch;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use smallvec::SmallVec;

use self::batch::{Batch, SharedResult, Waiter};
use super::single;
use crate::{BatchVerdicts, Checks, Clock, Error, Fault, Source, Store, SystemClock, Verdicts};

/// Number of queues. A queue serves all shards whose numbers are equal modulo this number.
const SHARDS: usize = 64;

/// Maximum number of concurrent calls to one server when batches are full.
const MAX_CALLS: usize = 4;

/// Bounds of a [`Coalesce`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoalesceOptions {
    /// Maximum number of requests in one call. With 1 no request waits for another.
    pub batch_size: usize,
    /// Maximum number of requests that wait for a call to one server. Further requests are sent alone.
    pub max_waiting: usize,
}

impl Default for CoalesceOptions {
    fn default() -> Self {
        CoalesceOptions { batch_size: 100, max_waiting: 10_000 }
    }
}

/// A [`Store`] whose concurrent callers share calls to the wrapped store. Clones share all state. It must be used
/// within a tokio runtime.
///
/// A batch that a caller passes is sent as it is, because all its requests must be evaluated at one instant.
pub struct Coalesce<S> {
    inner: Arc<Inner<S>>,
}

struct Inner<S> {
    store: S,
    options: CoalesceOptions,
    clock: Arc<dyn Clock>,
    queues: [CachePadded<Mutex<ServerQueue>>; SHARDS],
    calls: AtomicU64,
    requests: AtomicU64,
}

/// Requests that wait for one server.
#[derive(Default)]
struct ServerQueue {
    /// Calls in flight. When a call ends, its sender sends the next waiting batch.
    calls: usize,
    /// True if the last call was answered without the server.
    without_server: bool,
    waiting: usize,
    batches: VecDeque<Arc<Batch>>,
}

/// Number of calls, and number of requests in these calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoalesceStats {
    /// Calls to the wrapped store.
    pub calls: u64,
    /// Requests in these calls.
    pub requests: u64,
}

impl<S: Store + 'static> Coalesce<S> {
    /// Wraps `store`, with default options.
    pub fn new(store: S) -> Self {
        Self::with_options(store, CoalesceOptions::default())
    }

    /// Wraps `store`, with the given options.
    pub fn with_options(store: S, options: CoalesceOptions) -> Self {
        Self::with_clock(store, options, SystemClock::new())
    }

    /// Wraps `store`, with the given options and the clock that measures how long requests wait.
    pub fn with_clock(store: S, options: CoalesceOptions, clock: impl Clock + 'static) -> Self {
        Coalesce {
            inner: Arc::new(Inner {
                store,
                options,
                clock: Arc::new(clock),
                queues: std::array::from_fn(|_| CachePadded::default()),
                calls: AtomicU64::new(0),
                requests: AtomicU64::new(0),
            }),
        }
    }

    /// Returns the wrapped store.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// Returns the statistics.
    pub fn stats(&self) -> CoalesceStats {
        let Inner { calls, requests, .. } = &*self.inner;
        CoalesceStats { calls: calls.load(Ordering::Relaxed), requests: requests.load(Ordering::Relaxed) }
    }
}

share_by_clone!(Coalesce<S>);

/// Decision on when a request is sent.
enum Dispatch {
    /// The request is sent at once, because no call is in flight. The caller owns the queue until its call ends.
    Leader,
    /// The request is sent at once and alone, because too many requests wait.
    Alone,
    Wait(Waiter),
}

impl<S: Store + 'static> Inner<S> {
    /// Returns the queue of a request; `None` if its keys are on several servers.
    fn shard_of(&self, checks: &Checks) -> Option<usize> {
        let mut shards = checks.as_slice().iter().map(|check| self.store.shard_of(&check.key));
        let first = shards.next()?;
        shards.all(|shard| shard == first).then_some(usize::from(first) % SHARDS)
    }

    fn dispatch(self: &Arc<Self>, shard: usize, checks: &Checks) -> Dispatch {
        let (mut queue, size) = (self.queues[shard].lock(), self.options.batch_size);
        if queue.calls == 0 {
            queue.calls = 1;
            return Dispatch::Leader;
        }
        if queue.waiting >= self.options.max_waiting {
            return Dispatch::Alone;
        }
        queue.waiting += 1;
        let joined = queue.batches.back().and_then(|last| last.join(checks, size));
        let waiter = joined.unwrap_or_else(|| {
            let (batch, waiter) = Batch::with_first(checks, self.clock.now());
            queue.batches.push_back(batch);
            waiter
        });
        if waiter.index + 1 >= size && queue.calls < MAX_CALLS {
            queue.calls += 1;
            drop(queue);
            tokio::spawn(self.driver(shard).drive());
        }
        Dispatch::Wait(waiter)
    }

    async fn call(&self, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.store.admit(batch).await
    }

    fn driver(self: &Arc<Self>, shard: usize) -> Driver<S> {
        Driver { inner: Arc::clone(self), shard, done: false }
    }

    fn record_sources<'r>(&self, shard: usize, mut batch_verdicts: impl Iterator<Item = &'r Verdicts>) {
        let without_server = batch_verdicts.any(|verdicts| verdicts.source > Source::Lease);
        self.queues[shard].lock().without_server = without_server;
    }

    /// Returns one result per request. If the call fails because of one key, the requests are sent again one by one, so
    /// that the fault does not fail the other requests.
    async fn results(&self, batch: &[Checks]) -> Vec<SharedResult> {
        match self.call(batch).await {
            Ok(batch_verdicts) => batch_verdicts.into_iter().map(Ok).collect(),
            Err(error) if batch.len() > 1 && error.fault() == Some(Fault::WrongType) => {
                let mut results = Vec::with_capacity(batch.len());
                for checks in batch {
                    let alone = self.call(std::slice::from_ref(checks)).await;
                    results.push(alone.and_then(single));
                }
                results
            }
            Err(error) => vec![Err(error); batch.len()],
        }
    }
}

/// Task that sends the waiting batches of one queue.
struct Driver<S> {
    inner: Arc<Inner<S>>,
    shard: usize,
    /// True if the task has ended because no batch was ready.
    done: bool,
}

impl<S: Store + 'static> Driver<S> {
    /// Sends batch after batch until none is ready.
    async fn drive(mut self) {
        while let Some((batch, without_server)) = self.next() {
            let inner = &self.inner;
            let mut in_flight = batch.into_in_flight();
            if in_flight.requests.is_empty() {
                continue;
            }
            if without_server {
                // The server did not answer the last call, so the waiting time counts towards the deadline.
                let waited = inner.clock.now().since(in_flight.since);
                in_flight.requests.iter_mut().for_each(|checks| checks.waited = waited);
            }
            let results = inner.results(&in_flight.requests).await;
            inner.record_sources(self.shard, results.iter().flatten());
            in_flight.complete(results);
        }
        self.done = true;
    }
}

impl<S> Driver<S> {
    /// Returns the next batch, and whether the last call was answered without the server. `None` if no request waits,
    /// or if only a partial batch waits while another call is in flight.
    fn next(&self) -> Option<(Arc<Batch>, bool)> {
        let mut queue = self.inner.queues[self.shard].lock();
        let full = |batch: &Arc<Batch>| batch.len() >= self.inner.options.batch_size;
        let ready = queue.batches.front().is_some_and(|batch| queue.calls == 1 || full(batch));
        if !ready {
            queue.calls -= 1;
            return None;
        }
        let batch = queue.batches.pop_front()?;
        queue.waiting -= batch.len();
        Some((batch, queue.without_server))
    }
}

impl<S> Drop for Driver<S> {
    /// If the runtime has stopped or the store has panicked, the waiting callers get an error.
    fn drop(&mut self) {
        if !self.done {
            while let Some((batch, _)) = self.next() {
                drop(batch.into_in_flight());
            }
        }
    }
}

/// Guard of a leader's call. When the call ends, or the leader goes away, a task sends the requests that arrived
/// meanwhile.
struct LeaderGuard<'i, S: Store + 'static> {
    inner: &'i Arc<Inner<S>>,
    shard: usize,
}

impl<S: Store + 'static> Drop for LeaderGuard<'_, S> {
    fn drop(&mut self) {
        let has_waiters = {
            let mut queue = self.inner.queues[self.shard].lock();
            let has_waiters = queue.calls == 1 && !queue.batches.is_empty();
            queue.calls -= usize::from(!has_waiters);
            has_waiters
        };
        if has_waiters {
            let driving = self.inner.driver(self.shard).drive();
            // Without a runtime the driver is dropped, and the waiting callers get an error.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(driving);
            }
        }
    }
}

impl<S: Store + 'static> Store for Coalesce<S> {
    async fn admit(&self, batch: &[Checks]) -> Result<BatchVerdicts, Error> {
        let inner = &self.inner;
        let [checks] = batch else { return inner.call(batch).await };
        let Some(shard) = inner.shard_of(checks).filter(|_| inner.options.batch_size > 1) else {
            return inner.call(batch).await;
        };
        match inner.dispatch(shard, checks) {
            Dispatch::Leader => {
                let _leader = LeaderGuard { inner, shard };
                let result = inner.call(batch).await;
                inner.record_sources(shard, result.iter().flatten());
                result
            }
            Dispatch::Alone => inner.call(batch).await,
            Dispatch::Wait(waiter) => Ok(SmallVec::from_buf([waiter.await?])),
        }
    }

    async fn admit_run(&self, checks: &Checks, times: usize) -> Result<BatchVerdicts, Error> {
        self.inner.calls.fetch_add(1, Ordering::Relaxed);
        self.inner.requests.fetch_add(times as u64, Ordering::Relaxed);
        self.inner.store.admit_run(checks, times).await
    }

    forward!(self => self.inner.store; settle, give_back, inspect, reset, shard_of, listen);
}
