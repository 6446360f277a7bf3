//! gRPC server: Envoy's rate limit service, health checks and reflection.
//!
//! Routing or a task switch would take longer than a decision. So `ShouldRateLimit` and health checks bypass
//! tonic's routes and run in the task that reads the connection if they can be answered immediately (see
//! `inline_executor`). Tonic serves reflection.

mod deadline;
mod descriptor;
mod framing;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod health;
mod inline_executor;
pub mod messages;
mod rate_limit;
mod reflection;
mod response;
mod streams;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;

use http_body_util::Either;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::server::conn::http2;
use hyper::service::{Service, service_fn};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio_io_timeout::TimeoutStream;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Status};

use self::framing::UnaryBody;
use self::health::Health;
use self::inline_executor::InlineExecutor;
use self::streams::Streams;
use super::connection_slots::ConnectionState;
use super::listener::{self, Stop, Stream};
use crate::app::auth::bearer;
use crate::app::state::AppState;
use crate::common::protocol::Protocol;
use crate::common::timeout::within;
use crate::telemetry::trace::TraceContext;

/// Maximum size of a message, in bytes. Envoy can copy headers of its client into a descriptor, so a descriptor
/// can be as long as these headers.
const MAX_MESSAGE: usize = 1 << 20;

/// HTTP/2 flow control window of one call, in bytes. The window of a connection is four times as large.
const FLOW_CONTROL_WINDOW: u32 = 128 << 10;

/// Maximum number of concurrent calls on one connection.
const MAX_CONCURRENT_CALLS: u32 = 1024;

/// Maximum size of the headers of a call, in bytes.
const MAX_HEADER_BYTES: u32 = 16 << 10;

/// Full name of the service that Envoy calls.
const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// Path of the service's only method.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Response body, encoded here or produced by tonic.
type ResponseBody = Either<UnaryBody, Body>;

/// Future of one call. It is boxed because hyper moves it.
type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Infallible>> + Send>>;

/// Serves gRPC connections.
pub(crate) struct ConnectionHandler {
    app: Arc<AppState>,
    health: Health,
    streams: Streams,
    /// Tonic's routes for everything except [`SHOULD_RATE_LIMIT`] and health.
    routes: TowerToHyperService<Routes>,
}

impl ConnectionHandler {
    pub(crate) fn new(app: Arc<AppState>, stop: Stop) -> Self {
        let routes = reflection::add_to(Routes::default());
        let (health, streams) = (Health::new(Arc::clone(&app), stop), Streams::new(Arc::clone(&app)));
        ConnectionHandler { app, health, streams, routes: TowerToHyperService::new(routes.prepare()) }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        state: &Arc<ConnectionState>,
    ) -> Result<Response<ResponseBody>, Status> {
        if !is_grpc(&request) {
            let mut answer = Response::new(Either::Right(Body::empty()));
            *answer.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Ok(answer);
        }
        if !self.is_authorized(&request) {
            return Err(Status::unauthenticated("a token is required: send authorization: Bearer …"));
        }
        let timeout = deadline::from_headers(request.headers(), self.app.settings.limits.request)?;
        let path = Some(request.uri().path()).filter(|_| request.method() == Method::POST);
        if path == Some(SHOULD_RATE_LIMIT) {
            let instrumented =
                self.app.instrumented(Protocol::Grpc).called_by(TraceContext::of(request.headers()));
            let decision = pin!(async {
                let message =
                    framing::read_message(request.into_body(), state, || self.app.budget_share()).await?;
                rate_limit::decide(instrumented, message).await
            });
            let response = match within(timeout, decision).await.ok_or_else(deadline::exceeded)? {
                // By default Envoy lets a request pass if the rate limit call fails. A client could cause this
                // failure with long headers, so the call succeeds with the verdict `OverLimit`.
                Err(status) if status.code() == Code::ResourceExhausted => {
                    self.app.stats.count_denied(Protocol::Grpc);
                    rate_limit::over_limit()
                }
                decided => decided?,
            };
            return Ok(framing::unary_response(&response).map(Either::Left));
        }
        if path == Some(health::CHECK) {
            let checked = pin!(async {
                let message =
                    framing::read_message(request.into_body(), state, || self.app.budget_share()).await?;
                self.health.check(message).await
            });
            let response = within(timeout, checked).await.ok_or_else(deadline::exceeded)??;
            return Ok(framing::unary_response(&response).map(Either::Left));
        }
        let is_watch = path == Some(health::WATCH);
        let stream = self.streams.open(state)?;
        let answered = pin!(async {
            if is_watch {
                let message =
                    framing::read_message(request.into_body(), state, || self.app.budget_share()).await?;
                return Ok(self.health.watch(message).await);
            }
            let Ok(response) = self.routes.call(request).await;
            Ok::<_, Status>(response)
        });
        let response = within(timeout, answered).await.ok_or_else(deadline::exceeded)??;
        Ok(response.map(|body| Either::Right(stream.hold(body))))
    }

    /// Checks the token of a call. Health checks need no token: load balancers have none, and a health check
    /// reveals only the health status.
    fn is_authorized<B>(&self, request: &Request<B>) -> bool {
        let token = || request.headers().get(AUTHORIZATION).and_then(|header| bearer(header.as_bytes()));
        let access = &self.app.settings.access;
        access.is_open() || request.uri().path().starts_with(health::PREFIX) || access.may_call(token())
    }
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE);
    content_type.is_some_and(|content_type| content_type.as_bytes().starts_with(b"application/grpc"))
}

fn error_response(status: Status) -> Response<ResponseBody> {
    status.into_http::<Body>().map(Either::Right)
}

/// Guard of a request in flight. The request ends when the guard is dropped, also when the client cancels the
/// call.
struct RequestGuard<'c> {
    state: &'c ConnectionState,
    app: &'c AppState,
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.state.end(self.app.stats.now());
    }
}

impl listener::ConnectionHandler for ConnectionHandler {
    const PROTOCOL: Protocol = Protocol::Grpc;

    fn app(&self) -> &AppState {
        &self.app
    }

    async fn serve(
        self: Arc<Self>,
        stream: impl Stream,
        _peer: SocketAddr,
        state: Arc<ConnectionState>,
        mut stop: Stop,
    ) {
        let limits = self.app.settings.limits;
        let mut stream = TimeoutStream::new(stream);
        // A live peer sends at least answers to pings. Only a peer that has begun to speak HTTP/2 is pinged.
        stream.set_read_timeout(Some(limits.head + limits.request));
        stream.set_write_timeout(Some(limits.request));

        let mut server = http2::Builder::new(InlineExecutor);
        server
            .timer(TokioTimer::new())
            .keep_alive_interval(limits.head)
            .keep_alive_timeout(limits.request)
            .max_concurrent_streams(MAX_CONCURRENT_CALLS)
            // Envoy cancels a call by a stream reset. If this server stalls, many resets wait at once. They
            // must not close the connection, because that would fail the other calls.
            .max_pending_accept_reset_streams(MAX_CONCURRENT_CALLS as usize)
            .max_header_list_size(MAX_HEADER_BYTES)
            // Nearly every message fits into the window of its call, and a connection buffers no more than a
            // few messages.
            .initial_stream_window_size(FLOW_CONTROL_WINDOW)
            .initial_connection_window_size(4 * FLOW_CONTROL_WINDOW)
            .max_send_buf_size(FLOW_CONTROL_WINDOW as usize)
            .auto_date_header(false);
        let service = service_fn(move |request: Request<Incoming>| -> ResponseFuture {
            let (handler, state) = (Arc::clone(&self), Arc::clone(&state));
            Box::pin(async move {
                if !state.begin() {
                    return Ok(error_response(Status::unavailable(
                        "this connection is closed to make room for another",
                    )));
                }
                let _guard = RequestGuard { state: &state, app: &handler.app };
                Ok(handler.answer(request, &state).await.unwrap_or_else(error_response))
            })
        });
        let mut connection = pin!(server.serve_connection(TokioIo::new(Box::pin(stream)), service));
        tokio::select! {
            _ = &mut connection => return,
            _ = stop.changed() => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }
}
