//! The HTTP door: JSON in, a decision out.

mod acquire;
mod authz;
mod capture;
mod connection;
mod dashboard;
mod dto;
mod error;
mod explain;
mod fast_path;
mod forward_auth;
mod health;
mod keys;
mod live;
pub(super) mod live_stats;
mod metrics;
mod openapi;
mod operation;
mod release;
mod report;
mod response;
mod route;
mod rules;
mod settle;
mod store;
mod top_keys;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderValue, Request, Response, header};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use slidegate::SystemClock;

use self::acquire::DecisionKind;
use self::error::{ApiError, Code};
use self::response::Answer;
use self::route::Route;
use super::connection_slots::ConnectionState;
use super::listener::{self, Stop, Stream};
use crate::app::state::AppState;
use crate::common::protocol::Protocol;
use crate::common::timeout::within;
use crate::telemetry::stats::Instrumented;

/// The largest body of a single request, in bytes.
pub const MAX_BODY: usize = 64 << 10;

/// The largest body of a batch, in bytes.
pub const MAX_BATCH_BODY: usize = 1 << 20;

/// The most requests in a batch.
pub const MAX_BATCH: usize = 1_000;

pub(crate) type Shared = Arc<AppState>;

/// What may be asked at a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Decisions; and changes, by those who show a token for them, unless there is another door for those.
    Asking {
        /// Whether this is the door for changes as well.
        may_change: bool,
    },
    /// Everything: whoever can reach it may change things, with a token if there is one.
    Admin,
}

/// Where requests come in. One that takes too long to arrive and be answered is given up.
pub(crate) struct ConnectionHandler {
    gate: Shared,
    role: Role,
    /// Knows every path.
    router: TowerToHyperService<Router>,
    clock: SystemClock,
}

/// Of an answer made here, or by the router.
type DoorBody = Either<Full<Bytes>, Body>;

impl ConnectionHandler {
    pub(crate) fn new(gate: Shared, role: Role) -> Self {
        let router = TowerToHyperService::new(router(Arc::clone(&gate)));
        ConnectionHandler { gate, role, router, clock: SystemClock::new() }
    }

    fn deciding(&self) -> Instrumented<'_> {
        self.gate.instrumented(Protocol::Http)
    }

    fn timeout(&self) -> Duration {
        self.gate.settings.limits.request
    }

    /// A decision takes less time than a router, so the paths that most requests have do not go through it.
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<DoorBody> {
        if let Err(error) = self.admits(request.method(), request.uri().path(), request.headers()) {
            return error.into_answer().map(|body| Either::Left(Full::new(body)));
        }
        match DecisionKind::of(request.method().as_str(), request.uri().path()) {
            Some(question) => {
                let answer = pin!(question.answer_when_here(self.deciding(), request));
                let answer = within(self.timeout(), answer).await.unwrap_or_else(too_late);
                answer.map(|body| Either::Left(Full::new(body)))
            }
            None => match within(self.timeout(), pin!(self.router.call(request))).await {
                Some(Ok(response)) => response.map(Either::Right),
                None => too_late().map(|body| Either::Left(Full::new(body))),
            },
        }
    }
}

impl listener::ConnectionHandler for ConnectionHandler {
    const PROTOCOL: Protocol = Protocol::Http;

    fn gate(&self) -> &AppState {
        &self.gate
    }

    async fn serve(
        self: Arc<Self>,
        stream: impl Stream,
        peer: SocketAddr,
        seat: Arc<ConnectionState>,
        stop: Stop,
    ) {
        let _ = connection::serve(self, stream, peer, seat, stop).await;
    }
}

fn too_late() -> Answer {
    let error = ApiError::new(Code::Timeout, "the request took too long to arrive");
    let mut answer = error.into_answer();
    // What is left of the body would be taken for the next request.
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// Everything that may be asked.
fn routes() -> Vec<Route> {
    vec![
        DecisionKind::Acquire.route(),
        DecisionKind::Peek.route(),
        acquire::batch_route(),
        explain::route(),
        settle::route(),
        self::release::release_route(),
        self::release::extend_route(),
        report::route(),
        self::forward_auth::route(),
        rules::route(),
        keys::route(),
        store::route(),
        self::top_keys::route(),
        live::route(),
        self::capture::route(),
        health::alive(),
        health::ready(),
        metrics::route(),
        openapi::route(),
        dashboard::index(),
        dashboard::file(),
    ]
}

fn router(gate: Shared) -> Router {
    routes()
        .into_iter()
        .fold(Router::new(), |router, route| route.add_to(router))
        .fallback(async || ApiError::new(Code::NotFound, "there is nothing here: see GET /"))
        .method_not_allowed_fallback(async || {
            ApiError::new(Code::MethodNotAllowed, "this path takes another method: see GET /")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(gate)
}
