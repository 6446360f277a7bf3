//! `grpc.health.v1.Health`: serving while decisions can be made.
//!
//! Load balancers have no token, so anyone may ask. All watches share one channel, which one task feeds, and they are bounded:
//! see [`streams`](super::streams).

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

/// How its paths begin.
pub(super) const PREFIX: &str = "/grpc.health.v1.Health/";

pub(super) const CHECK: &str = "/grpc.health.v1.Health/Check";

pub(super) const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// How often a watched status is looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Health {
    app: Arc<AppState>,
    /// Status as of the last look, told to all watches. The channel closes when the server stops.
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
            return Err(Status::not_found(format!("there is no service {service}; there is {SERVICE}")));
        }
        Ok(response(status_of(&self.app).await))
    }

    /// Tells the status now, and each other one that follows, until the server stops.
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

/// Looks at the status while anyone watches it.
async fn poll_status(app: Arc<AppState>, sender: watch::Sender<ServingStatus>, mut stop: Stop) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            _ = stop.changed() => break,
        }
        // One is the door's.
        if sender.receiver_count() > 1 {
            sender.send_replace(status_of(&app).await);
        }
    }
    sender.send_replace(ServingStatus::NotServing);
}

async fn status_of(app: &AppState) -> ServingStatus {
    if !app.limiter.rules().is_known() {
        return ServingStatus::NotServing;
    }
    match app.limiter.store().ready().await {
        Readiness::Ready | Readiness::Degraded(_) => ServingStatus::Serving,
        Readiness::NotReady(_) => ServingStatus::NotServing,
    }
}

/// The server as a whole, or the one service that decides.
fn is_known(service: &str) -> bool {
    service.is_empty() || service == SERVICE
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

/// One watch.
struct WatchStream {
    /// Status to tell next, if it is known.
    next: Option<ServingStatus>,
    last: ServingStatus,
    /// None when the last frame was sent.
    changes: Option<Changes>,
}

/// News of a watch.
enum Changes {
    KnownService(watch::Receiver<ServingStatus>),
    /// Of a service that there is not. It only ends.
    UnknownService(watch::Receiver<ServingStatus>),
}

impl Changes {
    /// The next status; none when the server stops.
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
