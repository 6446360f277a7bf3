//! What a guard may be told.

use std::time::Duration;

use crate::{Error, Micros, OnError};

/// How long to wait for the store, when to stop asking it, and what to answer then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailoverOptions {
    /// How long a decision may take; after that it is made without the store.
    pub deadline: Duration,
    /// The most calls to the store at once; further decisions are made without it.
    pub max_in_flight: usize,
    /// What to answer without the store, for rules that do not say.
    pub on_error: OnError,
    /// How many processes share the limits, until a server has told.
    pub nodes: u32,
    /// After so many failures in a row a server is not asked any more.
    pub failures: u32,
    /// So many probes in a row must be answered before it is asked again.
    pub probes: u32,
    /// The wait before the first probe; it doubles with each that fails.
    pub first_pause: Duration,
    /// The longest wait between probes.
    pub longest_pause: Duration,
    /// The most admissions to remember, so that they can be written back; 0 remembers none.
    pub journal: usize,
    /// How often this process tells the others that it is there.
    pub heartbeat: Duration,
    /// How long to wait for the others to write back what they admitted.
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
    /// Says what is out of bounds, by the name the configuration file has for it.
    pub fn check(&self) -> Result<(), Error> {
        let (ms, minute) = (Duration::from_millis(1), Duration::from_secs(60));
        lasts("deadline", self.deadline, ms, minute)?;
        lasts("first-pause", self.first_pause, ms, minute)?;
        lasts("longest-pause", self.longest_pause, self.first_pause, minute)?;
        lasts("heartbeat", self.heartbeat, Duration::from_millis(50), minute)?;
        lasts("write-back", self.write_back, Duration::ZERO, minute)?;
        within("max-in-flight", self.max_in_flight, 1, 1_000_000)?;
        within("nodes", self.nodes as usize, 1, 10_000)?;
        within("failures", self.failures as usize, 1, 1_000)?;
        within("probes", self.probes as usize, 1, 1_000)?;
        within("journal", self.journal, 0, 1_000_000_000)
    }
}

pub(crate) fn within(name: &str, value: usize, min: usize, max: usize) -> Result<(), Error> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} must be between {min} and {max}, not {value}")))
}

pub(crate) fn lasts(name: &str, value: Duration, min: Duration, max: Duration) -> Result<(), Error> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let [min, max, value] = [min, max, value].map(Micros::from);
    Err(Error::invalid(format!("{name} must be between {min} and {max}, not {value}")))
}
