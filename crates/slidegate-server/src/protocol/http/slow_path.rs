//! Serves the rest of a connection with hyper, after the first request that the fast path cannot handle.

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
use super::{ConnectionHandler, ResponseBody};
use crate::app::request_budget::BudgetShare;
use crate::protocol::connection_slots::ConnectionState;
use crate::protocol::listener::{Stop, Stream};

/// Serves a connection whose next bytes are `rest`. The future has its own box: most connections never get here
/// and need not hold the memory for it.
pub(super) fn serve(
    stream: impl Stream,
    rest: Bytes,
    handler: Arc<ConnectionHandler>,
    peer: SocketAddr,
    state: Arc<ConnectionState>,
    mut stop: Stop,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let limits = handler.app.settings.limits;
    let (reader, writer) = tokio::io::split(stream);
    // A client that does not read its response is disconnected as well.
    let mut writer = TimeoutWriter::new(writer);
    writer.set_timeout(Some(limits.request));
    let meter = Arc::new(RequestMeter::new(handler.app.budget_share()));
    let reader = MeteredReader { reader, meter: Arc::clone(&meter) };
    let stream = tokio::io::join(Cursor::new(rest).chain(reader), Box::pin(writer));
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        request.extensions_mut().insert(handler.role);
        let (handler, state, meter) = (Arc::clone(&handler), Arc::clone(&state), Arc::clone(&meter));
        async move {
            if !state.begin() {
                return Err("closed to make room for another connection");
            }
            let endpoint = handler.endpoints.find(request.method().as_str(), request.uri().path());
            let mut answer = handler.answer(endpoint, request).await;
            if meter.over_budget.load(Ordering::Relaxed) && answer.status() == StatusCode::BAD_REQUEST {
                // The handler only sees a body that ends too early, and its response does not name the budget.
                answer = over_budget_response();
            }
            meter.reset();
            // A streaming response lasts longer than this call, so its connection stays marked as in use. There
            // are few such connections.
            if !endpoint.is_some_and(|endpoint| endpoint.streams) {
                state.end(handler.clock.now());
            }
            Ok(answer)
        }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(64 << 10);
    // A client that has closed its write side still waits for a response, and may have been charged for it.
    server.half_close(true);
    let connection = server.serve_connection(TokioIo::new(stream), service);
    Box::pin(async move {
        let mut connection = pin!(connection);
        tokio::select! {
            _ = &mut connection => return,
            _ = stop.changed() => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    })
}

fn over_budget_response() -> Response<ResponseBody> {
    let message = "the unfinished requests of all clients use more than `listen.limits.unfinished-bytes`: \
                   try again later";
    let mut answer = ApiError::new(Code::Unavailable, message).into_buffered();
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer.map(|body| Either::Left(Full::new(body)))
}

/// Bytes of a request that are not charged to the budget: about the size of the fast path's buffer for each
/// connection.
const FREE_BYTES: usize = 4 << 10;

/// Step in which bytes are charged to the budget.
const BUDGET_STEP: usize = 16 << 10;

/// Counts the bytes read since the last response, which belong to the request in flight, and charges them to
/// the budget for unfinished requests.
struct RequestMeter {
    share: BudgetShare,
    bytes: AtomicUsize,
    /// True once the budget has rejected a charge.
    over_budget: AtomicBool,
}

impl RequestMeter {
    fn new(share: BudgetShare) -> Self {
        RequestMeter { share, bytes: AtomicUsize::new(0), over_budget: AtomicBool::new(false) }
    }

    fn add(&self, bytes: usize) -> io::Result<()> {
        let charged = (self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes).saturating_sub(FREE_BYTES);
        if charged > 0 && !self.share.resize(charged.next_multiple_of(BUDGET_STEP)) {
            self.over_budget.store(true, Ordering::Relaxed);
            return Err(io::Error::other("too many unfinished requests"));
        }
        Ok(())
    }

    fn reset(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.share.release();
    }
}

/// Reader that charges the bytes it reads to the budget for unfinished requests.
struct MeteredReader<R> {
    reader: R,
    meter: Arc<RequestMeter>,
}

impl<R: AsyncRead + Unpin> AsyncRead for MeteredReader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.reader).poll_read(cx, buffer))?;
        Poll::Ready(self.meter.add(buffer.filled().len() - before))
    }
}
