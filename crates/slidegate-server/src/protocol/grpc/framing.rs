//! Framing of unary gRPC calls over HTTP/2: reads one message and writes one message.

use std::array;
use std::convert::Infallible;
use std::fmt::Display;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Response};
use prost::Message;
use tonic::Status;

use super::MAX_MESSAGE;
use crate::app::request_budget::BudgetShare;
use crate::protocol::connection_slots::ConnectionState;

/// Size of the prefix of each message: a compression flag, and the length in four bytes.
const PREFIX_BYTES: usize = 5;

/// Memory of a call that waits for its message, in bytes, besides the message itself: a task and the state of
/// its HTTP/2 stream.
const WAITING_CALL_BYTES: usize = 8 << 10;

/// Number of calls per connection that may wait without charging the budget for unfinished requests. A message
/// often arrives a moment after the headers of its call, and such a call must succeed even if other clients
/// have used up the budget.
const FREE_CALLS: usize = 8;

/// Call that waits for its message, and its share of the budget for unfinished requests.
struct WaitingCall<'s> {
    state: &'s ConnectionState,
    is_free: bool,
    share: BudgetShare,
}

impl<'s> WaitingCall<'s> {
    fn new(state: &'s ConnectionState, share: BudgetShare) -> Self {
        WaitingCall { state, is_free: state.begin_wait() < FREE_CALLS, share }
    }

    /// Charges the budget for this call, which has received `bytes` bytes of its message.
    fn wait(&self, bytes: usize) -> Result<(), Status> {
        let bytes =
            if self.is_free { bytes.saturating_sub(WAITING_CALL_BYTES) } else { bytes + WAITING_CALL_BYTES };
        if self.share.resize(bytes) {
            return Ok(());
        }
        Err(Status::resource_exhausted(
            "the unfinished requests of all clients use more than listen.limits.unfinished-bytes: try again later",
        ))
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.state.end_wait();
    }
}

/// Reads the single message of a call. If the call has to wait for the message, it charges the budget share
/// that `hold` returns.
pub(super) async fn read_message<M, B>(
    mut body: B,
    state: &ConnectionState,
    hold: impl Fn() -> BudgetShare,
) -> Result<M, Status>
where
    M: Message + Default,
    B: Body<Data = Bytes, Error: Display> + Unpin,
{
    let mut received = Bytes::new();
    let mut waiting = None;
    loop {
        let frame = match poll_fn(|cx| Poll::Ready(Pin::new(&mut body).poll_frame(cx))).await {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                waiting.get_or_insert_with(|| WaitingCall::new(state, hold())).wait(received.len())?;
                body.frame().await
            }
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| Status::cancelled(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        // Most messages arrive in one piece.
        received = if received.is_empty() { data } else { join(received, data) };
        if message_length(&received)?.is_some_and(|length| received.len() > PREFIX_BYTES + length) {
            return Err(Status::invalid_argument("this call accepts one message, not several"));
        }
    }
    match message_length(&received)? {
        Some(length) if received.len() == PREFIX_BYTES + length => {
            received.advance(PREFIX_BYTES);
            M::decode(received).map_err(|error| Status::invalid_argument(format!("not a message: {error}")))
        }
        _ => Err(Status::invalid_argument("the message ends too early")),
    }
}

/// Returns the length of the message, `None` if the prefix has not arrived yet.
fn message_length(received: &[u8]) -> Result<Option<usize>, Status> {
    let Some((&[compressed, a, b, c, d], _)) = received.split_first_chunk() else { return Ok(None) };
    if compressed != 0 {
        return Err(Status::unimplemented("compressed messages are not supported"));
    }
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > MAX_MESSAGE {
        return Err(Status::resource_exhausted(format!(
            "a message may have at most {MAX_MESSAGE} bytes, not {length}"
        )));
    }
    Ok(Some(length))
}

fn join(received: Bytes, data: Bytes) -> Bytes {
    let mut joined = BytesMut::from(received);
    joined.extend_from_slice(&data);
    joined.freeze()
}

/// Frame of a response body.
pub(super) type ResponseFrame = Result<Frame<Bytes>, Infallible>;

/// Response body of a unary call: one message, then trailers with status 0.
pub(super) type UnaryBody = StreamBody<stream::Iter<array::IntoIter<ResponseFrame, 2>>>;

/// Returns a response with `message` as its only message.
pub(super) fn unary_response(message: &impl Message) -> Response<UnaryBody> {
    response(StreamBody::new(stream::iter([message_frame(message), ok_trailers()])))
}

pub(super) fn response<B>(body: B) -> Response<B> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// Encodes a message with its prefix.
pub(super) fn message_frame(message: &impl Message) -> ResponseFrame {
    let length = message.encoded_len();
    let mut data = BytesMut::with_capacity(PREFIX_BYTES + length);
    data.put_u8(0);
    data.put_u32(length as u32);
    // Encoding cannot fail: the buffer has the required capacity.
    let _ = message.encode(&mut data);
    Ok(Frame::data(data.freeze()))
}

/// Returns the trailers of a call that succeeds.
pub(super) fn ok_trailers() -> ResponseFrame {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
    Ok(Frame::trailers(trailers))
}
