//! Bounds the number of long-lived calls: health watches, which need no token, and reflection.
//!
//! Each of them holds a task, the state of an HTTP/2 stream and its buffers, about 8 KiB, for as long as its client
//! keeps it open.

use std::sync::Arc;

use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;

use crate::app::state::AppState;
use crate::protocol::connection_slots::ConnectionState;

/// Streams of all connections of the listener.
pub(super) struct Streams {
    permits: Arc<Semaphore>,
    app: Arc<AppState>,
}

/// Open stream; dropping the guard closes it. Its connection counts as in use meanwhile.
pub(super) struct StreamGuard {
    state: Arc<ConnectionState>,
    app: Arc<AppState>,
    _permit: OwnedSemaphorePermit,
}

impl Streams {
    pub(super) fn new(app: Arc<AppState>) -> Self {
        Streams { permits: Arc::new(Semaphore::new(app.settings.limits.grpc_streams)), app }
    }

    /// Opens a stream on the connection that `state` belongs to.
    pub(super) fn open(&self, state: &Arc<ConnectionState>) -> Result<StreamGuard, Status> {
        let max = self.app.settings.limits.grpc_streams_per_connection;
        if !state.open_stream(max) {
            return Err(Status::resource_exhausted(format!(
                "{max} streams are open on this connection, which is the limit: close one, or raise \
                 listen.limits.grpc-streams-per-connection"
            )));
        }
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            state.close_stream();
            let max = self.app.settings.limits.grpc_streams;
            return Err(Status::resource_exhausted(format!(
                "{max} streams are open, which is the limit: try again later, or raise listen.limits.grpc-streams"
            )));
        };
        // The call that opens the stream is in flight, so the connection cannot have been evicted.
        let _ = state.begin();
        Ok(StreamGuard { state: Arc::clone(state), app: Arc::clone(&self.app), _permit: permit })
    }
}

impl StreamGuard {
    /// Returns a body that holds the stream open until it is dropped.
    pub(super) fn hold(self, body: Body) -> Body {
        Body::new(body.map_frame(move |frame| {
            let _open = &self;
            frame
        }))
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.state.close_stream();
        self.state.end(self.app.stats.now());
    }
}
