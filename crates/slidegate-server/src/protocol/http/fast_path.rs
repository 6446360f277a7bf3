//! Fast path for the most common requests: a complete [`Call`] that arrives in one read.
//!
//! The fast path takes a request only if it understands every header. The first request that it cannot take, or
//! that is incomplete or malformed, goes to hyper together with all bytes after it, and the connection stays
//! with hyper. So no request is parsed by both the fast path and hyper.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::{HeaderValue, header};
use bytes::{Bytes, BytesMut};
use slidegate::{Clock, Micros};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::call::{Call, CallRequest, wants_legacy_headers};
use super::dto::is_json;
use super::response::BufferedResponse;
use super::{ConnectionHandler, request_timeout, slow_path};
use crate::app::auth::bearer;
use crate::app::state::AppState;
use crate::common::protocol::Protocol;
use crate::common::timeout::within;
use crate::protocol::connection_slots::ConnectionState;
use crate::protocol::listener::{self, Stop, Stream, linger_close};
use crate::telemetry::trace::TraceContext;

/// Size of the read buffer in bytes. This is the memory cost of an idle connection.
const READ_BUFFER: usize = 4 << 10;

/// Largest response buffer that a connection keeps between requests, in bytes. Few responses are larger.
const MAX_IDLE_BUFFER: usize = 16 << 10;

/// Maximum number of headers that the fast path accepts.
const MAX_HEADERS: usize = 32;

impl listener::ConnectionHandler for ConnectionHandler {
    const PROTOCOL: Protocol = Protocol::Http;

    fn app(&self) -> &AppState {
        &self.app
    }

    fn serve(
        self: Arc<Self>,
        mut stream: impl Stream,
        peer: SocketAddr,
        state: Arc<ConnectionState>,
        stop: Stop,
    ) -> impl Future<Output = ()> + Send {
        Box::pin(async move {
            if let Ok(Some(rest)) = answer_calls(&self, &mut stream, &state, &stop).await {
                slow_path::serve(stream, rest, self, peer, state, stop).await;
            }
        })
    }
}

/// Answers requests on the fast path until the connection ends or idles for too long, or `stop` fires.
///
/// Returns the received bytes that are left for hyper.
async fn answer_calls(
    handler: &ConnectionHandler,
    stream: &mut impl Stream,
    state: &ConnectionState,
    stop: &Stop,
) -> io::Result<Option<Bytes>> {
    let idle = handler.app.settings.limits.head;
    let mut stopping = stop.clone();
    let mut stopped = pin!(stopping.changed());
    let mut idling = pin!(tokio::time::sleep(idle));
    let mut last_read = handler.clock.now();
    let mut date = Date::default();
    let mut received = BytesMut::with_capacity(READ_BUFFER);
    let mut responses = Vec::new();
    loop {
        tokio::select! {
            biased;
            // Polled first: received requests are answered even when the server stops.
            read = stream.read_buf(&mut received) => if read? == 0 { return Ok(None) },
            _ = &mut stopped => return Ok(None),
            () = &mut idling => {
                // One timer serves all requests: it is re-armed when it fires, not with each request.
                let idled = Duration::from(handler.clock.now()).saturating_sub(last_read.into());
                if idled >= idle {
                    return Ok(None);
                }
                idling.set(tokio::time::sleep(idle - idled));
                continue;
            }
        }
        last_read = handler.clock.now();
        let mut consumed = 0;
        let mut last = false;
        while let Some(request) = FastRequest::read(&received[consumed..]) {
            if consumed == 0 && !state.begin() {
                return Ok(None);
            }
            consumed += request.length;
            let answer = pin!(request.answer(handler));
            let mut answer = within(handler.timeout(), answer).await.unwrap_or_else(request_timeout);
            if stop.has_changed().unwrap_or(true) {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            last = answer.headers().contains_key(header::CONNECTION);
            write(&answer, date.at(last_read), &mut responses);
            if last {
                break;
            }
        }
        let writing = pin!(async {
            stream.write_all(&responses).await?;
            stream.flush().await
        });
        let written = within(handler.timeout(), writing).await;
        written.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?;
        responses.clear();
        responses.shrink_to(MAX_IDLE_BUFFER);
        if consumed > 0 {
            state.end(last_read);
        }
        if last {
            linger_close(stream).await;
            return Ok(None);
        }
        if consumed < received.len() {
            return Ok(Some(received.split_off(consumed).freeze()));
        }
        received.clear();
    }
}

/// Complete request, parsed by the fast path.
struct FastRequest<'a> {
    call: Call,
    legacy_headers: bool,
    /// Bearer token, if the request has one.
    token: Option<&'a [u8]>,
    caller: TraceContext,
    body: &'a [u8],
    /// Length of head and body, in bytes.
    length: usize,
}

impl<'a> FastRequest<'a> {
    /// Parses the first request in `received`. Returns `None` if the fast path cannot handle it.
    fn read(received: &'a [u8]) -> Option<Self> {
        let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut []);
        let Ok(httparse::Status::Complete(head)) = request.parse_with_uninit_headers(received, &mut headers)
        else {
            return None;
        };
        if request.version != Some(1) {
            return None;
        }
        let mut target = request.path?.splitn(2, '?');
        let call = Call::find(request.method?, target.next()?)?;
        let query = target.next();
        // A query with other characters goes to hyper, which validates it.
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.=&".contains(&b);
        if !query.is_none_or(|query| query.bytes().all(plain)) {
            return None;
        }
        let (mut json, mut length, mut authorized, mut token) = (false, None, false, None);
        let mut caller = TraceContext::default();
        for httparse::Header { name, value } in request.headers.iter() {
            let is = |known: &str| name.eq_ignore_ascii_case(known);
            if is("content-length") {
                if length.is_some() || !value.iter().all(u8::is_ascii_digit) {
                    return None;
                }
                length = Some(str::from_utf8(value).ok()?.parse().ok()?);
            } else if is("content-type") {
                if json || !is_json(value) {
                    return None;
                }
                json = true;
            } else if is("connection") {
                if !value.eq_ignore_ascii_case(b"keep-alive") {
                    return None;
                }
            } else if is("authorization") {
                if authorized {
                    return None;
                }
                (authorized, token) = (true, bearer(value));
            } else if is("transfer-encoding") || is("expect") || is("upgrade") {
                return None;
            } else if is("origin") || is("sec-fetch-site") {
                // Only the slow path checks for cross-site requests.
                return None;
            } else {
                caller.read_header(name, value);
            }
        }
        let length = head.checked_add(length.filter(|_| json)?)?;
        let body = received.get(head..length)?;
        Some(FastRequest { call, legacy_headers: wants_legacy_headers(query), token, caller, body, length })
    }

    async fn answer(&self, handler: &ConnectionHandler) -> BufferedResponse {
        if let Err(error) = handler.authorize_api(self.token) {
            return error.into_buffered();
        }
        let instrumented = handler.instrumented().called_by(self.caller);
        let request = CallRequest { instrumented, body: self.body, legacy_headers: self.legacy_headers };
        self.call.answer(request).await
    }
}

fn write(answer: &BufferedResponse, date: &str, responses: &mut Vec<u8>) {
    let status = answer.status();
    for part in ["HTTP/1.1 ", status.as_str(), " ", status.canonical_reason().unwrap_or_default(), "\r\n"] {
        responses.extend_from_slice(part.as_bytes());
    }
    for (name, value) in answer.headers() {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            responses.extend_from_slice(part);
        }
    }
    let length = answer.body().len();
    for part in ["content-length: ", itoa::Buffer::new().format(length), "\r\ndate: ", date, "\r\n\r\n"] {
        responses.extend_from_slice(part.as_bytes());
    }
    responses.extend_from_slice(answer.body());
}

/// Value of the `date` header, which changes once a second.
#[derive(Default)]
struct Date {
    second: u64,
    text: String,
}

impl Date {
    #[expect(clippy::disallowed_methods, reason = "the date is the wall clock's, and decides nothing")]
    fn at(&mut self, now: Micros) -> &str {
        let second = now.ceil_secs();
        if self.second != second {
            self.second = second;
            self.text = httpdate::fmt_http_date(SystemTime::now());
        }
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use slidegate::{MemoryStore, Rules};

    use super::*;
    use crate::app::auth::{Auth, Token};
    use crate::protocol::http::Role;
    use crate::protocol::memory_stream;
    use crate::store::AnyStore;

    const TOKEN: &str = "Bearer token-0123456789";

    /// Returns the sorted head and the body of the response to a request that arrives in these pieces. The head
    /// is sorted because the fast path and hyper order headers differently.
    async fn answer(pieces: &[&[u8]], requires_token: bool) -> (Vec<String>, String) {
        let rules = Rules::from_yaml("rules: [{ name: r, key: [u], limit: 9, window: 1h, count: attempts }]");
        let mut app = AppState::new(AnyStore::Memory(MemoryStore::new()), rules.unwrap(), "a test");
        if requires_token {
            app.settings.access =
                Auth::new(vec![Token::new(TOKEN.trim_start_matches("Bearer ").as_bytes())], vec![]);
        }
        let handler = ConnectionHandler::new(Arc::new(app), Role::Api { allows_changes: true });
        let text = String::from_utf8(memory_stream::exchange(handler, pieces).await).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let lines = head.lines().filter(|line| !line.starts_with("date: "));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        (lines, body.to_owned())
    }

    /// A request gets the same response whether it arrives in one segment or is split anywhere.
    #[tokio::test]
    async fn answers_requests_alike_split_anywhere() {
        let valid = format!("authorization: {TOKEN}\r\n");
        let common_headers = "host: x\r\ncontent-type: application/json\r\n";
        let cases = [
            (valid.clone(), "200"),
            (valid.to_uppercase().replace("BEARER TOKEN", "bearer token"), "200"),
            (format!("{valid}{valid}"), "400"),
            (format!("{valid}authorization: Bearer wrong\r\n"), "400"),
            (format!("authorization: Bearer wrong\r\n{valid}"), "400"),
            (format!("Authorization: Basic x\r\n{valid}"), "400"),
            (format!("authorization:\r\n{valid}"), "400"),
            ("authorization: Bearer wrong\r\n".to_owned(), "401"),
            (String::new(), "401"),
            (format!("{valid}content-type: text/plain\r\n"), "200"),
            (format!("{valid}content-length: 5\r\n"), "400"),
            (format!("{valid}Connection: Keep-Alive\r\nconnection: keep-alive\r\n"), "200"),
            (format!("{valid}connection: close\r\n"), "200"),
            (format!("{valid}host: y\r\n"), "200"),
            (format!("{valid}origin: http://evil.example\r\n"), "200"),
            (format!("{valid}transfer-encoding: chunked\r\n"), "400"),
            (format!("{valid}x:\r\n"), "200"),
            (format!("{valid} folded: x\r\n"), "400"),
            (format!("{valid}x y: z\r\n"), "400"),
        ];
        let body = r#"{"attributes":{"u":"a"}}"#;
        // Without tokens any client may call the API, but not a web page of another site.
        let open = [
            ("", "200"),
            ("origin: http://evil.example\r\n", "403"),
            ("Sec-Fetch-Site: cross-site\r\n", "403"),
            ("sec-fetch-site: same-origin\r\norigin: http://elsewhere\r\n", "200"),
            ("authorization: a\r\nAuthorization: b\r\n", "400"),
        ];
        let open = open.map(|(headers, status)| (headers.to_owned(), status, false));
        let cases = cases.map(|(headers, status)| (headers, status, true));
        for (headers, status, requires_token) in cases.into_iter().chain(open) {
            let headers = format!("{headers}content-length: {}\r\n", body.len());
            let request = format!("POST /v1/acquire HTTP/1.1\r\n{common_headers}{headers}\r\n{body}");
            let unsplit = assert_alike_split_anywhere(&request, requires_token).await;
            let line = format!("HTTP/1.1 {status} ");
            assert!(unsplit.0.iter().any(|actual| actual.starts_with(&line)), "{headers:?}: {unsplit:?}");
        }
    }

    /// Asserts that a request gets the same response in one segment and in any two segments. Returns the
    /// response.
    async fn assert_alike_split_anywhere(request: &str, requires_token: bool) -> (Vec<String>, String) {
        let unsplit = answer(&[request.as_bytes()], requires_token).await;
        for cut in 1..request.len() {
            let (first, rest) = request.as_bytes().split_at(cut);
            assert_eq!(answer(&[first, rest], requires_token).await, unsplit, "{request:?} cut at {cut}");
        }
        unsplit
    }

    #[test]
    fn takes_exactly_the_calls() {
        let read = |target: &str| {
            let head = "host: x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n";
            let request = format!("{target} HTTP/1.1\r\n{head}\r\n{{}}");
            FastRequest::read(request.as_bytes()).map(|request| request.call)
        };
        for call in Call::ALL {
            assert_eq!(read(&format!("POST {}", call.as_str())), Some(call));
            assert_eq!(read(&format!("PUT {}", call.as_str())), None);
        }
        for target in ["POST /v1/record", "POST /v1/acquire/", "POST /v1/authorize", "GET /healthz"] {
            assert_eq!(read(target), None, "{target}");
        }
    }

    /// Calls other than acquire get the same response on the fast path and from hyper, too.
    #[tokio::test]
    async fn answers_every_call_alike_split_anywhere() {
        for (path, body) in [
            ("/v1/peek", r#"{"attributes":{"u":"a"}}"#),
            ("/v1/acquire/batch", r#"{"requests":[{"attributes":{"u":"a"},"permits":10}]}"#),
            ("/v1/explain", r#"{"attributes":{"u":"a"}}"#),
            ("/v1/settle", r#"{"reservation":"x","permits":0}"#),
            ("/v1/release", r#"{"reservation":"x"}"#),
            ("/v1/extend", r#"{"reservation":7}"#),
            ("/v1/report", r#"{"attributes":{"u":"a"},"latency_ms":1}"#),
        ] {
            let head = "host: x\r\ncontent-type: application/json\r\n";
            let length = body.len();
            let request = format!("POST {path} HTTP/1.1\r\n{head}content-length: {length}\r\n\r\n{body}");
            let unsplit = assert_alike_split_anywhere(&request, false).await;
            assert!(unsplit.0.iter().any(|line| line.starts_with("HTTP/1.1 ")), "{path}: {unsplit:?}");
        }
    }
}
