//! Helper: response times of callers, less the time in which the machine ran nothing of the test.
//!
//! A watchdog sleeps a millisecond at a time in the runtime of the callers. When it wakes late, nothing in the
//! runtime ran meanwhile, so no answer that was due then could be given: that much is not counted against it. Run it
//! in a runtime of one thread, or another thread may run while the watchdog's does not. It cannot tell a machine that
//! is busy from a failover store that keeps its thread busy; so the uncorrected figures and the longest stall are printed too.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slidegate::{Clock, SystemClock};

use crate::deployment::CallRecord;

const NAP: Duration = Duration::from_millis(1);
/// A timer of one millisecond fires up to two late. Longer is a stall.
const STALL: u64 = 2_000;

/// Start and end of a stall, in which nothing ran.
type Stalls = Vec<(u64, u64)>;

pub(crate) struct Watchdog {
    stalls: Arc<Mutex<Stalls>>,
    task: tokio::task::JoinHandle<()>,
}

impl Watchdog {
    /// By the clock of the callers.
    pub(crate) fn start(clock: &SystemClock) -> Self {
        let stalls = Arc::<Mutex<Stalls>>::default();
        let task = tokio::spawn({
            let (stalls, clock) = (Arc::clone(&stalls), clock.clone());
            async move {
                loop {
                    let due = clock.now().get() + NAP.as_micros() as u64;
                    tokio::time::sleep(NAP).await;
                    let woke = clock.now().get();
                    if woke > due + STALL {
                        stalls.lock().unwrap_or_else(PoisonError::into_inner).push((due, woke));
                    }
                }
            }
        });
        Watchdog { stalls, task }
    }

    /// Waits until the watchdog has recorded a stall that has just ended: another task may wake first.
    pub(crate) async fn catch_up(&self) {
        tokio::time::sleep(5 * NAP).await;
    }

    /// Returns the time between two instants, without stalls.
    pub(crate) fn between(&self, from: u64, to: u64) -> Duration {
        let stalls = self.stalls.lock().unwrap_or_else(PoisonError::into_inner);
        let first = stalls.partition_point(|(_, woke)| *woke <= from);
        let stalled = stalls[first..].iter().take_while(|(due, _)| *due < to);
        let stalled: u64 = stalled.map(|(due, woke)| woke.min(&to) - due.max(&from)).sum();
        Duration::from_micros(to - from - stalled)
    }

    pub(crate) fn latency<'t>(&self, calls: impl Iterator<Item = &'t CallRecord>) -> Latency {
        let mut took: Vec<(u64, Duration)> = calls
            .map(|call| (call.answered - call.started, self.between(call.started, call.answered)))
            .collect();
        took.sort_unstable();
        let at = |part: f64| {
            let micros =
                took.get((took.len() as f64 * part) as usize).or(took.last()).map_or(0, |took| took.0);
            Duration::from_micros(micros)
        };
        let stalls = self.stalls.lock().unwrap_or_else(PoisonError::into_inner);
        Latency {
            answers: took.len(),
            median: at(0.5),
            p99: at(0.99),
            max: at(1.0),
            corrected: took.iter().map(|(_, corrected)| *corrected).max().unwrap_or_default(),
            stall: Duration::from_micros(stalls.iter().map(|(due, woke)| woke - due).max().unwrap_or(0)),
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) struct Latency {
    pub answers: usize,
    pub median: Duration,
    pub p99: Duration,
    pub max: Duration,
    /// The longest, without stalls.
    pub corrected: Duration,
    /// The longest stall.
    pub stall: Duration,
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latency { answers, median, p99, max, corrected, stall } = self;
        write!(
            f,
            "{answers} answers, median {median:?}, p99 {p99:?}, max {max:?}, {corrected:?} without stalls of up to \
             {stall:?}"
        )
    }
}
