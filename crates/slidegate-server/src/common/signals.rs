//! Signals that end the process.

use std::future::Future;

/// Completes on Ctrl-C or SIGTERM. Signals are caught from the moment of this call.
pub(crate) fn signalled() -> impl Future<Output = ()> + Send {
    let received = received();
    async {
        received.await;
    }
}

/// Completes on Ctrl-C or SIGTERM, with the name of the signal. Signals are caught from the moment of this call, so the
/// server can announce that it runs right after it.
pub(crate) fn received() -> impl Future<Output = &'static str> + Send {
    #[cfg(unix)]
    let signals = {
        use tokio::signal::unix::{SignalKind, signal};
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    };
    async move {
        #[cfg(unix)]
        if let (Ok(mut interrupt), Ok(mut terminate)) = signals {
            return tokio::select! {
                _ = interrupt.recv() => "SIGINT",
                _ = terminate.recv() => "SIGTERM",
            };
        }
        let _ = tokio::signal::ctrl_c().await;
        "Ctrl-C"
    }
}
