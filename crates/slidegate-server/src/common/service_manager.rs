//! Notifications to the service manager, such as systemd with `Type=notify`: over the socket in `NOTIFY_SOCKET`. Without that
//! variable, nothing is sent. A notification that cannot be sent is not an error of the server, so it is only logged.

use std::time::Duration;

#[cfg(unix)]
use sd_notify::NotifyState;

/// The server is ready, or has finished a reload.
pub(crate) fn ready() {
    #[cfg(unix)]
    notify(&[NotifyState::Ready]);
}

/// The server reloads its rules. [`ready`] must follow.
pub(crate) fn reloading() {
    #[cfg(unix)]
    {
        // `Type=notify-reload` compares this time with that of its signal.
        let now = NotifyState::monotonic_usec_now().ok();
        let states: Vec<NotifyState<'_>> = [NotifyState::Reloading].into_iter().chain(now).collect();
        notify(&states);
    }
}

/// The server stops.
pub(crate) fn stopping() {
    #[cfg(unix)]
    notify(&[NotifyState::Stopping]);
}

/// Sends keep-alive messages as long as the process runs, if the service manager has a watchdog: two in each interval
/// of the watchdog.
pub(crate) async fn feed_watchdog() {
    let Some(interval) = watchdog_interval() else { return };
    loop {
        #[cfg(unix)]
        notify(&[NotifyState::Watchdog]);
        tokio::time::sleep(interval / 2).await;
    }
}

fn watchdog_interval() -> Option<Duration> {
    #[cfg(unix)]
    let interval = sd_notify::watchdog_enabled();
    #[cfg(not(unix))]
    let interval: Option<Duration> = None;
    interval.filter(|interval| !interval.is_zero())
}

#[cfg(unix)]
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}
