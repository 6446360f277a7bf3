//! gRPC: Envoy's rate limit service, with health and reflection.
//!
//! A decision takes less time than a router or a task. So `ShouldRateLimit` bypasses tonic's routes, and runs in the task that
//! reads the connection if it can be answered at once (`at_once`). So does a health check. Tonic serves reflection.

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

use self::framing::Reply;
use self::health::Health;
use self::inline_executor::AtOnce;
use self::streams::{StreamedBody, Streams};
use super::connection_slots::ConnectionState;
use super::listener::{self, Stop, Stream};
use crate::app::auth::bearer;
use crate::app::state::AppState;
use crate::common::protocol::Protocol;
use crate::common::timeout::within;
use crate::telemetry::trace::TraceContext;

/// The largest message, in bytes: a client of Envoy's can make a descriptor as long as its headers may be.
const MAX_MESSAGE: usize = 1 << 20;

/// What may be on its way to us of one call; of a connection it is four times that.
const WINDOW: u32 = 128 << 10;

/// The most calls at once on one connection.
const MAX_STREAMS: u32 = 1024;

/// The largest headers of a call, in bytes.
const MAX_HEADERS: u32 = 16 << 10;

/// The service that Envoy asks, by its full name.
const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// Its one method.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Of an answer made here, or by tonic.
type DoorBody = Either<Reply, StreamedBody>;

/// In a box, because hyper moves it.
type Answering = Pin<Box<dyn Future<Output = Result<Response<DoorBody>, Infallible>> + Send>>;

/// Answers gRPC.
pub(crate) struct ConnectionHandler {
    gate: Arc<AppState>,
    health: Health,
    streams: Streams,
    /// Everything but [`SHOULD_RATE_LIMIT`] and health.
    routes: TowerToHyperService<Routes>,
}

impl ConnectionHandler {
    pub(crate) fn new(gate: Arc<AppState>, stop: Stop) -> Self {
        let routes = reflection::add_to(Routes::default());
        let (health, streams) = (Health::new(Arc::clone(&gate), stop), Streams::new(Arc::clone(&gate)));
        ConnectionHandler { gate, health, streams, routes: TowerToHyperService::new(routes.prepare()) }
    }

    async fn answer(&self, request: Request<Incoming>, seat: &Arc<ConnectionState>) -> Response<DoorBody> {
        if !is_grpc(&request) {
            let mut answer = Response::new(Either::Right(StreamedBody::new(Body::empty(), None)));
            *answer.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return answer;
        }
        if !self.may_ask(&request) {
            return denial(Status::unauthenticated("this needs a token: authorization: Bearer …"));
        }
        let patience = match deadline::of(request.headers(), self.gate.settings.limits.request) {
            Ok(patience) => patience,
            Err(status) => return denial(status),
        };
        let (post, path) = (request.method() == Method::POST, request.uri().path());
        if post && path == SHOULD_RATE_LIMIT {
            let deciding =
                self.gate.instrumented(Protocol::Grpc).called_by(TraceContext::of(request.headers()));
            let decided = pin!(async {
                let asked =
                    self::framing::message(request.into_body(), seat, || self.gate.budget_share()).await?;
                rate_limit::decide(deciding, asked).await
            });
            return match within(patience, decided).await {
                Some(Ok(response)) => self::framing::reply(&response).map(Either::Left),
                // By default Envoy passes a request on if the call fails. A client must not get that by long headers.
                Some(Err(status)) if status.code() == Code::ResourceExhausted => {
                    self.gate.stats.count_denied(Protocol::Grpc);
                    self::framing::reply(&rate_limit::over_limit()).map(Either::Left)
                }
                Some(Err(status)) => denial(status),
                None => denial(deadline::passed()),
            };
        }
        if post && path == health::CHECK {
            let checked = pin!(async {
                let asked =
                    self::framing::message(request.into_body(), seat, || self.gate.budget_share()).await?;
                self.health.check(asked).await
            });
            return match within(patience, checked).await {
                Some(Ok(response)) => self::framing::reply(&response).map(Either::Left),
                Some(Err(status)) => denial(status),
                None => denial(deadline::passed()),
            };
        }
        let stream = match self.streams.open(seat) {
            Ok(stream) => stream,
            Err(status) => return denial(status),
        };
        let answer = if post && path == health::WATCH {
            let watched = pin!(async {
                let asked =
                    self::framing::message(request.into_body(), seat, || self.gate.budget_share()).await?;
                Ok::<_, Status>(self.health.watch(asked).await)
            });
            within(patience, watched).await
        } else {
            let routed = pin!(async {
                let Ok(response) = self.routes.call(request).await;
                Ok(response)
            });
            within(patience, routed).await
        };
        match answer {
            Some(Ok(response)) => response.map(|body| Either::Right(StreamedBody::new(body, Some(stream)))),
            Some(Err(status)) => denial(status),
            None => denial(deadline::passed()),
        }
    }

    /// Whoever balances load has no token, and learns nothing from whether this server is well.
    fn may_ask<B>(&self, request: &Request<B>) -> bool {
        let shown = || request.headers().get(AUTHORIZATION).and_then(|header| bearer(header.as_bytes()));
        let access = &self.gate.settings.access;
        access.is_open() || request.uri().path().starts_with(health::PREFIX) || access.may_call(shown())
    }
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

fn denial(status: Status) -> Response<DoorBody> {
    status.into_http::<Body>().map(|body| Either::Right(StreamedBody::new(body, None)))
}

/// Call under way, also when its client gives it up.
struct Busy<'c> {
    seat: &'c ConnectionState,
    gate: &'c AppState,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.seat.end(self.gate.stats.now());
    }
}

impl listener::ConnectionHandler for ConnectionHandler {
    const PROTOCOL: Protocol = Protocol::Grpc;

    fn gate(&self) -> &AppState {
        &self.gate
    }

    async fn serve(
        self: Arc<Self>,
        stream: impl Stream,
        _peer: SocketAddr,
        seat: Arc<ConnectionState>,
        mut stop: Stop,
    ) {
        let limits = self.gate.settings.limits;
        let mut stream = TimeoutStream::new(stream);
        // A peer that is there answers a ping at least; one that never begins to speak HTTP/2 gets none.
        stream.set_read_timeout(Some(limits.head + limits.request));
        stream.set_write_timeout(Some(limits.request));

        let mut server = http2::Builder::new(AtOnce);
        server
            .timer(TokioTimer::new())
            .keep_alive_interval(limits.head)
            .keep_alive_timeout(limits.request)
            .max_concurrent_streams(MAX_STREAMS)
            // Envoy gives up a call by a reset: a stall of ours is no reason to close the connection on the others.
            .max_pending_accept_reset_streams(MAX_STREAMS as usize)
            .max_header_list_size(MAX_HEADERS)
            // Nearly any message fits, and a connection holds no more than a few of them.
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(4 * WINDOW)
            .max_send_buf_size(WINDOW as usize)
            .auto_date_header(false);
        let service = service_fn(move |request: Request<Incoming>| -> Answering {
            let (door, seat) = (Arc::clone(&self), Arc::clone(&seat));
            Box::pin(async move {
                if !seat.begin() {
                    return Ok(denial(Status::unavailable("this connection makes room for another")));
                }
                let _busy = Busy { seat: &seat, gate: &door.gate };
                Ok(door.answer(request, &seat).await)
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
