//! HTTP API: JSON requests and decisions, administration, metrics and the dashboard.

mod access;
mod acquire;
mod authz;
mod call;
mod capture;
mod dashboard;
mod dto;
mod error;
mod explain;
mod fast_path;
mod fleet;
mod forward_auth;
mod health;
mod history;
mod key_list;
mod keys;
mod live;
pub(super) mod live_stats;
mod metrics;
mod openapi;
mod operation;
mod query;
mod release;
mod report;
mod response;
mod route;
mod rules;
mod settle;
mod slow_path;
mod store;
mod top_keys;

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

use self::call::Call;
use self::error::{ApiError, Code};
use self::operation::Endpoint;
use self::response::BufferedResponse;
use self::route::{Endpoints, Route};
use crate::app::state::AppState;
use crate::common::protocol::Protocol;
use crate::common::timeout::within;
use crate::telemetry::stats::Instrumented;

/// Maximum size of the body of a single request, in bytes.
pub(crate) const MAX_BODY: usize = 64 << 10;

/// Maximum size of the body of a batch, in bytes.
pub(crate) const MAX_BATCH_BODY: usize = 1 << 20;

/// Maximum number of requests in a batch.
pub(crate) const MAX_BATCH: usize = 1_000;

pub(crate) type Shared = Arc<AppState>;

/// Operations that a listener accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Decisions and statistics. Changes too, with an admin token, unless there is a separate admin listener.
    Api {
        /// True if this listener accepts changes as well.
        allows_changes: bool,
    },
    /// All operations. Changes need an admin token only if one is configured.
    Admin,
}

/// Serves HTTP connections. A request that takes too long to arrive and be answered is aborted.
pub(crate) struct ConnectionHandler {
    app: Shared,
    role: Role,
    endpoints: Endpoints,
    /// Router for all paths.
    router: TowerToHyperService<Router>,
    clock: SystemClock,
}

/// Response body, written here or by the router.
type ResponseBody = Either<Full<Bytes>, Body>;

impl ConnectionHandler {
    pub(crate) fn new(app: Shared, role: Role) -> Self {
        let routes = routes();
        let endpoints = Endpoints::new(&routes);
        let router = TowerToHyperService::new(router(routes, Arc::clone(&app)));
        ConnectionHandler { app, role, endpoints, router, clock: SystemClock::new() }
    }

    fn instrumented(&self) -> Instrumented<'_> {
        self.app.instrumented(Protocol::Http)
    }

    fn timeout(&self) -> Duration {
        self.app.settings.limits.request
    }

    /// Authorizes and answers a request to `endpoint`.
    ///
    /// Routing would take longer than a call, so calls bypass the router.
    async fn answer(&self, endpoint: Option<Endpoint>, request: Request<Incoming>) -> Response<ResponseBody> {
        if let Err(error) = self.authorize(endpoint, request.headers()) {
            return error.into_buffered().map(|body| Either::Left(Full::new(body)));
        }
        match Call::find(request.method().as_str(), request.uri().path()) {
            Some(call) => {
                let answer = pin!(call.read_and_answer(self.instrumented(), request));
                let answer = within(self.timeout(), answer).await.unwrap_or_else(request_timeout);
                answer.map(|body| Either::Left(Full::new(body)))
            }
            None => match within(self.timeout(), pin!(self.router.call(request))).await {
                Some(Ok(response)) => response.map(Either::Right),
                None => request_timeout().map(|body| Either::Left(Full::new(body))),
            },
        }
    }
}

fn request_timeout() -> BufferedResponse {
    let error = ApiError::new(Code::Timeout, "the request took too long to arrive");
    let mut answer = error.into_buffered();
    // The body was not read completely. On an open connection, its rest would be parsed as the next request.
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// Returns all routes of the API.
fn routes() -> Vec<Route> {
    let others = [
        self::forward_auth::route(),
        rules::route(),
        key_list::route(),
        keys::route(),
        store::route(),
        self::top_keys::route(),
        live::route(),
        history::route(),
        fleet::route(),
        access::route(),
        self::capture::route(),
        health::healthz_route(),
        health::readyz_route(),
        metrics::route(),
        openapi::route(),
        dashboard::index_route(),
        dashboard::file_route(),
    ];
    Call::ALL.map(Call::route).into_iter().chain(others).collect()
}

fn router(routes: Vec<Route>, app: Shared) -> Router {
    routes
        .into_iter()
        .fold(Router::new(), |router, route| route.add_to(router))
        .fallback(async || ApiError::new(Code::NotFound, "unknown path: see GET /"))
        .method_not_allowed_fallback(async || {
            ApiError::new(Code::MethodNotAllowed, "this path does not accept this method: see GET /")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(app)
}
