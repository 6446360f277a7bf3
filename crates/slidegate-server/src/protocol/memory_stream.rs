//! Connection in memory, for unit tests and `fuzz/`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use super::listener::ConnectionHandler;

/// Returns the output of a protocol for input that arrives in these pieces.
pub(crate) async fn exchange<H: ConnectionHandler>(handler: H, pieces: &[&[u8]]) -> Vec<u8> {
    let output = Arc::new(Mutex::new(Vec::new()));
    let input = pieces.iter().rev().map(|piece| piece.to_vec()).collect();
    let stream = MemoryStream { input, output: Arc::clone(&output) };
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let (_keep_running, stop) = watch::channel(());
    Arc::new(handler).serve(stream, peer, Arc::default(), stop).await;
    std::mem::take(&mut output.lock())
}

/// In-memory client that sends all pieces and accepts every response.
struct MemoryStream {
    /// Pieces to send, in reverse order.
    input: Vec<Vec<u8>>,
    output: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for MemoryStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while let Some(mut piece) = self.input.pop() {
            if piece.is_empty() {
                continue;
            }
            let rest = piece.split_off(piece.len().min(buffer.remaining()));
            buffer.put_slice(&piece);
            if !rest.is_empty() {
                self.input.push(rest);
            }
            break;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for MemoryStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.output.lock().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
