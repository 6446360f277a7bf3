//! Starts all listeners, and shuts them down without losing a response.

use std::future::Future;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;

use slidegate::Micros;

use super::tls::Tls;
use super::{grpc, http, listener, resp};
use crate::app::state::AppState;
use crate::common::protocol::Protocol;

/// Listening socket of each protocol. A protocol without a socket is disabled.
#[derive(Default)]
pub struct Listeners {
    /// HTTP API.
    pub http: Option<TcpListener>,
    /// gRPC, for Envoy's rate limit service.
    pub grpc: Option<TcpListener>,
    /// Redis protocol (RESP).
    pub resp: Option<TcpListener>,
    /// Administrative HTTP API. It requires an admin token only if one is configured.
    pub admin: Option<TcpListener>,
    /// TLS configuration for all listeners; `None` serves plain text.
    pub tls: Option<Arc<Tls>>,
}

/// Serves all protocols until `shutdown` completes. Then the node is not ready any more; after `shutdown.delay` the listeners
/// close, and the requests in flight are finished.
pub async fn run(listeners: Listeners, app: Arc<AppState>, shutdown: impl Future<Output = ()>) {
    let (stop, stopped) = watch::channel(());
    let Listeners { http, grpc, resp, admin, tls } = listeners;
    if let Some(listener) = http {
        let role = http::Role::Api { allows_changes: admin.is_none() };
        let handler = http::ConnectionHandler::new(Arc::clone(&app), role);
        tokio::spawn(listener::accept(listener, Arc::new(handler), tls.clone(), stopped.clone()));
    }
    if let Some(listener) = admin {
        let handler = http::ConnectionHandler::new(Arc::clone(&app), http::Role::Admin);
        tokio::spawn(listener::accept(listener, Arc::new(handler), tls.clone(), stopped.clone()));
    }
    if let Some(listener) = grpc {
        let handler = grpc::ConnectionHandler::new(Arc::clone(&app), stopped.clone());
        tokio::spawn(listener::accept(listener, Arc::new(handler), tls.clone(), stopped.clone()));
    }
    if let Some(listener) = resp {
        let handler = resp::ConnectionHandler::new(Arc::clone(&app));
        tokio::spawn(listener::accept(listener, Arc::new(handler), tls, stopped.clone()));
    }
    drop(stopped);
    let stats_task = tokio::spawn(http::live_stats::publish_every_second(Arc::clone(&app)));
    shutdown.await;
    app.drain();
    let delay = app.settings.shutdown.delay;
    if !delay.is_zero() {
        let delay_text = Micros::from(delay);
        tracing::info!(event = "draining", "not ready any more: the listeners close in {delay_text}");
        tokio::time::sleep(delay).await;
    }
    let _ = stop.send(());
    app.export.live.stop();
    app.stats.recorder.end_streams();
    let open = || -> usize { Protocol::ALL.iter().map(|protocol| app.stats.connections(*protocol)).sum() };
    tracing::info!(event = "listeners_closed", "listeners closed: open connections: {}", open());
    let timeout = app.settings.shutdown.request_timeout();
    if tokio::time::timeout(timeout, stop.closed()).await.is_ok() {
        tracing::info!(event = "connections_closed", "all requests are answered");
    } else {
        // A connection is still open if its client does not read the response, or sends a request slowly.
        let (open, timeout) = (open(), Micros::from(timeout));
        tracing::warn!(
            event = "connections_cut",
            "closing connections that are still open after {timeout}: {open}"
        );
    }
    stats_task.abort();
}
