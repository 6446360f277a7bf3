//! Being asked to look again.

use crate::common::console::warn;

/// SIGHUP, where there is such a thing.
pub(crate) struct Sighup {
    #[cfg(unix)]
    signal: Option<tokio::signal::unix::Signal>,
}

impl Sighup {
    /// From now on: before that, the signal ends the process.
    pub(crate) fn new() -> Self {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let signal = signal(SignalKind::hangup());
            if let Err(error) = &signal {
                warn(&format!("cannot listen for SIGHUP: {error}"));
            }
            Sighup { signal: signal.ok() }
        }
        #[cfg(not(unix))]
        Sighup {}
    }

    pub(crate) async fn asked(&mut self) {
        #[cfg(unix)]
        if let Some(signal) = &mut self.signal
            && signal.recv().await.is_some()
        {
            return;
        }
        std::future::pending().await
    }
}
