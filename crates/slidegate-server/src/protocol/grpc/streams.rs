//! Bound on calls that last: watches of health, which need no token, and reflection.
//!
//! Each holds a task, the state of an HTTP/2 stream and its buffers, about 8 KiB, for as long as its client likes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;

use crate::app::state::AppState;
use crate::protocol::connection_slots::ConnectionState;

/// Streams of one door.
pub(super) struct Streams {
    free: Arc<Semaphore>,
    gate: Arc<AppState>,
}

/// One stream, until it is dropped. Its connection is in use meanwhile.
pub(super) struct Streaming {
    seat: Arc<ConnectionState>,
    gate: Arc<AppState>,
    _permit: OwnedSemaphorePermit,
}

impl Streams {
    pub(super) fn new(gate: Arc<AppState>) -> Self {
        Streams { free: Arc::new(Semaphore::new(gate.settings.limits.grpc_streams)), gate }
    }

    /// Opens one on the connection of `seat`.
    pub(super) fn open(&self, seat: &Arc<ConnectionState>) -> Result<Streaming, Status> {
        let most = self.gate.settings.limits.grpc_streams_per_connection;
        if !seat.open_stream(most) {
            return Err(Status::resource_exhausted(format!(
                "{most} streams are open on this connection, as many as there may be: end one, or raise \
                 listen.limits.grpc-streams-per-connection"
            )));
        }
        let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() else {
            seat.close_stream();
            let most = self.gate.settings.limits.grpc_streams;
            return Err(Status::resource_exhausted(format!(
                "{most} streams are open, as many as there may be: try again later, or raise listen.limits.grpc-streams"
            )));
        };
        // The call that opens it is under way, so the connection cannot have been closed.
        let _ = seat.begin();
        Ok(Streaming { seat: Arc::clone(seat), gate: Arc::clone(&self.gate), _permit: permit })
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.seat.close_stream();
        self.seat.end(self.gate.stats.now());
    }
}

/// Body of an answer, and the stream that it is.
pub(super) struct StreamedBody {
    body: Body,
    _stream: Option<Streaming>,
}

impl StreamedBody {
    pub(super) fn new(body: Body, stream: Option<Streaming>) -> Self {
        StreamedBody { body, _stream: stream }
    }
}

impl HttpBody for StreamedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
