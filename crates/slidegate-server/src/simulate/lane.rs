//! One set of rules in virtual time: the limiter and the store that decide in production, and a clock that a trace moves.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use slidegate::{Decision, Limiter, ManualClock, MemoryStats, MemoryStore, Micros, Request, Rules};

/// Requests between two sweeps, which a server does by the clock.
const SWEEP_EVERY: u64 = 1 << 20;

/// Decides requests of the past.
pub(super) struct Lane {
    clock: ManualClock,
    limiter: Limiter<MemoryStore<ManualClock>>,
    decided: u64,
    /// The most bytes its counts took, of those looked at.
    peak: usize,
}

impl Lane {
    /// Counts up to `max_keys` keys, as a server does.
    pub(super) fn new(rules: Rules, max_keys: usize) -> Self {
        let clock = ManualClock::default();
        let limiter = Limiter::new(MemoryStore::with_clock(clock.clone(), max_keys), rules);
        Lane { clock, limiter, decided: 0, peak: 0 }
    }

    /// Decides as a server would have at `at`, which must not lie before what was decided last.
    ///
    /// A decision is large: it is looked at where it is made.
    #[inline(always)]
    pub(super) fn decide<T>(
        &mut self,
        at: Micros,
        request: Request<'_>,
        look: impl FnOnce(&Decision) -> T,
    ) -> Result<T, String> {
        self.clock.set(at);
        self.decided += 1;
        if self.decided.is_multiple_of(SWEEP_EVERY) {
            self.sweep();
        }
        // Polled where it is made: it is large, too.
        let decided = pin!(self.limiter.acquire(request));
        match &decided.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(decision)) => Ok(look(decision)),
            Poll::Ready(Err(error)) => Err(error.to_string()),
            // In memory there is nothing to wait for.
            Poll::Pending => Err("the store is not ready".to_owned()),
        }
    }

    #[cold]
    fn sweep(&mut self) {
        self.peak = self.peak.max(self.stats().bytes);
        self.limiter.store().sweep();
    }

    pub(super) fn stats(&self) -> MemoryStats {
        self.limiter.store().stats()
    }

    /// The most bytes that its counts took.
    pub(super) fn bytes(&self) -> usize {
        self.peak.max(self.stats().bytes)
    }

    pub(super) fn rules(&self) -> std::sync::Arc<Rules> {
        self.limiter.rules()
    }
}

/// Virtual time, which never runs back: a line that is late is judged at the time of the latest before it.
#[derive(Debug, Default)]
pub(super) struct Time {
    pub(super) first: Option<Micros>,
    pub(super) latest: Micros,
    /// How many lines were late, and by how much at most.
    pub(super) late: u64,
    pub(super) latest_by: Micros,
    /// Whether any time is not a whole second.
    pub(super) fine: bool,
}

impl Time {
    /// When to judge a request of this time.
    #[inline]
    pub(super) fn reach(&mut self, at: Micros) -> Micros {
        self.first.get_or_insert(at);
        self.fine |= !at.get().is_multiple_of(1_000_000);
        if at < self.latest {
            self.late += 1;
            self.latest_by = self.latest_by.max(self.latest.since(at));
        } else {
            self.latest = at;
        }
        self.latest
    }
}
