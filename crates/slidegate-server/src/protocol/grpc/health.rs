//! `grpc.health.v1.Health`: reports `SERVING` while the server can decide.
//!
//! Load balancers have no token, so any client may call it. All watches share one channel, which one task
//! feeds. Their number is bounded: see [`streams`](super::streams).

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use http_body_util::StreamBody;
use hyper::Response;
use tokio::sync::{Mutex, watch};
use tonic::Status;
use tonic::body::Body;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::{SERVICE, framing};
use crate::app::readiness::Readiness;
use crate::app::state::AppState;
use crate::protocol::listener::Stop;

/// Common prefix of the paths of the health service.
pub(super) const PREFIX: &str = "/grpc.health.v1.Health/";

pub(super) const CHECK: &str = "/grpc.health.v1.Health/Check";

pub(super) const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Time between two checks of the status while a client watches it.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Health {
    app: Arc<AppState>,
    /// Status at the last check, shared by all watches. `Unknown` before the first check. The channel closes when the server
    /// stops.
    status: watch::Receiver<ServingStatus>,
    /// Held from a check of the status until the status is published, or is the first status of a new watch. So a
    /// watch never gets a status that is older than its first status.
    checking: Arc<Mutex<()>>,
}

impl Health {
    pub(super) fn new(app: Arc<AppState>, stop: Stop) -> Self {
        let (sender, status) = watch::channel(ServingStatus::Unknown);
        let checking = Arc::default();
        tokio::spawn(poll_status(Arc::clone(&app), sender, Arc::clone(&checking), stop));
        Health { app, status, checking }
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
        let is_known = is_known(&request.service);
        let mut published = self.status.clone();
        let status = if is_known {
            let _checking = self.checking.lock().await;
            // No status is published while there is no watch, so the last published status may be old.
            published.mark_unchanged();
            status_of(&self.app).await
        } else {
            ServingStatus::ServiceUnknown
        };
        let changes = stream::unfold(Some((status, published)), move |watch| async move {
            let (last, mut published) = watch?;
            while published.changed().await.is_ok() {
                let status = *published.borrow_and_update();
                // The status of a service that does not exist never changes, and the watch ends with the server.
                if is_known && status != last {
                    return Some((framing::message_frame(&response(status)), Some((status, published))));
                }
            }
            Some((framing::ok_trailers(), None))
        });
        let frames = stream::iter([framing::message_frame(&response(status))]).chain(changes);
        framing::response(Body::new(StreamBody::new(frames)))
    }
}

/// Publishes the status every [`POLL_INTERVAL`] while a client watches it.
async fn poll_status(
    app: Arc<AppState>,
    sender: watch::Sender<ServingStatus>,
    checking: Arc<Mutex<()>>,
    mut stop: Stop,
) {
    let mut draining = app.watch_draining();
    loop {
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            Ok(()) = draining.changed() => {}
            _ = stop.changed() => break,
        }
        // [`Health`] itself has one receiver, and each watch has another.
        if sender.receiver_count() > 1 {
            let _checking = checking.lock().await;
            sender.send_replace(status_of(&app).await);
        }
    }
    sender.send_replace(ServingStatus::NotServing);
}

async fn status_of(app: &AppState) -> ServingStatus {
    match app.readiness().await {
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
