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

use super::connection_slots::{ConnectionSlots, ConnectionState, Taken};
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
    fn gate(&self) -> &AppState;

    /// Answers one connection until it ends, or `stop` is told and what is in flight is answered.
    ///
    /// The door marks in `seat` when a request begins and ends; between requests the connection may be closed to make room. What
    /// goes wrong on a connection is its client's affair, so there is nothing to return.
    fn serve(
        self: Arc<Self>,
        stream: impl Stream,
        peer: SocketAddr,
        seat: Arc<ConnectionState>,
        stop: Stop,
    ) -> impl Future<Output = ()> + Send;
}

/// Accepts connections for `door` until `stop` is told.
pub(crate) async fn accept<D: ConnectionHandler>(
    listener: TcpListener,
    door: Arc<D>,
    tls: Option<Arc<Tls>>,
    mut stop: Stop,
) {
    let limits = door.gate().settings.limits;
    let room = ConnectionSlots::new(&limits);
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
        let taken = tokio::select! {
            taken = room.take(peer.ip()) => taken,
            _ = stop.changed() => return,
        };
        let Some(taken) = taken else {
            door.gate().stats.count_shed(D::PROTOCOL, Shed::PerAddress, 1);
            continue;
        };
        door.gate().stats.count_shed(D::PROTOCOL, Shed::Room, taken.closed);
        // Answers are small and complete: there is nothing to wait for.
        let _ = stream.set_nodelay(true);
        let number = taken.number();
        let task =
            tokio::spawn(connection(Arc::clone(&door), stream, peer, taken, tls.clone(), stop.clone()));
        room.ended_by(number, task.abort_handle());
    }
}

/// Serves a connection, and counts it meanwhile.
async fn connection<D: ConnectionHandler>(
    door: Arc<D>,
    stream: TcpStream,
    peer: SocketAddr,
    taken: Taken,
    tls: Option<Arc<Tls>>,
    mut stop: Stop,
) {
    let (limits, of) = (door.gate().settings.limits, Arc::clone(&door));
    let _connected = of.gate().stats.count_connection(D::PROTOCOL);
    // Whatever is spoken, and encrypted or not, the client speaks first.
    let mut byte = [0];
    let first = tokio::time::timeout(limits.first_byte, stream.peek(&mut byte));
    let spoke = tokio::select! {
        biased;
        first = first => first.is_ok(),
        _ = stop.changed() => return,
    };
    if !spoke {
        of.gate().stats.count_shed(D::PROTOCOL, Shed::Silent, 1);
        return;
    }
    let seat = Arc::clone(&taken.seat);
    match tls {
        None => door.serve(stream, peer, seat, stop).await,
        Some(tls) => {
            let handshake = tls.accept(D::PROTOCOL, stream);
            if let Ok(Ok(stream)) = tokio::time::timeout(limits.request, handshake).await {
                door.serve(stream, peer, seat, stop).await;
            }
        }
    }
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
    let cannot = |error: io::Error| {
        format!("cannot listen on {address}: {error}; choose another with --{flag}, or port 0 for a free one")
    };
    let listener = listen(address).map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    Ok((listener, address))
}
