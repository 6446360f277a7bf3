//! Accepting connections for a door: how many (see [`room`](super::connection_slots)), encrypted or not, and stopping without losing an
//! answer.

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

/// What a connection is, encrypted or not.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// Told when the server stops: what is in flight is finished, and nothing new begun.
pub type Stop = watch::Receiver<()>;

/// Speaks one protocol.
pub trait ConnectionHandler: Send + Sync + 'static {
    /// Which.
    const PROTOCOL: Protocol;

    /// What it decides with.
    fn app(&self) -> &AppState;

    /// Answers one connection until it ends, or `stop` is told and what is in flight is answered.
    ///
    /// The door marks in `seat` when a request begins and ends; between requests the connection may be closed to make room. What
    /// goes wrong on a connection is its client's affair, so there is nothing to return.
    fn serve(
        self: Arc<Self>,
        stream: impl Stream,
        peer: SocketAddr,
        state: Arc<ConnectionState>,
        stop: Stop,
    ) -> impl Future<Output = ()> + Send;
}

/// Accepts connections for `door` until `stop` is told.
pub(crate) async fn accept<H: ConnectionHandler>(
    listener: TcpListener,
    handler: Arc<H>,
    tls: Option<Arc<Tls>>,
    mut stop: Stop,
) {
    let limits = handler.app().limits;
    let slots = ConnectionSlots::new(&limits);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
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
        let slot = tokio::select! {
            slot = slots.acquire(peer.ip()) => slot,
            _ = stop.changed() => return,
        };
        let Some(slot) = slot else {
            handler.app().record.shed(H::PROTOCOL, Shed::PerAddress, 1);
            continue;
        };
        handler.app().record.shed(H::PROTOCOL, Shed::Room, slot.evicted);
        // Answers are small and complete: there is nothing to wait for.
        let _ = stream.set_nodelay(true);
        let number = slot.number();
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

/// Serves a connection, and counts it meanwhile.
async fn serve_connection<H: ConnectionHandler>(
    handler: Arc<H>,
    stream: TcpStream,
    peer: SocketAddr,
    slot: SlotGuard,
    tls: Option<Arc<Tls>>,
    mut stop: Stop,
) {
    let (limits, shared_handler) = (handler.app().limits, Arc::clone(&handler));
    let _connected = shared_handler.app().record.connected(H::PROTOCOL);
    // Whatever is spoken, and encrypted or not, the client speaks first.
    let mut byte = [0];
    let first = tokio::time::timeout(limits.first_byte, stream.peek(&mut byte));
    let sent_data = tokio::select! {
        biased;
        first = first => first.is_ok(),
        _ = stop.changed() => return,
    };
    if !sent_data {
        shared_handler.app().record.shed(H::PROTOCOL, Shed::Silent, 1);
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

/// How long a client may take to notice that nothing more is said.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// Says no more, and waits until the client has noticed: to close on what it still sends would take back answers that it has
/// not read.
pub(crate) async fn linger_close(stream: &mut impl Stream) {
    let linger = async {
        stream.shutdown().await?;
        let mut discarded = [0; 1 << 10];
        while stream.read(&mut discarded).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(LINGER_TIMEOUT, linger).await;
}

/// Connections that may wait to be accepted; the system may allow fewer (`net.core.somaxconn`). A client whose connection does
/// not fit tries again only after a second, so the usual 128 are too few when many connect at once.
const BACKLOG: u32 = 4_096;

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // As `TcpListener::bind` does: a server that is started again need not wait for the connections of the old one.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A listener there, or why there is none.
pub(crate) async fn bind(address: SocketAddr, flag: &str) -> Result<(TcpListener, SocketAddr), String> {
    let bind_error = |error: io::Error| {
        format!("cannot listen on {address}: {error}; choose another with --{flag}, or port 0 for a free one")
    };
    let listener = listen(address).map_err(bind_error)?;
    let address = listener.local_addr().map_err(bind_error)?;
    Ok((listener, address))
}
