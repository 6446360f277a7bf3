//! One connection: first the short way, then, if a request comes that is not for it, hyper.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::io::Cursor;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;

use bytes::Bytes;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio_io_timeout::TimeoutWriter;

use super::authorize::Peer;
use super::{Door, lane};
use crate::listen::{Stop, Stream};

type Served = Pin<Box<dyn Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send>>;

pub(super) fn serve(door: Arc<Door>, mut stream: impl Stream, peer: SocketAddr, stop: Stop) -> Served {
    Box::pin(async move {
        match lane::usual(&door, &mut stream, door.gate.limits.head, &stop).await? {
            Some(rest) => by_hyper(stream, rest, door, peer, stop).await,
            None => Ok(()),
        }
    })
}

/// In a box of its own: most connections never come here, and need not hold the room for it.
fn by_hyper(stream: impl Stream, rest: Bytes, door: Arc<Door>, peer: SocketAddr, mut stop: Stop) -> Served {
    let limits = door.gate.limits;
    let (reader, writer) = tokio::io::split(stream);
    // A client that does not read its answer is given up as well.
    let mut writer = TimeoutWriter::new(writer);
    writer.set_timeout(Some(limits.request));
    let stream = tokio::io::join(Cursor::new(rest).chain(reader), Box::pin(writer));
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        let door = Arc::clone(&door);
        async move { Ok::<_, Infallible>(door.answer(request).await) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(64 << 10);
    // Who says no more still waits for an answer, and may have been charged for it.
    server.half_close(true);
    let connection = server.serve_connection(TokioIo::new(stream), service);
    Box::pin(async move {
        let mut connection = pin!(connection);
        tokio::select! {
            done = &mut connection => return Ok(done?),
            _ = stop.changed() => connection.as_mut().graceful_shutdown(),
        }
        Ok(connection.await?)
    })
}
