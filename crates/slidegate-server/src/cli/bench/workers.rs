//! Callers of a run.
//!
//! Each caller takes the number of the next request, so that a run sends the same requests whichever caller is faster.
//! In a closed loop it sends the request at once. In an open loop the number determines when the request is due, and
//! its latency is measured from then on: a request that had to wait for a free caller includes that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slidegate::{Clock, Micros, SystemClock};
use tokio::sync::watch;
use tokio::task::coop;

use super::counts::{Outcome, ShardedCounts};
use super::keys::Keys;
use super::schedule::Schedule;
use super::target::Caller;

/// Delay beyond which a request counts as late, in microseconds.
pub(super) const LATE_MICROS: u64 = 1_000;

/// Pause of a closed-loop caller after an error, so that an unreachable server does not receive a million requests.
const ERROR_PAUSE: Micros = Micros::from_millis(10);

/// Command to all callers, in the order in which it may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Signal {
    /// Send requests.
    Continue,
    /// Finish the current request.
    Finish,
    /// Treat the current request as an error.
    GiveUp,
}

/// State that all callers share.
pub(super) struct SharedState {
    pub(super) clock: SystemClock,
    pub(super) keys: Keys,
    pub(super) schedule: Schedule,
    pub(super) counts: ShardedCounts,
    /// Number of the next measured request; in an open loop, of the next request at all.
    next: AtomicU64,
    /// Number of the next warm-up request of a closed loop.
    next_warm_up: AtomicU64,
}

impl SharedState {
    pub(super) fn new(clock: SystemClock, keys: Keys, schedule: Schedule, counts: ShardedCounts) -> Self {
        let (next, next_warm_up) = Default::default();
        SharedState { clock, keys, schedule, counts, next, next_warm_up }
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.now().get()
    }

    /// Runs one caller until the schedule or `signal` ends it.
    pub(super) async fn work(
        self: Arc<Self>,
        caller: Caller,
        number: usize,
        signal: watch::Receiver<Signal>,
    ) {
        let mut worker = Worker { shared: &self, caller, number, signal };
        match self.schedule.rate {
            None => worker.run_closed_loop().await,
            Some(rate) => worker.run_open_loop(rate).await,
        }
    }
}

struct Worker<'l> {
    shared: &'l SharedState,
    caller: Caller,
    number: usize,
    signal: watch::Receiver<Signal>,
}

impl Worker<'_> {
    async fn run_closed_loop(&mut self) {
        let SharedState { schedule, next, next_warm_up, .. } = self.shared;
        loop {
            let now = self.shared.now();
            if schedule.ended(now) {
                return;
            }
            let measured = now >= schedule.measured_from;
            let n = (if measured { next } else { next_warm_up }).fetch_add(1, Ordering::Relaxed);
            if measured && schedule.exceeds(n) {
                return;
            }
            let failed = self.send(n, now, measured).await.is_err();
            if failed && !self.sleep(ERROR_PAUSE).await {
                return;
            }
            yield_turn().await;
        }
    }

    async fn run_open_loop(&mut self, rate: u64) {
        let SharedState { schedule, counts, .. } = self.shared;
        let warm_up = schedule.warm_up(rate);
        loop {
            let arrival = self.shared.next.fetch_add(1, Ordering::Relaxed);
            let due = schedule.due(arrival, rate);
            let measured = arrival.checked_sub(warm_up);
            if schedule.ended(due) || measured.is_some_and(|n| schedule.exceeds(n)) {
                return;
            }
            let now = self.shared.now();
            if measured.is_none() && now >= schedule.measured_from {
                // Requests that the warm-up could not send are not measured.
                self.shared.next.fetch_max(warm_up, Ordering::Relaxed);
                continue;
            }
            let late = if now < due {
                if !self.sleep(Micros::new(due - now)).await {
                    return;
                }
                let woke_late = self.shared.now().saturating_sub(due);
                if measured.is_some() {
                    counts.of(self.number).lock().woke_late.saturating_record(woke_late);
                }
                false
            } else {
                // The summary accounts for requests that were due but could not be sent by the end.
                if schedule.ended(now) {
                    return;
                }
                now - due > LATE_MICROS
            };
            if late && measured.is_some() {
                counts.of(self.number).lock().late += 1;
            }
            // The result does not matter here: the next request is due at its own time.
            let _ = self.send(measured.unwrap_or(arrival), due, measured.is_some()).await;
            yield_turn().await;
        }
    }

    /// Sends the n-th request, and counts its result if `measured`. `since` is the time at which it was due.
    async fn send(&mut self, n: u64, since: u64, measured: bool) -> Result<(), ()> {
        let key = self.shared.keys.of(n);
        let answer: Result<Outcome, String> = tokio::select! {
            biased;
            answer = self.caller.acquire(key) => answer,
            // The sender outlives the callers.
            _ = self.signal.wait_for(|signal| *signal == Signal::GiveUp) => {
                Err("no answer before the end of the run".to_owned())
            }
        };
        if measured {
            let now = self.shared.now();
            self.shared.counts.of(self.number).lock().record(&answer, now.saturating_sub(since), now);
        }
        answer.map(drop).map_err(drop)
    }

    /// Sleeps. Returns false if a signal ended the sleep.
    async fn sleep(&mut self, wait: Micros) -> bool {
        tokio::select! {
            () = self.shared.clock.sleep(wait) => true,
            _ = self.signal.wait_for(|signal| *signal > Signal::Continue) => false,
        }
    }
}

/// Yields to other callers at intervals. A memory store is always ready, so its callers would never yield otherwise.
/// The yield is between requests: inside a request it would add the time of all other callers to the latency.
async fn yield_turn() {
    coop::consume_budget().await;
    if !coop::has_budget_remaining() {
        tokio::task::yield_now().await;
    }
}
