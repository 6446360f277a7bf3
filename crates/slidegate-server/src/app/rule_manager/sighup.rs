//! SIGHUP, the signal that requests a reload of the rules.

use crate::common::console::warn;

/// Listener for SIGHUP. Never receives anything on systems without that signal.
pub(crate) struct Sighup {
    #[cfg(unix)]
    signal: Option<tokio::signal::unix::Signal>,
}

impl Sighup {
    /// Starts to listen. Before that, the signal ends the process.
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

    pub(crate) async fn received(&mut self) {
        #[cfg(unix)]
        if let Some(signal) = &mut self.signal
            && signal.recv().await.is_some()
        {
            return;
        }
        std::future::pending().await
    }
}
