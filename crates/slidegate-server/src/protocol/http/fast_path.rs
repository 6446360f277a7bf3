//! The short way of the usual request: a whole `POST /v1/acquire` or `/v1/peek` that arrives at once.
//!
//! The lane takes only what it understands to the last header. The first request that is anything else, half of one
//! or malformed, goes to hyper with all that came after it, and the connection stays there: nothing is ever read in
//! two ways.

use std::io;
use std::mem::MaybeUninit;
use std::pin::pin;
use std::time::{Duration, SystemTime};

use axum::http::{HeaderValue, header};
use bytes::{Bytes, BytesMut};
use slidegate::{Clock, Micros};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::acquire::{DecisionKind, wants_older};
use super::dto::is_json;
use super::response::Answer;
use super::{ConnectionHandler, too_late};
use crate::app::auth::bearer;
use crate::common::timeout::within;
use crate::protocol::connection_slots::ConnectionState;
use crate::protocol::listener::{Stop, Stream, part};
use crate::telemetry::trace::TraceContext;

/// The most bytes of requests that are looked at together. Of an idle connection this is what it costs.
const TOGETHER: usize = 4 << 10;

/// The most headers of a usual request.
const MAX_HEADERS: usize = 32;

/// Answers usual requests until the connection ends, idles for longer than `idle`, or `stop` is told.
///
/// Returns what is left for hyper to answer.
pub(crate) async fn usual(
    door: &ConnectionHandler,
    stream: &mut impl Stream,
    idle: Duration,
    seat: &ConnectionState,
    stop: &Stop,
) -> io::Result<Option<Bytes>> {
    let mut stopping = stop.clone();
    let mut stopped = pin!(stopping.changed());
    let mut idling = pin!(tokio::time::sleep(idle));
    let mut since = door.clock.now();
    let mut date = Date::default();
    let mut arrived = BytesMut::with_capacity(TOGETHER);
    let mut answers = Vec::new();
    loop {
        tokio::select! {
            biased;
            // First: what has arrived is answered, also when the server stops.
            read = stream.read_buf(&mut arrived) => if read? == 0 { return Ok(None) },
            _ = &mut stopped => return Ok(None),
            () = &mut idling => {
                // One timer for all requests: it is moved on when it rings, not with each of them.
                let idled = Duration::from(door.clock.now()).saturating_sub(since.into());
                if idled >= idle {
                    return Ok(None);
                }
                idling.set(tokio::time::sleep(idle - idled));
                continue;
            }
        }
        since = door.clock.now();
        let mut taken = 0;
        let mut last = false;
        while let Some(request) = FastRequest::read(&arrived[taken..]) {
            if taken == 0 && !seat.begin() {
                return Ok(None);
            }
            taken += request.length;
            let answer = pin!(request.answer(door));
            let mut answer = within(door.timeout(), answer).await.unwrap_or_else(too_late);
            if stop.has_changed().unwrap_or(true) {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            last = answer.headers().contains_key(header::CONNECTION);
            write(&answer, date.at(since), &mut answers);
            if last {
                break;
            }
        }
        let writing = pin!(async {
            stream.write_all(&answers).await?;
            stream.flush().await
        });
        let written = within(door.timeout(), writing).await;
        written.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?;
        answers.clear();
        if taken > 0 {
            seat.end(since);
        }
        if last {
            part(stream).await;
            return Ok(None);
        }
        if taken < arrived.len() {
            return Ok(Some(arrived.split_off(taken).freeze()));
        }
        arrived.clear();
    }
}

/// A request that is here whole.
struct FastRequest<'a> {
    question: DecisionKind,
    older: bool,
    /// The token, if it comes with one.
    shown: Option<&'a [u8]>,
    caller: TraceContext,
    body: &'a [u8],
    /// Head and body, in bytes.
    length: usize,
}

impl<'a> FastRequest<'a> {
    /// The first request of `arrived`, if it is a usual one.
    fn read(arrived: &'a [u8]) -> Option<Self> {
        let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut []);
        let Ok(httparse::Status::Complete(head)) = request.parse_with_uninit_headers(arrived, &mut headers)
        else {
            return None;
        };
        if request.version != Some(1) {
            return None;
        }
        let mut target = request.path?.splitn(2, '?');
        let question = DecisionKind::of(request.method?, target.next()?)?;
        let query = target.next();
        // Whether other queries are well-formed, hyper knows.
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.=&".contains(&b);
        if !query.is_none_or(|query| query.bytes().all(plain)) {
            return None;
        }
        let (mut json, mut length, mut authorized, mut shown) = (false, None, false, None);
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
                (authorized, shown) = (true, bearer(value));
            } else if is("transfer-encoding") || is("expect") || is("upgrade") {
                return None;
            } else if is("origin") || is("sec-fetch-site") {
                // Whether a page may ask is found out in one place only.
                return None;
            } else {
                caller.read_header(name, value);
            }
        }
        let length = head.checked_add(length.filter(|_| json)?)?;
        let body = arrived.get(head..length)?;
        Some(FastRequest { question, older: wants_older(query), shown, caller, body, length })
    }

    async fn answer(&self, door: &ConnectionHandler) -> Answer {
        match door.admits_ask(self.shown) {
            Ok(()) => {
                let deciding = door.deciding().called_by(self.caller);
                self.question.answer(deciding, self.body, self.older).await
            }
            Err(error) => error.into_answer(),
        }
    }
}

fn write(answer: &Answer, date: &str, answers: &mut Vec<u8>) {
    let status = answer.status();
    for part in ["HTTP/1.1 ", status.as_str(), " ", status.canonical_reason().unwrap_or_default(), "\r\n"] {
        answers.extend_from_slice(part.as_bytes());
    }
    for (name, value) in answer.headers() {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            answers.extend_from_slice(part);
        }
    }
    let length = answer.body().len();
    for part in ["content-length: ", itoa::Buffer::new().format(length), "\r\ndate: ", date, "\r\n\r\n"] {
        answers.extend_from_slice(part.as_bytes());
    }
    answers.extend_from_slice(answer.body());
}

/// The header of that name, which changes once a second.
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
    use std::net::{Ipv4Addr, SocketAddr};
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use parking_lot::Mutex;
    use slidegate::{MemoryStore, Rules};
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
    use tokio::sync::watch;

    use super::*;
    use crate::app::auth::{Auth, Token};
    use crate::app::state::AppState;
    use crate::protocol::http::Role;
    use crate::protocol::listener::ConnectionHandler as _;
    use crate::store::AnyStore;

    const TOKEN: &str = "Bearer token-0123456789";

    /// A client whose bytes are read in these pieces, the last first. It takes every answer.
    struct Pieces {
        left: Vec<Vec<u8>>,
        answers: Arc<Mutex<Vec<u8>>>,
    }

    impl AsyncRead for Pieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if let Some(mut piece) = self.left.pop() {
                let rest = piece.split_off(piece.len().min(buffer.remaining()));
                buffer.put_slice(&piece);
                self.left.extend((!rest.is_empty()).then_some(rest));
            }
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Pieces {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.answers.lock().extend_from_slice(bytes);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Head and body of the answer to bytes that come in these pieces. Both ways have their own order of headers.
    async fn answer(pieces: &[&[u8]], locked: bool) -> (Vec<String>, String) {
        let rules = Rules::from_yaml("rules: [{ name: r, key: [u], limit: 9, window: 1h, count: attempts }]");
        let mut gate = AppState::new(AnyStore::Memory(MemoryStore::new()), rules.unwrap(), "a test");
        if locked {
            gate.settings.access =
                Auth::new(vec![Token::new(TOKEN.trim_start_matches("Bearer ").as_bytes())], vec![]);
        }
        let door = ConnectionHandler::new(Arc::new(gate), Role::Asking { may_change: true });
        let answers = Arc::new(Mutex::new(Vec::new()));
        let left =
            pieces.iter().rev().filter(|piece| !piece.is_empty()).map(|piece| piece.to_vec()).collect();
        let (_going_on, stop) = watch::channel(());
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        Arc::new(door)
            .serve(Pieces { left, answers: Arc::clone(&answers) }, peer, Arc::default(), stop)
            .await;
        let text = String::from_utf8(std::mem::take(&mut *answers.lock())).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let lines = head.lines().filter(|line| !line.starts_with("date: "));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        (lines, body.to_owned())
    }

    /// The same bytes get the same answer, in one segment and cut anywhere.
    #[tokio::test]
    async fn odd_requests_are_answered_alike_however_they_are_cut() {
        let right = format!("authorization: {TOKEN}\r\n");
        let usual = "host: x\r\ncontent-type: application/json\r\n";
        let cases = [
            (right.clone(), "200"),
            (right.to_uppercase().replace("BEARER TOKEN", "bearer token"), "200"),
            (format!("{right}{right}"), "400"),
            (format!("{right}authorization: Bearer wrong\r\n"), "400"),
            (format!("authorization: Bearer wrong\r\n{right}"), "400"),
            (format!("Authorization: Basic x\r\n{right}"), "400"),
            (format!("authorization:\r\n{right}"), "400"),
            ("authorization: Bearer wrong\r\n".to_owned(), "401"),
            (String::new(), "401"),
            (format!("{right}content-type: text/plain\r\n"), "200"),
            (format!("{right}content-length: 5\r\n"), "400"),
            (format!("{right}Connection: Keep-Alive\r\nconnection: keep-alive\r\n"), "200"),
            (format!("{right}connection: close\r\n"), "200"),
            (format!("{right}host: y\r\n"), "200"),
            (format!("{right}origin: http://evil.example\r\n"), "200"),
            (format!("{right}transfer-encoding: chunked\r\n"), "400"),
            (format!("{right}x:\r\n"), "200"),
            (format!("{right} folded: x\r\n"), "400"),
            (format!("{right}x y: z\r\n"), "400"),
        ];
        let body = r#"{"attributes":{"u":"a"}}"#;
        for (headers, status) in cases {
            let request = format!(
                "POST /v1/acquire HTTP/1.1\r\n{usual}{headers}content-length: {}\r\n\r\n{body}",
                body.len()
            );
            let request = request.as_bytes();
            let whole = answer(&[request], true).await;
            let line = format!("HTTP/1.1 {status} ");
            assert!(whole.0.iter().any(|got| got.starts_with(&line)), "{headers:?}: {whole:?}");
            for cut in 1..request.len() {
                let (first, rest) = request.split_at(cut);
                assert_eq!(answer(&[first, rest], true).await, whole, "{headers:?} cut at {cut}");
            }
        }
        // Where everybody may ask, a page of another site may not.
        for (headers, status) in [
            ("", "200"),
            ("origin: http://evil.example\r\n", "403"),
            ("Sec-Fetch-Site: cross-site\r\n", "403"),
            ("sec-fetch-site: same-origin\r\norigin: http://elsewhere\r\n", "200"),
            ("authorization: a\r\nAuthorization: b\r\n", "400"),
        ] {
            let request = format!(
                "POST /v1/acquire HTTP/1.1\r\n{usual}{headers}content-length: {}\r\n\r\n{body}",
                body.len()
            );
            let request = request.as_bytes();
            let whole = answer(&[request], false).await;
            let line = format!("HTTP/1.1 {status} ");
            assert!(whole.0.iter().any(|got| got.starts_with(&line)), "{headers:?}: {whole:?}");
            for cut in 1..request.len() {
                let (first, rest) = request.split_at(cut);
                assert_eq!(answer(&[first, rest], false).await, whole, "{headers:?} cut at {cut}");
            }
        }
    }
}
