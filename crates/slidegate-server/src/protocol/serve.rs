//! Opening the doors, and closing them without losing an answer.

use std::future::Future;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;

use super::tls::Tls;
use super::{grpc, http, listener, resp};
use crate::app::state::AppState;

/// Where each door listens; none is closed.
#[derive(Default)]
pub struct Listeners {
    /// HTTP.
    pub http: Option<TcpListener>,
    /// gRPC: Envoy's rate-limit service.
    pub grpc: Option<TcpListener>,
    /// The Redis protocol.
    pub resp: Option<TcpListener>,
    /// HTTP for those who may change things: whoever reaches it needs a token only if there is one.
    pub admin: Option<TcpListener>,
    /// Encrypts them all.
    pub tls: Option<Arc<Tls>>,
}

/// Answers at all doors until `shutdown` completes, then finishes what is in flight.
pub async fn run(listeners: Listeners, app: Arc<AppState>, shutdown: impl Future<Output = ()>) {
    let (stop, stopped) = watch::channel(());
    let shutdown_limit = app.limits.shutdown;
    let Listeners { http, grpc, resp, admin, tls } = listeners;
    let has_admin_listener = admin.is_some();
    if let Some(listener) = http {
        let handler = http::ConnectionHandler::new(
            Arc::clone(&app),
            http::Role::Api { allows_changes: !has_admin_listener },
        );
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
    let _ = stop.send(());
    app.live.stop();
    app.record.recorder.end_streams();
    // Whatever is still open then belongs to a client that does not read.
    let _ = tokio::time::timeout(shutdown_limit, stop.closed()).await;
    stats_task.abort();
}
