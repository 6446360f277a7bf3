//! Simulates one set of rules in virtual time: the limiter and the memory store of production, with a clock that the trace sets.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use slidegate::{Clock, Decision, Limiter, MemoryStore, Micros, Request, Rules, Sleep, store::MemoryStats};

/// Number of requests between two sweeps of the store. A server sweeps at intervals of real time.
const SWEEP_EVERY: u64 = 1 << 20;

/// One set of rules, and the state of its counters.
pub(crate) struct Scenario {
    clock: TraceClock,
    limiter: Limiter<MemoryStore<TraceClock>>,
    decided: u64,
    /// Largest memory of the counters before a sweep, in bytes.
    peak_bytes: usize,
}

impl Scenario {
    /// Creates a scenario that counts up to `max_keys` keys, as a server does.
    pub(crate) fn new(rules: Rules, max_keys: usize) -> Self {
        let clock = TraceClock::default();
        let limiter = Limiter::new(MemoryStore::with_clock(clock.clone(), max_keys), rules);
        Scenario { clock, limiter, decided: 0, peak_bytes: 0 }
    }

    /// Decides a request as a server would have at `at`. Calls must be in the order of time.
    ///
    /// `visit` gets the decision by reference, because a decision is large and expensive to move.
    #[inline(always)]
    pub(crate) fn decide<T>(
        &mut self,
        at: Micros,
        request: &Request<'_>,
        visit: impl FnOnce(&Decision) -> T,
    ) -> Result<T, String> {
        self.clock.0.store(at.get(), Ordering::Relaxed);
        self.decided += 1;
        if self.decided.is_multiple_of(SWEEP_EVERY) {
            self.sweep();
        }
        // The future is large, too, so it is pinned and polled in place.
        let decided = pin!(self.limiter.acquire(request));
        match &decided.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(decision)) => Ok(visit(decision)),
            Poll::Ready(Err(error)) => Err(error.to_string()),
            // Not expected: the memory store never waits.
            Poll::Pending => Err("the store is not ready".to_owned()),
        }
    }

    #[cold]
    fn sweep(&mut self) {
        self.peak_bytes = self.peak_bytes.max(self.store_stats().bytes);
        self.limiter.store().sweep();
    }

    pub(crate) fn store_stats(&self) -> MemoryStats {
        self.limiter.store().stats()
    }

    /// Returns the largest memory of the counters at the times of measurement, in bytes.
    pub(crate) fn max_bytes(&self) -> usize {
        self.peak_bytes.max(self.store_stats().bytes)
    }

    pub(crate) fn rules(&self) -> Arc<Rules> {
        self.limiter.rules()
    }
}

/// Clock that the trace sets. An atomic is enough, because no task sleeps on this clock.
#[derive(Clone, Default)]
struct TraceClock(Arc<AtomicU64>);

impl Clock for TraceClock {
    #[inline]
    fn now(&self) -> Micros {
        Micros::new(self.0.load(Ordering::Relaxed))
    }

    fn sleep(&self, _: Micros) -> Sleep {
        Box::pin(std::future::ready(()))
    }
}

/// Virtual time, which never goes backwards: a late request is decided at the latest time before it.
#[derive(Debug, Default)]
pub(crate) struct VirtualTime {
    pub(crate) first: Option<Micros>,
    pub(crate) latest: Micros,
    /// Number of requests that were late.
    pub(crate) late_requests: u64,
    /// Largest time by which a request was late.
    pub(crate) max_lateness: Micros,
    /// True if any time is not a whole second.
    pub(crate) has_fractions: bool,
}

impl VirtualTime {
    /// Returns the time at which to decide a request that has the time `at`.
    #[inline]
    pub(crate) fn advance(&mut self, at: Micros) -> Micros {
        self.first.get_or_insert(at);
        self.has_fractions |= !at.get().is_multiple_of(1_000_000);
        if at < self.latest {
            self.late_requests += 1;
            self.max_lateness = self.max_lateness.max(self.latest.since(at));
        } else {
            self.latest = at;
        }
        self.latest
    }
}
