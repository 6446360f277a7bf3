//! The callers at work.
//!
//! Each takes the number of the next ask, so that a run asks the same whoever is quicker. In a closed loop it asks
//! at once. In an open loop the number says when the ask is due, and the time is taken from then on: an ask that had
//! to wait for a free caller is charged that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slidegate::{Clock, Micros, SystemClock};
use tokio::sync::watch;
use tokio::task::coop;

use super::counts::{Answer, Tallies};
use super::keys::Keys;
use super::schedule::Schedule;
use super::target::Caller;

/// Later than this, in microseconds, is late.
pub(super) const LATE: u64 = 1_000;

/// How long a caller of a closed loop waits after an error: a server that is gone is not asked a million times.
const AFTER_ERROR: Micros = Micros::from_millis(10);

/// What the callers are to do, in the order in which it may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Signal {
    /// Go on.
    Checks,
    /// Finish what was asked.
    Finish,
    /// What is not answered now is an error.
    GiveUp,
}

/// What the callers share.
pub(super) struct Load {
    pub(super) clock: SystemClock,
    pub(super) keys: Keys,
    pub(super) schedule: Schedule,
    pub(super) tallies: Tallies,
    /// The next ask that counts, or of an open loop the next at all.
    next: AtomicU64,
    /// The next of a closed loop's warm-up.
    next_warm: AtomicU64,
}

impl Load {
    pub(super) fn new(clock: SystemClock, keys: Keys, schedule: Schedule, tallies: Tallies) -> Self {
        Load { clock, keys, schedule, tallies, next: AtomicU64::new(0), next_warm: AtomicU64::new(0) }
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.now().get()
    }

    /// One caller's part, until the schedule ends or `signal` says so.
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
                // What the warm-up could not send is not what is measured.
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
                // What is due but could not be sent by the end is reckoned by the summary.
                if schedule.over(now) {
                    return;
                }
                now - due > LATE
            };
            if late && counted.is_some() {
                tallies.of(self.number).lock().late += 1;
            }
            // Nothing follows from its answer: the next ask is due when it is due.
            let _ = self.ask(counted.unwrap_or(arrival), due, counted.is_some()).await;
            rest().await;
        }
    }

    /// Asks, and counts what it was answered if it `counts`; `since` is when it should have been asked.
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

    /// False if it was woken to finish.
    async fn sleep(&mut self, wait: Micros) -> bool {
        tokio::select! {
            () = self.load.clock.sleep(wait) => true,
            _ = self.signal.wait_for(|signal| *signal > Signal::Checks) => false,
        }
    }
}

/// Lets another caller have its turn now and then, which a store in memory, always ready, would never do. Not left
/// to the awaits of an ask: it would be charged for the turns of all others.
async fn rest() {
    coop::consume_budget().await;
    if !coop::has_budget_remaining() {
        tokio::task::yield_now().await;
    }
}
