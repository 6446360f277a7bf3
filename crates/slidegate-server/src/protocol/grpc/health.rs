//! `grpc.health.v1.Health`: reports `SERVING` while the server can decide.
//!
//! Load balancers have no token, so any client may call it. All watches share one channel, which one task
//! feeds. Their number is bounded: see [`streams`](super::streams).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Response};
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::{SERVICE, framing};
use crate::app::state::AppState;
use crate::protocol::listener::Stop;
use crate::store::Readiness;

/// Common prefix of the paths of the health service.
pub(super) const PREFIX: &str = "/grpc.health.v1.Health/";

pub(super) const CHECK: &str = "/grpc.health.v1.Health/Check";

pub(super) const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Time between two checks of the status while a client watches it.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Health {
    app: Arc<AppState>,
    /// Status at the last check, shared by all watches. The channel closes when the server stops.
    status: watch::Receiver<ServingStatus>,
}

impl Health {
    pub(super) fn new(app: Arc<AppState>, stop: Stop) -> Self {
        let (sender, status) = watch::channel(ServingStatus::Unknown);
        tokio::spawn(poll_status(Arc::clone(&app), sender, stop));
        Health { app, status }
    }

    pub(super) async fn check(&self, request: HealthCheckRequest) -> Result<HealthCheckResponse, Status> {
        let service = request.service;
        if !is_known(&service) {
            return Err(Status::not_found(format!("unknown service {service}: the service is {SERVICE}")));
        }
        Ok(response(status_of(&self.app).await))
    }

    /// Streams the current status and each change that follows, until the server stops.
    pub(super) async fn watch(&self, request: HealthCheckRequest) -> Response<Body> {
        let (status, changes) = if is_known(&request.service) {
            (status_of(&self.app).await, Changes::KnownService(self.status.clone()))
        } else {
            (ServingStatus::ServiceUnknown, Changes::UnknownService(self.status.clone()))
        };
        let watch_stream = WatchStream { next: Some(status), last: status, changes: Some(changes) };
        let mut response =
            Response::new(Body::new(StreamBody::new(stream::unfold(watch_stream, next_frame))));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        response
    }
}

/// Publishes the status every [`POLL_INTERVAL`] while a client watches it.
async fn poll_status(app: Arc<AppState>, sender: watch::Sender<ServingStatus>, mut stop: Stop) {
    let mut draining = app.watch_draining();
    loop {
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            Ok(()) = draining.changed() => {}
            _ = stop.changed() => break,
        }
        // One receiver belongs to [`Health`] itself.
        if sender.receiver_count() > 1 {
            sender.send_replace(status_of(&app).await);
        }
    }
    sender.send_replace(ServingStatus::NotServing);
}

async fn status_of(app: &AppState) -> ServingStatus {
    if app.is_draining() || !app.limiter.rules().is_known() {
        return ServingStatus::NotServing;
    }
    match app.limiter.store().ready().await {
        Readiness::Ready | Readiness::Degraded(_) => ServingStatus::Serving,
        Readiness::NotReady(_) => ServingStatus::NotServing,
    }
}

/// Accepts the empty name, which means the whole server, and the rate limit service.
fn is_known(service: &str) -> bool {
    service.is_empty() || service == SERVICE
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

/// State of one watch.
struct WatchStream {
    /// Status to send next, if there is one.
    next: Option<ServingStatus>,
    last: ServingStatus,
    /// `None` once the last frame was sent.
    changes: Option<Changes>,
}

/// Source of the status changes of a watch.
enum Changes {
    KnownService(watch::Receiver<ServingStatus>),
    /// The requested service does not exist: its status never changes, and the watch ends with the server.
    UnknownService(watch::Receiver<ServingStatus>),
}

impl Changes {
    /// Waits for the next status. Returns `None` when the server stops.
    async fn next(&mut self) -> Option<ServingStatus> {
        match self {
            Changes::KnownService(status) => {
                status.changed().await.ok()?;
                Some(*status.borrow_and_update())
            }
            Changes::UnknownService(status) => {
                while status.changed().await.is_ok() {}
                None
            }
        }
    }
}

type FrameResult = Result<Frame<Bytes>, Infallible>;

async fn next_frame(mut watch_stream: WatchStream) -> Option<(FrameResult, WatchStream)> {
    loop {
        if let Some(status) = watch_stream.next.take() {
            watch_stream.last = status;
            return Some((Ok(Frame::data(framing::encode_frame(&response(status)))), watch_stream));
        }
        match watch_stream.changes.as_mut()?.next().await {
            Some(status) if status == watch_stream.last => {}
            Some(status) => watch_stream.next = Some(status),
            None => {
                watch_stream.changes = None;
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
                return Some((Ok(Frame::trailers(trailers)), watch_stream));
            }
        }
    }
}
