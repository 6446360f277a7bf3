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
pub async fn run(doors: Listeners, gate: Arc<AppState>, shutdown: impl Future<Output = ()>) {
    let (stop, stopped) = watch::channel(());
    let shutdown_limit = gate.settings.limits.shutdown;
    let Listeners { http, grpc, resp, admin, tls } = doors;
    let separate = admin.is_some();
    if let Some(listener) = http {
        let door =
            http::ConnectionHandler::new(Arc::clone(&gate), http::Role::Asking { may_change: !separate });
        tokio::spawn(listener::accept(listener, Arc::new(door), tls.clone(), stopped.clone()));
    }
    if let Some(listener) = admin {
        let door = http::ConnectionHandler::new(Arc::clone(&gate), http::Role::Admin);
        tokio::spawn(listener::accept(listener, Arc::new(door), tls.clone(), stopped.clone()));
    }
    if let Some(listener) = grpc {
        let door = grpc::ConnectionHandler::new(Arc::clone(&gate), stopped.clone());
        tokio::spawn(listener::accept(listener, Arc::new(door), tls.clone(), stopped.clone()));
    }
    if let Some(listener) = resp {
        let door = resp::ConnectionHandler::new(Arc::clone(&gate));
        tokio::spawn(listener::accept(listener, Arc::new(door), tls, stopped.clone()));
    }
    drop(stopped);
    let beating = tokio::spawn(http::live_stats::beat(Arc::clone(&gate)));
    shutdown.await;
    let _ = stop.send(());
    gate.export.live.stop();
    gate.stats.recorder.end_streams();
    // Whatever is still open then belongs to a client that does not read.
    let _ = tokio::time::timeout(shutdown_limit, stop.closed()).await;
    beating.abort();
}
