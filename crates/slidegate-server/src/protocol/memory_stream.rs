//! Connection in memory, for unit tests and `fuzz/`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::sync::watch;

use super::listener::ConnectionHandler;

/// Returns the output of a protocol for input that arrives in these pieces.
pub(crate) async fn exchange<H: ConnectionHandler>(handler: H, pieces: &[&[u8]]) -> Vec<u8> {
    let input = Pieces(pieces.iter().rev().map(|piece| piece.to_vec()).collect());
    let (output, mut written) = tokio::io::duplex(usize::MAX);
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let (_keep_running, stop) = watch::channel(());
    Arc::new(handler).serve(tokio::io::join(input, output), peer, Arc::default(), stop).await;
    let mut bytes = Vec::new();
    let _ = written.read_to_end(&mut bytes).await;
    bytes
}

/// Pieces of the input in reverse order. Each read returns bytes of at most one piece.
struct Pieces(Vec<Vec<u8>>);

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while let Some(mut piece) = self.0.pop() {
            if piece.is_empty() {
                continue;
            }
            let rest = piece.split_off(piece.len().min(buffer.remaining()));
            buffer.put_slice(&piece);
            if !rest.is_empty() {
                self.0.push(rest);
            }
            break;
        }
        Poll::Ready(Ok(()))
    }
}
