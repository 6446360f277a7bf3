//! Options of [`Failover`](super::Failover), with their defaults and bounds.

use std::time::Duration;

use crate::error::check_between;
use crate::{Error, Micros, OnError};

/// Deadlines, circuit breaker, fallback policy and journal size of a [`Failover`](crate::Failover).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailoverOptions {
    /// Longest time a decision may take. After this time the node decides without the store.
    pub deadline: Duration,
    /// Maximum number of calls to the store at once. Further decisions are made without the store.
    pub max_in_flight: usize,
    /// Fallback policy for rules that set none.
    pub on_error: OnError,
    /// Number of nodes that share the limits, assumed until the first heartbeat.
    pub nodes: u32,
    /// Number of failures in a row after which the circuit breaker of a server opens.
    pub failures: u32,
    /// Number of answered probes in a row after which the circuit breaker closes.
    pub probes: u32,
    /// Pause before the first probe. It doubles with each probe that fails.
    pub first_pause: Duration,
    /// Longest pause between probes.
    pub longest_pause: Duration,
    /// Maximum number of admissions in the journal, from which they are written back. 0 turns the journal off.
    pub journal: usize,
    /// Interval between the heartbeats of this node.
    pub heartbeat: Duration,
    /// Longest wait for the other nodes to write their admissions back.
    pub write_back: Duration,
}

impl Default for FailoverOptions {
    fn default() -> Self {
        FailoverOptions {
            deadline: Duration::from_millis(50),
            max_in_flight: 4_096,
            on_error: OnError::default(),
            nodes: 1,
            failures: 5,
            probes: 2,
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_millis(500),
            journal: 4_000_000,
            heartbeat: Duration::from_secs(1),
            write_back: Duration::from_secs(2),
        }
    }
}

impl FailoverOptions {
    /// Returns an error that names the option which is out of bounds, as the configuration file spells it.
    pub fn check(&self) -> Result<(), Error> {
        let (ms, minute) = (Duration::from_millis(1), Duration::from_secs(60));
        check_duration("deadline", self.deadline, ms, minute)?;
        check_duration("first-pause", self.first_pause, ms, minute)?;
        check_duration("longest-pause", self.longest_pause, self.first_pause, minute)?;
        check_duration("heartbeat", self.heartbeat, Duration::from_millis(50), minute)?;
        check_duration("write-back", self.write_back, Duration::ZERO, minute)?;
        check_between("max-in-flight", self.max_in_flight, 1, 1_000_000)?;
        check_between("nodes", self.nodes, 1, 10_000)?;
        check_between("failures", self.failures, 1, 1_000)?;
        check_between("probes", self.probes, 1, 1_000)?;
        check_between("journal", self.journal, 0, 1_000_000_000)
    }
}

pub(crate) fn check_duration(name: &str, value: Duration, min: Duration, max: Duration) -> Result<(), Error> {
    let within = (min..=max).contains(&value);
    let [min, max, value] = [min, max, value].map(Micros::from);
    ensure!(within, "{name} must be between {min} and {max}, not {value}");
    Ok(())
}
