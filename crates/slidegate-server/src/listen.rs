//! Accepting connections for a door: how many, encrypted or not, and stopping without losing an answer.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::gate::Gate;
use crate::tls::{Protocol, Tls};

/// What a client may take of the server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long the head of a request may take to arrive, and how long a connection may idle.
    pub head: Duration,
    /// How long a request may take to arrive whole, and a client to read any part of its answer.
    pub request: Duration,
    /// How long what is in flight may take after the signal to stop.
    pub shutdown: Duration,
    /// The most connections at once of each door; the next wait to be accepted.
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

/// What a connection is, encrypted or not.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// Told when the server stops: what is in flight is finished, and nothing new begun.
pub type Stop = watch::Receiver<()>;

/// Speaks one protocol.
pub trait Door: Send + Sync + 'static {
    /// Which.
    const PROTOCOL: Protocol;

    /// What it decides with.
    fn gate(&self) -> &Gate;

    /// Answers one connection until it ends, or `stop` is told and what is in flight is answered.
    ///
    /// What goes wrong on a connection is its client's affair, so there is nothing to return.
    fn serve(
        self: Arc<Self>,
        stream: impl Stream,
        peer: SocketAddr,
        stop: Stop,
    ) -> impl Future<Output = ()> + Send;
}

/// Accepts connections for `door` until `stop` is told.
pub(crate) async fn accept<D: Door>(
    listener: TcpListener,
    door: Arc<D>,
    tls: Option<Arc<Tls>>,
    mut stop: Stop,
) {
    let limits = door.gate().limits;
    let connections = Arc::new(Semaphore::new(limits.connections));
    loop {
        let accept = async {
            // The semaphore is never closed.
            let permit = Arc::clone(&connections).acquire_owned().await.ok();
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            accepted = accept => accepted,
            _ = stop.changed() => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            // Out of file descriptors, or a client that left already: neither is a reason to stop.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        // Answers are small and complete: there is nothing to wait for.
        let _ = stream.set_nodelay(true);
        let (door, stop) = (Arc::clone(&door), stop.clone());
        match &tls {
            None => {
                tokio::spawn(async move {
                    serve(door, stream, peer, stop).await;
                    drop(permit);
                });
            }
            Some(tls) => {
                let handshake = tls.accept(D::PROTOCOL, stream);
                tokio::spawn(async move {
                    if let Ok(Ok(stream)) = tokio::time::timeout(limits.request, handshake).await {
                        serve(door, stream, peer, stop).await;
                    }
                    drop(permit);
                });
            }
        }
    }
}

/// Serves a connection, and counts it meanwhile.
async fn serve<D: Door>(door: Arc<D>, stream: impl Stream, peer: SocketAddr, stop: Stop) {
    let served = Arc::clone(&door);
    let _connected = served.gate().record.connected(D::PROTOCOL);
    door.serve(stream, peer, stop).await;
}

/// How long a client may take to notice that nothing more is said.
const FAREWELL: Duration = Duration::from_secs(1);

/// Says no more, and waits until the client has noticed: to close on what it still sends would take back answers that it has
/// not read.
pub(crate) async fn part(stream: &mut impl Stream) {
    let farewell = async {
        stream.shutdown().await?;
        let mut ignored = [0; 1 << 10];
        while stream.read(&mut ignored).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(FAREWELL, farewell).await;
}

/// A listener there, or why there is none.
pub(crate) async fn bind(address: SocketAddr, flag: &str) -> Result<(TcpListener, SocketAddr), String> {
    let cannot = |error: io::Error| {
        format!("cannot listen on {address}: {error}; choose another with --{flag}, or port 0 for a free one")
    };
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    Ok((listener, address))
}
