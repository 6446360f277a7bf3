//! Announcements of `slidegate serve`: its addresses, that it is ready, and that it stops.
//!
//! With text logs, the start is a greeting for people on standard output. With JSON logs, it consists of events in the log, and
//! nothing is printed on standard output.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use slidegate::Micros;

use crate::app::readiness::Readiness;
use crate::app::state::AppState;
use crate::common::console::say;
use crate::store::AnyStore;

/// Interval at which a node that is not ready checks again.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Number of checks after which the node announces that it is not ready: usually the store answers a moment after the start.
const PATIENCE: u32 = 5;

/// Address of one listener.
pub(super) struct Listening {
    /// `http`, `grpc`, `resp` or `admin`.
    pub(super) protocol: &'static str,
    /// Scheme of its URL without TLS.
    pub(super) scheme: &'static str,
    pub(super) tls: bool,
    pub(super) address: SocketAddr,
}

impl fmt::Display for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Listening { scheme, tls, address, .. } = self;
        write!(f, "{scheme}{}://{address}", if *tls { "s" } else { "" })
    }
}

/// Announces the phases of a server.
#[derive(Clone, Copy)]
pub(super) struct Announcer {
    json: bool,
}

impl Announcer {
    pub(super) fn new(json: bool) -> Self {
        Announcer { json }
    }

    /// Announces the version, the rules, the store and all listeners.
    pub(super) fn started(self, listeners: &[Listening], store: &AnyStore, rules: &str, demo: bool) {
        let (version, store) = (env!("CARGO_PKG_VERSION"), store.location());
        if !self.json {
            say(&format!("slidegate {version}  rules: {rules}  store: {store}"));
            return greet(listeners, demo);
        }
        tracing::info!(event = "start", version, rules, store, "slidegate {version} starts");
        for listening in listeners {
            let Listening { protocol, tls, address, .. } = listening;
            let address = address.to_string();
            tracing::info!(event = "listen", protocol, address, tls, "listening on {listening}");
        }
    }

    /// Waits until the node can decide as configured, and announces that it is ready. Announces the reason if that takes a
    /// while.
    pub(super) async fn ready(self, app: Arc<AppState>) {
        let (mut checks, mut announced) = (0_u32, None);
        loop {
            match app.readiness().await {
                Readiness::Ready => return self.announce_ready(None),
                Readiness::Degraded(reason) => return self.announce_ready(Some(&reason)),
                Readiness::NotReady(reason) => {
                    checks += 1;
                    if checks >= PATIENCE && announced.as_ref() != Some(&reason) {
                        self.announce_not_ready(&reason);
                        announced = Some(reason);
                    }
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn announce_ready(self, degraded: Option<&str>) {
        if self.json {
            return tracing::info!(event = "ready", degraded, "ready");
        }
        if let Some(reason) = degraded {
            say(&format!("degraded: {reason}"));
        }
        say("ready");
    }

    fn announce_not_ready(self, reason: &str) {
        if self.json {
            return tracing::warn!(event = "not_ready", reason, "not ready: {reason}");
        }
        say(&format!("not ready: {reason}"));
    }

    /// Logs the signal that stops the server.
    pub(super) async fn log_signal(self, received: impl Future<Output = &'static str>) {
        let signal = received.await;
        tracing::info!(event = "signal", signal, "received {signal}: stopping");
    }

    /// Logs that the server has stopped.
    pub(super) fn stopped(self, uptime: Micros) {
        tracing::info!(event = "stopped", uptime_ms = uptime.ceil_millis(), "stopped");
    }
}

/// Prints the addresses, and calls to try.
fn greet(listeners: &[Listening], demo: bool) {
    for listening in listeners {
        say(&format!("listening on {listening}"));
    }
    let find = |protocol| listeners.iter().find(|listening| listening.protocol == protocol);
    if let Some(http) = find("http") {
        say(&format!("dashboard: {http}/"));
        let post = format!("curl -s {http}/v1/acquire -H 'content-type: application/json' -d");
        if demo {
            say("\ntry the login guard (the fourth request within five seconds is denied):");
            say(&format!(
                "  {post} '{{\"attributes\":{{\"api\":\"/login\",\"ip\":\"1.2.3.4\",\"user\":\"alice\"}}}}'"
            ));
        } else {
            say("\ntry it:");
            say(&format!("  curl -s {http}/v1/rules"));
        }
        say("or use an ad-hoc limit:");
        say(&format!("  {post} '{{\"resource\":\"user123\",\"limit\":10,\"window\":\"1s\"}}'"));
    }
    if let Some(resp) = find("resp") {
        say(&format!("  redis-cli -u {resp} SG.ACQUIRE user123 10 1000"));
    }
}
