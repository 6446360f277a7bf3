//! One connection: first the short way, then, if a request comes that is not for it, hyper.

use std::error::Error;
use std::future::Future;
use std::io::{self, Cursor};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use slidegate::Clock;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio_io_timeout::TimeoutWriter;

use super::error::{ApiError, Code};
use super::forward_auth::Peer;
use super::{ConnectionHandler, DoorBody, fast_path};
use crate::app::request_budget::BudgetShare;
use crate::protocol::connection_slots::ConnectionState;
use crate::protocol::listener::{Stop, Stream};

type Served = Pin<Box<dyn Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send>>;

pub(super) fn serve(
    door: Arc<ConnectionHandler>,
    mut stream: impl Stream,
    peer: SocketAddr,
    seat: Arc<ConnectionState>,
    stop: Stop,
) -> Served {
    Box::pin(async move {
        match fast_path::usual(&door, &mut stream, door.gate.settings.limits.head, &seat, &stop).await? {
            Some(rest) => by_hyper(stream, rest, door, peer, seat, stop).await,
            None => Ok(()),
        }
    })
}

/// In a box of its own: most connections never come here, and need not hold the room for it.
fn by_hyper(
    stream: impl Stream,
    rest: Bytes,
    door: Arc<ConnectionHandler>,
    peer: SocketAddr,
    seat: Arc<ConnectionState>,
    mut stop: Stop,
) -> Served {
    let limits = door.gate.settings.limits;
    let (reader, writer) = tokio::io::split(stream);
    // A client that does not read its answer is given up as well.
    let mut writer = TimeoutWriter::new(writer);
    writer.set_timeout(Some(limits.request));
    let reading = Arc::new(Reading::new(door.gate.budget_share()));
    let reader = Metered { reader, reading: Arc::clone(&reading) };
    let stream = tokio::io::join(Cursor::new(rest).chain(reader), Box::pin(writer));
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        let (door, seat, reading) = (Arc::clone(&door), Arc::clone(&seat), Arc::clone(&reading));
        async move {
            if !seat.begin() {
                return Err(MadeRoom);
            }
            let streams = is_stream(request.uri().path());
            let mut answer = door.answer(request).await;
            if reading.is_over() && answer.status() == StatusCode::BAD_REQUEST {
                // To the handler it looks like a body that ends too early.
                answer = over_budget();
            }
            reading.answered();
            // Streams last longer than this. There are few of them, and their connections are in use.
            if !streams {
                seat.end(door.clock.now());
            }
            Ok(answer)
        }
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

/// The connection was closed to make room for another.
#[derive(Debug)]
struct MadeRoom;

impl std::fmt::Display for MadeRoom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("closed to make room for another connection")
    }
}

impl Error for MadeRoom {}

/// Whether the answer goes on for as long as the client reads it.
fn is_stream(path: &str) -> bool {
    matches!(path, "/v1/live" | "/v1/record")
}

fn over_budget() -> Response<DoorBody> {
    let message = "the unfinished requests of all clients hold more than `listen.limits.unfinished-bytes`: \
                   send this one again later";
    let mut answer = ApiError::new(Code::Unavailable, message).into_answer();
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer.map(|body| Either::Left(Full::new(body)))
}

/// Bytes of a request that are not taken from the budget: about what the short way has for each connection.
const FREE: usize = 4 << 10;

/// The budget is asked for so many bytes at a time.
const STEP: usize = 16 << 10;

/// Bytes that were read since the last answer: those of the request under way.
struct Reading {
    held: BudgetShare,
    bytes: AtomicUsize,
    /// Whether the budget did not allow more.
    over: AtomicBool,
}

impl Reading {
    fn new(held: BudgetShare) -> Self {
        Reading { held, bytes: AtomicUsize::new(0), over: AtomicBool::new(false) }
    }

    fn read(&self, bytes: usize) -> io::Result<()> {
        let beyond = (self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes).saturating_sub(FREE);
        if beyond > 0 && !self.held.resize(beyond.next_multiple_of(STEP)) {
            self.over.store(true, Ordering::Relaxed);
            return Err(io::Error::other("too many unfinished requests"));
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn answered(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.held.release();
    }
}

/// Reads, and takes what it reads from the budget for unfinished requests.
struct Metered<R> {
    reader: R,
    reading: Arc<Reading>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Metered<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.reader).poll_read(cx, buffer))?;
        Poll::Ready(self.reading.read(buffer.filled().len() - before))
    }
}
