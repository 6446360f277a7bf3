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

use super::counts::{Answer, Tallies};
use super::keys::Keys;
use super::schedule::Schedule;
use super::target::Caller;

/// Delay beyond which a request counts as late, in microseconds.
pub(super) const LATE: u64 = 1_000;

/// Pause of a closed-loop caller after an error, so that an unreachable server does not receive a million requests.
const AFTER_ERROR: Micros = Micros::from_millis(10);

/// Command to all callers, in the order in which it may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Signal {
    /// Send requests.
    Checks,
    /// Finish the current request.
    Finish,
    /// Treat the current request as an error.
    GiveUp,
}

/// State that all callers share.
pub(super) struct Load {
    pub(super) clock: SystemClock,
    pub(super) keys: Keys,
    pub(super) schedule: Schedule,
    pub(super) tallies: Tallies,
    /// Number of the next measured request; in an open loop, of the next request at all.
    next: AtomicU64,
    /// Number of the next warm-up request of a closed loop.
    next_warm: AtomicU64,
}

impl Load {
    pub(super) fn new(clock: SystemClock, keys: Keys, schedule: Schedule, tallies: Tallies) -> Self {
        Load { clock, keys, schedule, tallies, next: AtomicU64::new(0), next_warm: AtomicU64::new(0) }
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
        let mut worker = Worker { load: &self, caller, number, signal };
        match self.schedule.rate() {
            None => worker.closed().await,
            Some(rate) => worker.open(rate).await,
        }
    }
}

struct Worker<'l> {
    load: &'l Load,
    caller: Caller,
    number: usize,
    signal: watch::Receiver<Signal>,
}

impl Worker<'_> {
    async fn closed(&mut self) {
        let Load { schedule, next, next_warm, .. } = self.load;
        loop {
            let now = self.load.now();
            if schedule.over(now) {
                return;
            }
            let counts = now >= schedule.counted();
            let n = (if counts { next } else { next_warm }).fetch_add(1, Ordering::Relaxed);
            if counts && schedule.enough(n) {
                return;
            }
            let failed = self.ask(n, now, counts).await.is_err();
            if failed && !self.sleep(AFTER_ERROR).await {
                return;
            }
            rest().await;
        }
    }

    async fn open(&mut self, rate: u64) {
        let Load { schedule, tallies, .. } = self.load;
        let warm_up = schedule.warm_up(rate);
        loop {
            let arrival = self.load.next.fetch_add(1, Ordering::Relaxed);
            let due = schedule.due(arrival, rate);
            let counted = arrival.checked_sub(warm_up);
            if schedule.over(due) || counted.is_some_and(|n| schedule.enough(n)) {
                return;
            }
            let now = self.load.now();
            if counted.is_none() && now >= schedule.counted() {
                // Requests that the warm-up could not send are not measured.
                self.load.next.fetch_max(warm_up, Ordering::Relaxed);
                continue;
            }
            let late = if now < due {
                if !self.sleep(Micros::new(due - now)).await {
                    return;
                }
                let woke_late = self.load.now().saturating_sub(due);
                if counted.is_some() {
                    tallies.of(self.number).lock().woke_late.saturating_record(woke_late);
                }
                false
            } else {
                // The summary accounts for requests that were due but could not be sent by the end.
                if schedule.over(now) {
                    return;
                }
                now - due > LATE
            };
            if late && counted.is_some() {
                tallies.of(self.number).lock().late += 1;
            }
            // The result does not matter here: the next request is due at its own time.
            let _ = self.ask(counted.unwrap_or(arrival), due, counted.is_some()).await;
            rest().await;
        }
    }

    /// Sends the n-th request, and counts its result if `measured`. `since` is the time at which it was due.
    async fn ask(&mut self, n: u64, since: u64, counts: bool) -> Result<(), ()> {
        let key = self.load.keys.of(n);
        let answer: Result<Answer, String> = tokio::select! {
            biased;
            answer = self.caller.ask(key) => answer,
            // The sender outlives the callers.
            _ = self.signal.wait_for(|signal| *signal == Signal::GiveUp) => {
                Err("no answer yet when it was stopped".to_owned())
            }
        };
        if counts {
            let now = self.load.now();
            self.load.tallies.of(self.number).lock().record(&answer, now.saturating_sub(since), now);
        }
        answer.map(drop).map_err(drop)
    }

    /// Sleeps. Returns false if a signal ended the sleep.
    async fn sleep(&mut self, wait: Micros) -> bool {
        tokio::select! {
            () = self.load.clock.sleep(wait) => true,
            _ = self.signal.wait_for(|signal| *signal > Signal::Checks) => false,
        }
    }
}

/// Yields to other callers now and then, which a memory store, always ready, would never do. It runs between requests,
/// because a yield inside a request would add the turns of all other callers to its latency.
async fn rest() {
    coop::consume_budget().await;
    if !coop::has_budget_remaining() {
        tokio::task::yield_now().await;
    }
}
