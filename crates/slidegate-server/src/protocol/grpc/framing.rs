//! One message in, one message out: as much of gRPC over HTTP/2 as a call without streams needs.

use std::convert::Infallible;
use std::fmt::Display;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Response};
use prost::Message;
use tonic::Status;

use super::MAX_MESSAGE;
use crate::app::request_budget::BudgetShare;
use crate::protocol::connection_slots::ConnectionState;

/// Before each message: whether it is compressed, and its length in four bytes.
const PREFIX: usize = 5;

/// Memory of a call that waits for its message, besides the message: a task and the state of its HTTP/2 stream.
const WAITING: usize = 8 << 10;

/// Calls of a connection that may wait without taking from the budget for unfinished requests. A message often comes a moment
/// after its call: clients that use up the budget must not stop others.
const FREE: usize = 8;

/// A call that waits for its message.
struct Waiting<'s> {
    seat: &'s ConnectionState,
    free: bool,
    held: BudgetShare,
}

impl<'s> Waiting<'s> {
    fn new(seat: &'s ConnectionState, held: BudgetShare) -> Self {
        Waiting { seat, free: seat.begin_wait() < FREE, held }
    }

    /// Goes on to wait, with so many bytes of the message.
    fn wait(&self, bytes: usize) -> Result<(), Status> {
        let bytes = if self.free { bytes.saturating_sub(WAITING) } else { bytes + WAITING };
        if self.held.resize(bytes) {
            return Ok(());
        }
        Err(Status::resource_exhausted(
            "the unfinished requests of all clients hold more than listen.limits.unfinished-bytes: try again later",
        ))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.seat.end_wait();
    }
}

/// The one message of a call, when all of it is here. A call that has to wait for it takes a part of the budget with `hold`.
pub(super) async fn message<M, B>(
    mut body: B,
    seat: &ConnectionState,
    hold: impl Fn() -> BudgetShare,
) -> Result<M, Status>
where
    M: Message + Default,
    B: Body<Data = Bytes, Error: Display> + Unpin,
{
    let mut here = Bytes::new();
    let mut waiting = None;
    loop {
        let frame = match poll_fn(|cx| Poll::Ready(Pin::new(&mut body).poll_frame(cx))).await {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                waiting.get_or_insert_with(|| Waiting::new(seat, hold())).wait(here.len())?;
                body.frame().await
            }
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| Status::cancelled(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        // Most messages come in one piece.
        here = if here.is_empty() { data } else { join(here, data) };
        if length(&here)?.is_some_and(|length| here.len() > PREFIX + length) {
            return Err(Status::invalid_argument("this call takes one message, not several"));
        }
    }
    match length(&here)? {
        Some(length) if here.len() == PREFIX + length => {
            here.advance(PREFIX);
            M::decode(here).map_err(|error| Status::invalid_argument(format!("not a message: {error}")))
        }
        _ => Err(Status::invalid_argument("the message ends too early")),
    }
}

/// How long the message is, if that is known yet.
fn length(here: &[u8]) -> Result<Option<usize>, Status> {
    let Some((&[compressed, a, b, c, d], _)) = here.split_first_chunk() else { return Ok(None) };
    if compressed != 0 {
        return Err(Status::unimplemented("messages are accepted uncompressed only"));
    }
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > MAX_MESSAGE {
        return Err(Status::resource_exhausted(format!(
            "a message may have {MAX_MESSAGE} bytes, not {length}"
        )));
    }
    Ok(Some(length))
}

fn join(here: Bytes, data: Bytes) -> Bytes {
    let mut joined = BytesMut::from(here);
    joined.extend_from_slice(&data);
    joined.freeze()
}

/// A message with its prefix.
pub(super) fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut data = BytesMut::with_capacity(PREFIX + length);
    data.put_u8(0);
    data.put_u32(length as u32);
    // There is room for it.
    let _ = message.encode(&mut data);
    data.freeze()
}

/// The answer that says `message`.
pub(super) fn reply(message: &impl Message) -> Response<Reply> {
    let mut response = Response::new(Reply::Message(frame(message)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// A message, and then that all is well.
pub(super) enum Reply {
    Message(Bytes),
    Trailers,
    End,
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(match std::mem::replace(&mut *self, Reply::End) {
            Reply::Message(message) => {
                *self = Reply::Trailers;
                Some(Ok(Frame::data(message)))
            }
            Reply::Trailers => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
                Some(Ok(Frame::trailers(trailers)))
            }
            Reply::End => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Reply::End)
    }
}
