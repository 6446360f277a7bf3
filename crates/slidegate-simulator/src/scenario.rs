//! One set of rules in virtual time: the limiter and the store that decide in production, and a clock that a trace moves.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use slidegate::{Clock, Decision, Limiter, MemoryStats, MemoryStore, Micros, Request, Rules, Sleep};

/// Requests between two sweeps, which a server does by the clock.
const SWEEP_EVERY: u64 = 1 << 20;

/// Decides requests of the past.
pub(crate) struct Scenario {
    clock: TraceClock,
    limiter: Limiter<MemoryStore<TraceClock>>,
    decided: u64,
    /// The most bytes its counts took, of those looked at.
    peak_bytes: usize,
}

impl Scenario {
    /// Counts up to `max_keys` keys, as a server does.
    pub(crate) fn new(rules: Rules, max_keys: usize) -> Self {
        let clock = TraceClock::default();
        let limiter = Limiter::new(MemoryStore::with_clock(clock.clone(), max_keys), rules);
        Scenario { clock, limiter, decided: 0, peak_bytes: 0 }
    }

    /// Decides as a server would have at `at`, which must not lie before what was decided last.
    ///
    /// A decision is large: it is looked at where it is made.
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
        // Polled where it is made: it is large, too.
        let decided = pin!(self.limiter.acquire(request));
        match &decided.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(decision)) => Ok(visit(decision)),
            Poll::Ready(Err(error)) => Err(error.to_string()),
            // In memory there is nothing to wait for.
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

    /// The most bytes that its counts took.
    pub(crate) fn max_bytes(&self) -> usize {
        self.peak_bytes.max(self.store_stats().bytes)
    }

    pub(crate) fn rules(&self) -> Arc<Rules> {
        self.limiter.rules()
    }
}

/// A clock that a trace moves. Nobody sleeps by it, so it needs no lock.
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

/// Virtual time, which never runs back: a line that is late is judged at the time of the latest before it.
#[derive(Debug, Default)]
pub(crate) struct VirtualTime {
    pub(crate) first: Option<Micros>,
    pub(crate) latest: Micros,
    /// How many lines were late, and by how much at most.
    pub(crate) late_requests: u64,
    pub(crate) max_lateness: Micros,
    /// Whether any time is not a whole second.
    pub(crate) has_fractions: bool,
}

impl VirtualTime {
    /// When to judge a request of this time.
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
