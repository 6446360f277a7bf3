//! The `guard` section of the file: failover when Redis does not answer.

use std::time::Duration;

use slidegate::{Micros, OnError, redis::FailoverOptions};

const MILLISECOND: Micros = Micros::from_millis(1);
const MINUTE: Micros = Micros::from_secs(60);

slidegate::section! {
    /// Decisions while Redis does not answer.
    pub(super) struct Guard("Guard", base: FailoverOptions::default(), check: FailoverOptions::check) for FailoverOptions {
        /// Upper bound on the time that a decision waits for Redis.
        deadline: Duration { lasting(MILLISECOND, MINUTE) },
        /// Decision while Redis does not answer, for rules without their own `on-error`.
        on_error: OnError,
        /// Number of nodes that this node assumes until its first heartbeat in Redis. If Redis does not answer at the
        /// start, the node computes its share of the limits from this number. Set it to the number of your nodes: with
        /// the default, each of them would admit the whole limit.
        nodes: u32 { between(1, 10_000) },
        /// Number of consecutive failures after which the node stops calling a Redis server.
        failures: u32 { between(1, 1_000) },
        /// Number of consecutive probes that must succeed before the node calls the server again.
        probes: u32 { between(1, 1_000) },
        /// Pause before the first probe. It doubles after each probe that fails.
        first_pause: Duration { lasting(MILLISECOND, MINUTE) },
        /// Upper bound on the pause between probes. It must be at least `first-pause`.
        longest_pause: Duration { lasting(MILLISECOND, MINUTE) },
        /// Upper bound on the admissions that the node keeps in order to write them back to Redis. With 0 it keeps
        /// none.
        journal: usize { between(0, 1_000_000_000) },
        /// Interval between two heartbeats of this node. The nodes count each other by their heartbeats in Redis.
        heartbeat: Duration { lasting(Micros::from_millis(50), MINUTE) },
        /// Upper bound on the time that the node waits, after an outage, until the other nodes have written back
        /// their admissions.
        write_back: Duration { lasting(Micros::ZERO, MINUTE) },
    }
}
