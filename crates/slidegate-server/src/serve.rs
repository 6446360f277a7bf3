//! Listening, and stopping without losing an answer.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use slidegate::Limiter;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;

use crate::http;
use crate::store::AnyStore;

/// What a client may take of the server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long the head of a request may take to arrive, and how long a connection may idle.
    pub head: Duration,
    /// How long a request may take to arrive whole, and a client to read any part of its answer.
    pub request: Duration,
    /// How long what is in flight may take after the signal to stop.
    pub shutdown: Duration,
    /// The most connections at once; the next wait to be accepted.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            head: Duration::from_secs(30),
            request: Duration::from_secs(10),
            shutdown: Duration::from_secs(10),
            connections: 10_000,
        }
    }
}

/// Answers HTTP on `listener` until `shutdown` completes, then finishes what is in flight.
pub async fn run(
    listener: TcpListener,
    limiter: Arc<Limiter<AnyStore>>,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let router = TowerToHyperService::new(http::router(limiter, limits.request));
    let connections = Arc::new(Semaphore::new(limits.connections));
    let graceful = GracefulShutdown::new();
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(64 << 10);
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accept = async {
            // The semaphore is never closed.
            let permit = Arc::clone(&connections).acquire_owned().await.ok();
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            accepted = accept => accepted,
            () = &mut shutdown => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            // Out of file descriptors, or a client that left already: neither is a reason to stop.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        // Answers are small and complete: there is nothing to wait for.
        let _ = stream.set_nodelay(true);
        // A client that does not read its answer is given up as well.
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(limits.request));
        let connection =
            graceful.watch(server.serve_connection(TokioIo::new(Box::pin(stream)), router.clone()));
        tokio::spawn(async move {
            // What goes wrong on a connection is its client's affair.
            let _ = connection.await;
            drop(permit);
        });
    }
    drop(listener);
    // Whatever is still open then belongs to a client that does not read.
    let _ = tokio::time::timeout(limits.shutdown, graceful.shutdown()).await;
    Ok(())
}

/// Completes on Ctrl-C or SIGTERM.
pub async fn signalled() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}
