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
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct Health {
    gate: Arc<AppState>,
    /// Status as of the last look, told to all watches. The channel closes when the server stops.
    status: watch::Receiver<ServingStatus>,
}

impl Health {
    pub(super) fn new(gate: Arc<AppState>, stop: Stop) -> Self {
        let (told, status) = watch::channel(ServingStatus::Unknown);
        tokio::spawn(look(Arc::clone(&gate), told, stop));
        Health { gate, status }
    }

    pub(super) async fn check(&self, asked: HealthCheckRequest) -> Result<HealthCheckResponse, Status> {
        let service = asked.service;
        if !is_known(&service) {
            return Err(Status::not_found(format!("there is no service {service}; there is {SERVICE}")));
        }
        Ok(response(status_of(&self.gate).await))
    }

    /// Tells the status now, and each other one that follows, until the server stops.
    pub(super) async fn watch(&self, asked: HealthCheckRequest) -> Response<Body> {
        let (status, changes) = if is_known(&asked.service) {
            (status_of(&self.gate).await, Changes::Followed(self.status.clone()))
        } else {
            (ServingStatus::ServiceUnknown, Changes::None(self.status.clone()))
        };
        let watching = Watching { next: Some(status), last: status, changes: Some(changes) };
        let mut response = Response::new(Body::new(StreamBody::new(stream::unfold(watching, frame))));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        response
    }
}

/// Looks at the status while anyone watches it.
async fn look(gate: Arc<AppState>, told: watch::Sender<ServingStatus>, mut stop: Stop) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = stop.changed() => break,
        }
        // One is the door's.
        if told.receiver_count() > 1 {
            told.send_replace(status_of(&gate).await);
        }
    }
    told.send_replace(ServingStatus::NotServing);
}

async fn status_of(gate: &AppState) -> ServingStatus {
    if !gate.limiter.rules().is_known() {
        return ServingStatus::NotServing;
    }
    match gate.limiter.store().ready().await {
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
struct Watching {
    /// Status to tell next, if it is known.
    next: Option<ServingStatus>,
    last: ServingStatus,
    /// None when the last frame was sent.
    changes: Option<Changes>,
}

/// News of a watch.
enum Changes {
    Followed(watch::Receiver<ServingStatus>),
    /// Of a service that there is not. It only ends.
    None(watch::Receiver<ServingStatus>),
}

impl Changes {
    /// The next status; none when the server stops.
    async fn next(&mut self) -> Option<ServingStatus> {
        match self {
            Changes::Followed(status) => {
                status.changed().await.ok()?;
                Some(*status.borrow_and_update())
            }
            Changes::None(status) => {
                while status.changed().await.is_ok() {}
                None
            }
        }
    }
}

type Frames = Result<Frame<Bytes>, Infallible>;

async fn frame(mut watching: Watching) -> Option<(Frames, Watching)> {
    loop {
        if let Some(status) = watching.next.take() {
            watching.last = status;
            return Some((Ok(Frame::data(framing::frame(&response(status)))), watching));
        }
        match watching.changes.as_mut()?.next().await {
            Some(status) if status == watching.last => {}
            Some(status) => watching.next = Some(status),
            None => {
                watching.changes = None;
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
                return Some((Ok(Frame::trailers(trailers)), watching));
            }
        }
    }
}
