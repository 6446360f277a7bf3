//! Accept loop of one listener: bounds the number of connections (see
//! [`connection_slots`](super::connection_slots)), runs the TLS handshake if configured, and stops without
//! losing a response.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use super::connection_slots::{ConnectionSlots, ConnectionState, SlotGuard};
use super::tls::Tls;
use crate::app::state::AppState;
use crate::common::protocol::Protocol;
use crate::telemetry::stats::Shed;

/// Byte stream of one connection, plain or encrypted.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// Shutdown signal. When it fires, requests in flight are finished and no new request is started.
pub(crate) type Stop = watch::Receiver<()>;

/// Serves connections of one protocol.
pub(crate) trait ConnectionHandler: Send + Sync + 'static {
    /// Protocol that this handler speaks.
    const PROTOCOL: Protocol;

    /// Returns the application state that the handler decides with.
    fn app(&self) -> &AppState;

    /// Serves one connection until it ends, or until `stop` fires and the requests in flight are answered.
    ///
    /// The handler marks in `state` when a request begins and ends. Between requests the connection may be
    /// closed to make room for another one. An error on a connection concerns only its client, so nothing is
    /// returned.
    fn serve(
        self: Arc<Self>,
        stream: impl Stream,
        peer: SocketAddr,
        state: Arc<ConnectionState>,
        stop: Stop,
    ) -> impl Future<Output = ()> + Send;
}

/// Accepts connections for `handler` until `stop` fires.
pub(crate) async fn accept<H: ConnectionHandler>(
    listener: TcpListener,
    handler: Arc<H>,
    tls: Option<Arc<Tls>>,
    mut stop: Stop,
) {
    let limits = handler.app().settings.limits;
    let slots = ConnectionSlots::new(&limits);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => return,
        };
        let Ok((stream, peer)) = accepted else {
            // Accepting fails if file descriptors run out or if the client has left already. The listener
            // continues.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let slot = tokio::select! {
            slot = slots.acquire(peer.ip()) => slot,
            _ = stop.changed() => return,
        };
        let Some(slot) = slot else {
            handler.app().stats.count_shed(H::PROTOCOL, Shed::PerAddress, 1);
            continue;
        };
        handler.app().stats.count_shed(H::PROTOCOL, Shed::Room, slot.evicted);
        // Responses are small and written whole, so Nagle's algorithm would only delay them.
        let _ = stream.set_nodelay(true);
        let number = slot.number;
        let task = tokio::spawn(serve_connection(
            Arc::clone(&handler),
            stream,
            peer,
            slot,
            tls.clone(),
            stop.clone(),
        ));
        slots.set_abort_handle(number, task.abort_handle());
    }
}

/// Serves one connection and counts it as open meanwhile.
async fn serve_connection<H: ConnectionHandler>(
    handler: Arc<H>,
    stream: TcpStream,
    peer: SocketAddr,
    slot: SlotGuard,
    tls: Option<Arc<Tls>>,
    mut stop: Stop,
) {
    let (limits, shared_handler) = (handler.app().settings.limits, Arc::clone(&handler));
    let _connected = shared_handler.app().stats.count_connection(H::PROTOCOL);
    // In every protocol, encrypted or not, the client sends the first byte.
    let mut byte = [0];
    let first = tokio::time::timeout(limits.first_byte, stream.peek(&mut byte));
    let sent_data = tokio::select! {
        biased;
        first = first => first.is_ok(),
        _ = stop.changed() => return,
    };
    if !sent_data {
        shared_handler.app().stats.count_shed(H::PROTOCOL, Shed::Silent, 1);
        return;
    }
    let state = Arc::clone(&slot.state);
    match tls {
        None => handler.serve(stream, peer, state, stop).await,
        Some(tls) => {
            let handshake = tls.accept(H::PROTOCOL, stream);
            if let Ok(Ok(stream)) = tokio::time::timeout(limits.request, handshake).await {
                handler.serve(stream, peer, state, stop).await;
            }
        }
    }
}

/// Maximum time to wait for the client to close the connection, after the server has sent everything.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// Shuts down the write side, then reads until the client closes or the timeout expires.
///
/// Closing a socket that still receives data sends a reset, which would discard responses that the client has
/// not read yet.
pub(crate) async fn linger_close(stream: &mut impl Stream) {
    let linger = async {
        stream.shutdown().await?;
        let mut discarded = [0; 1 << 10];
        while stream.read(&mut discarded).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(LINGER_TIMEOUT, linger).await;
}

/// Length of the accept queue. The system may allow a shorter queue (`net.core.somaxconn`). A client whose
/// connection does not fit tries again only after a second, so the usual length of 128 is too short when many
/// clients connect at once.
const BACKLOG: u32 = 4_096;

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // `TcpListener::bind` does the same: a restarted server need not wait for the connections of the old
    // process.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Binds `address` and returns the listener with its actual address. The error text suggests `--{flag}`.
pub(crate) async fn bind(address: SocketAddr, flag: &str) -> Result<(TcpListener, SocketAddr), String> {
    let bind_error = |error: io::Error| {
        format!("cannot listen on {address}: {error}; choose another with --{flag}, or port 0 for a free one")
    };
    let listener = listen(address).map_err(bind_error)?;
    let address = listener.local_addr().map_err(bind_error)?;
    Ok((listener, address))
}
