//! `grpc.health.v1.Health`: serving while decisions can be made.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::SERVICE;
use crate::gate::Gate;
use crate::listen::Stop;
use crate::store::Readiness;

/// How its paths begin.
pub(super) const PREFIX: &str = "/grpc.health.v1.Health/";

/// How often a watched status is looked at.
const LOOK: Duration = Duration::from_secs(1);

pub(super) fn server(gate: Arc<Gate>) -> HealthServer<impl Health> {
    HealthServer::new(Of(gate)).max_decoding_message_size(super::MAX_MESSAGE)
}

struct Of(Arc<Gate>);

async fn status_of(gate: &Gate) -> ServingStatus {
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

#[tonic::async_trait]
impl Health for Of {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        if !is_known(&service) {
            return Err(Status::not_found(format!("there is no service {service}; there is {SERVICE}")));
        }
        let status = status_of(&self.0).await.into();
        Ok(Response::new(HealthCheckResponse { status }))
    }

    type WatchStream = Watched;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Watched>, Status> {
        let stop = request.extensions().get::<Stop>().cloned();
        let known = is_known(&request.into_inner().service);
        let (told, watched) = mpsc::channel(1);
        if let Some(stop) = stop {
            let watcher = watch(Arc::clone(&self.0), known, told, stop);
            tokio::spawn(watcher);
        }
        Ok(Response::new(Watched(watched)))
    }
}

/// Tells the status now, and each other one that follows, until nobody listens or the server stops.
async fn watch(gate: Arc<Gate>, known: bool, told: mpsc::Sender<ServingStatus>, mut stop: Stop) {
    let mut last = None;
    loop {
        let status = if known { status_of(&gate).await } else { ServingStatus::ServiceUnknown };
        if last != Some(status) && told.send(status).await.is_err() {
            return;
        }
        last = Some(status);
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = told.closed() => return,
            _ = stop.changed() => {
                let _ = told.try_send(ServingStatus::NotServing);
                return;
            }
        }
    }
}

pub(super) struct Watched(mpsc::Receiver<ServingStatus>);

impl Stream for Watched {
    type Item = Result<HealthCheckResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let told = self.0.poll_recv(cx);
        told.map(|told| told.map(|status| Ok(HealthCheckResponse { status: status.into() })))
    }
}
