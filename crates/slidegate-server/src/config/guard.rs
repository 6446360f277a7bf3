//! The `guard` section of the file: failover when Redis does not answer.

use std::time::Duration;

use slidegate::{Micros, OnError, redis::FailoverOptions};

const MILLISECOND: Micros = Micros::from_millis(1);
const MINUTE: Micros = Micros::from_secs(60);

slidegate::section! {
    /// Failover when Redis does not answer.
    pub(super) struct Guard("Guard", base: FailoverOptions::default(), check: FailoverOptions::check) for FailoverOptions {
        /// Longest time that a decision waits for Redis.
        deadline: Duration { lasting(MILLISECOND, MINUTE) },
        /// Answer without Redis, for rules that do not set `on-error` themselves.
        on_error: OnError,
        /// Number of nodes that share the limits, assumed until the first heartbeat.
        nodes: u32 { between(1, 10_000) },
        /// Number of consecutive failures after which a server is no longer called.
        failures: u32 { between(1, 1_000) },
        /// Number of consecutive probes that must succeed before a server is called again.
        probes: u32 { between(1, 1_000) },
        /// Pause before the first probe. It doubles after each probe that fails.
        first_pause: Duration { lasting(MILLISECOND, MINUTE) },
        /// Longest pause between probes: at least the first.
        longest_pause: Duration { lasting(MILLISECOND, MINUTE) },
        /// Upper bound on admissions that are remembered for writing back; 0 remembers none.
        journal: usize { between(0, 1_000_000_000) },
        /// Interval between two heartbeats of this node.
        heartbeat: Duration { lasting(Micros::from_millis(50), MINUTE) },
        /// Time to wait for other nodes to write back their admissions.
        write_back: Duration { lasting(Micros::ZERO, MINUTE) },
    }
}
