//! Callers that share a call.
//!
//! While a call to a server is in flight, those who ask meanwhile wait, and leave together as the next batch. So
//! under load a call carries as many asks as arrived during the one before: there is no timer to wait for, and who
//! is alone is not delayed. A batch that is full does not wait either, so that a server need not while its answers
//! are read. Each is answered as if it had asked alone.

mod batch;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use smallvec::SmallVec;

use self::batch::{Answer, Batch, Waiter};
use crate::{
    BatchVerdicts, Checks, Clock, Entry, Error, Fault, Inspection, Key, Listener, Receipt, Settlement,
    Source, Store, SystemClock, Verdicts,
};

/// Servers are told apart by this many lanes; beyond that some share one.
const LANES: usize = 64;

/// Calls to one server at once, where batches are full.
const MAX_CALLS: usize = 4;

/// How many callers may share a call, and how many may wait for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoalesceOptions {
    /// The most asks in one call; 1 lets nobody wait for another.
    pub batch_size: usize,
    /// The most that wait for the next calls to one server. Who comes then goes alone.
    pub max_waiting: usize,
}

impl Default for CoalesceOptions {
    fn default() -> Self {
        CoalesceOptions { batch_size: 100, max_waiting: 10_000 }
    }
}

/// A [`Store`] whose callers share calls to the one within. Clones share everything. Use it in a tokio runtime.
///
/// A batch that a caller makes himself goes as it is: it is to be judged at one instant.
pub struct Coalesce<S> {
    inner: Arc<Inner<S>>,
}

struct Inner<S> {
    store: S,
    options: CoalesceOptions,
    clock: SystemClock,
    lanes: [CachePadded<Mutex<ServerQueue>>; LANES],
    calls: AtomicU64,
    asks: AtomicU64,
}

/// What goes to one server.
#[derive(Default)]
struct ServerQueue {
    /// Calls in flight. Who made them sends what waits when they are back.
    calls: usize,
    /// The last call was answered without the server.
    strained: bool,
    waiting: usize,
    batches: VecDeque<Arc<Batch>>,
}

/// What was called and asked so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoalesceStats {
    /// Calls to the store within.
    pub calls: u64,
    /// Asks in them.
    pub asks: u64,
}

impl<S: Store + 'static> Coalesce<S> {
    /// Around `store`, with defaults.
    pub fn new(store: S) -> Self {
        Self::with_options(store, CoalesceOptions::default())
    }

    /// The same with other options.
    pub fn with_options(store: S, options: CoalesceOptions) -> Self {
        Coalesce {
            inner: Arc::new(Inner {
                store,
                options,
                clock: SystemClock::new(),
                lanes: std::array::from_fn(|_| CachePadded::default()),
                calls: AtomicU64::new(0),
                asks: AtomicU64::new(0),
            }),
        }
    }

    /// The store within.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// What was called and asked so far.
    pub fn stats(&self) -> CoalesceStats {
        let Inner { calls, asks, .. } = &*self.inner;
        CoalesceStats { calls: calls.load(Ordering::Relaxed), asks: asks.load(Ordering::Relaxed) }
    }
}

impl<S> Clone for Coalesce<S> {
    fn clone(&self) -> Self {
        Coalesce { inner: Arc::clone(&self.inner) }
    }
}

/// How a caller goes.
enum Dispatch {
    /// By himself, with nobody to wait for: the lane is his until he is back.
    LeaderGuard,
    /// By himself: there is no room.
    Alone,
    With(Waiter),
}

impl<S: Store + 'static> Inner<S> {
    /// The lane of an ask; none if it goes to several servers.
    fn lane_of(&self, ask: &Checks) -> Option<usize> {
        let mut lanes = ask.checks().iter().map(|check| self.store.lane(&check.key));
        let first = lanes.next()?;
        lanes.all(|lane| lane == first).then_some(usize::from(first) % LANES)
    }

    fn enter(self: &Arc<Self>, number: usize, ask: &Checks) -> Dispatch {
        let (mut lane, size) = (self.lanes[number].lock(), self.options.batch_size);
        if lane.calls == 0 {
            lane.calls = 1;
            return Dispatch::LeaderGuard;
        }
        if lane.waiting >= self.options.max_waiting {
            return Dispatch::Alone;
        }
        lane.waiting += 1;
        let joined = lane.batches.back().and_then(|last| last.join(ask, size));
        let place = joined.unwrap_or_else(|| {
            let (batch, place) = Batch::of(ask, self.clock.now());
            lane.batches.push_back(batch);
            place
        });
        if place.is_last(size) && lane.calls < MAX_CALLS {
            lane.calls += 1;
            drop(lane);
            tokio::spawn(self.driver(number).drive());
        }
        Dispatch::With(place)
    }

    async fn call(&self, asks: &[Checks]) -> Result<BatchVerdicts, Error> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.asks.fetch_add(asks.len() as u64, Ordering::Relaxed);
        self.store.admit(asks).await
    }

    fn driver(self: &Arc<Self>, lane: usize) -> Driver<S> {
        Driver { inner: Arc::clone(self), lane, done: false }
    }

    fn was_answered<'r>(&self, lane: usize, mut readings: impl Iterator<Item = &'r Verdicts>) {
        let strained = readings.any(|reading| reading.source > Source::Lease);
        self.lanes[lane].lock().strained = strained;
    }

    /// An answer to each. What is wrong with the key of one is not the others' affair.
    async fn answer(&self, asks: &[Checks]) -> Vec<Answer> {
        match self.call(asks).await {
            Ok(readings) => readings.into_iter().map(Ok).collect(),
            Err(error) if asks.len() > 1 && error.fault() == Some(Fault::WrongType) => {
                let mut answers = Vec::with_capacity(asks.len());
                for ask in asks {
                    let alone = self.call(std::slice::from_ref(ask)).await;
                    answers.push(alone.and_then(batch::only));
                }
                answers
            }
            Err(error) => vec![Err(error); asks.len()],
        }
    }
}

/// A task that sends what waits in a lane.
struct Driver<S> {
    inner: Arc<Inner<S>>,
    lane: usize,
    /// Nobody waits for it any more.
    done: bool,
}

impl<S: Store + 'static> Driver<S> {
    /// Sends batch after batch until nobody waits.
    async fn drive(mut self) {
        while let Some((batch, strained)) = self.next() {
            let inner = &self.inner;
            let mut leaving = batch.leave();
            if leaving.asks.is_empty() {
                continue;
            }
            if strained {
                // Those who waited for a server that did not answer have waited long enough.
                let waited = inner.clock.now().since(leaving.since);
                leaving.asks.iter_mut().for_each(|ask| ask.set_waited(waited));
            }
            let answers = inner.answer(&leaving.asks).await;
            inner.was_answered(self.lane, answers.iter().flatten());
            leaving.arrive(answers);
        }
        self.done = true;
    }
}

impl<S> Driver<S> {
    /// Who goes next, and whether the last call was answered without the server. None if nobody waits, or only those
    /// who can wait for another call.
    fn next(&self) -> Option<(Arc<Batch>, bool)> {
        let mut lane = self.inner.lanes[self.lane].lock();
        let full = |batch: &Arc<Batch>| batch.len() >= self.inner.options.batch_size;
        let goes = lane.batches.front().is_some_and(|batch| lane.calls == 1 || full(batch));
        if !goes {
            lane.calls -= 1;
            return None;
        }
        let batch = lane.batches.pop_front()?;
        lane.waiting -= batch.len();
        Some((batch, lane.strained))
    }
}

impl<S> Drop for Driver<S> {
    /// If the runtime has stopped or the store has panicked, those who wait are told.
    fn drop(&mut self) {
        if !self.done {
            while let Some((batch, _)) = self.next() {
                drop(batch.leave());
            }
        }
    }
}

/// The call of one who came first. When he is back, or has left, a task sends those who came meanwhile.
struct LeaderGuard<'i, S: Store + 'static> {
    inner: &'i Arc<Inner<S>>,
    lane: usize,
}

impl<S: Store + 'static> Drop for LeaderGuard<'_, S> {
    fn drop(&mut self) {
        let waits = {
            let mut lane = self.inner.lanes[self.lane].lock();
            let waits = lane.calls == 1 && !lane.batches.is_empty();
            lane.calls -= usize::from(!waits);
            waits
        };
        if waits {
            let driving = self.inner.driver(self.lane).drive();
            // Without a runtime it is dropped, and tells them.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(driving);
            }
        }
    }
}

impl<S: Store + 'static> Store for Coalesce<S> {
    async fn admit(&self, asks: &[Checks]) -> Result<BatchVerdicts, Error> {
        let inner = &self.inner;
        let [ask] = asks else { return inner.call(asks).await };
        let Some(lane) = inner.lane_of(ask).filter(|_| inner.options.batch_size > 1) else {
            return inner.call(asks).await;
        };
        match inner.enter(lane, ask) {
            Dispatch::LeaderGuard => {
                let _first = LeaderGuard { inner, lane };
                let answer = inner.call(asks).await;
                inner.was_answered(lane, answer.iter().flatten());
                answer
            }
            Dispatch::Alone => inner.call(asks).await,
            Dispatch::With(place) => Ok(SmallVec::from_buf([place.await?])),
        }
    }

    async fn admit_run(&self, ask: &Checks, times: usize) -> Result<BatchVerdicts, Error> {
        self.inner.calls.fetch_add(1, Ordering::Relaxed);
        self.inner.asks.fetch_add(times as u64, Ordering::Relaxed);
        self.inner.store.admit_run(ask, times).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Receipt, Error> {
        self.inner.store.settle(settlements).await
    }

    async fn give_back(&self, key: &Key, entries: &[Entry]) -> Result<(), Error> {
        self.inner.store.give_back(key, entries).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Inspection>, Error> {
        self.inner.store.inspect(key).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        self.inner.store.reset(key).await
    }

    fn lane(&self, key: &Key) -> u16 {
        self.inner.store.lane(key)
    }

    fn listen(&self, listener: Weak<dyn Listener>) {
        self.inner.store.listen(listener);
    }
}
