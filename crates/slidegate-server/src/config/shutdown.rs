//! The `shutdown` section of the file: how the server stops.

use std::time::Duration;

use slidegate::Micros;

const HOUR: Micros = Micros::from_secs(3_600);

/// Longest time for the last steps: returning leases, leaving the other nodes, closing recordings.
const MAX_LEAVE: Duration = Duration::from_secs(2);

slidegate::section! {
    /// Shutdown of the server after SIGTERM or Ctrl-C. A second signal ends the process at once.
    pub struct ShutdownConfig("Shutdown") {
        /// Time between the signal and the closing of the listeners. The server still accepts requests, but `/readyz`
        /// answers 503 and the health service of gRPC answers NOT_SERVING, so that load balancers stop sending requests.
        delay: Duration { lasting(Micros::ZERO, HOUR) } = Duration::ZERO,
        /// Time limit for the steps after the listeners are closed: the server answers the requests in flight,
        /// returns its leased permits, and tells the other nodes that it stops.
        timeout: Duration { lasting(Micros::from_millis(10), HOUR) } = Duration::from_secs(10),
    }
}

impl ShutdownConfig {
    /// Time limit for requests in flight. The rest of `timeout` is for leaving.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.timeout - self.leave_timeout()
    }

    /// Time limit for leaving, after the requests.
    pub(crate) fn leave_timeout(&self) -> Duration {
        (self.timeout / 4).min(MAX_LEAVE)
    }
}
