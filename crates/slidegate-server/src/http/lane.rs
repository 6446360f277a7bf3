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

use super::acquire::{Question, wants_older};
use super::answer::Answer;
use super::body::is_json;
use super::{Door, too_late};
use crate::access::bearer;
use crate::listen::{Stop, Stream, part};
use crate::trace::Caller;
use crate::within::within;

/// The most bytes of requests that are looked at together. Of an idle connection this is what it costs.
const TOGETHER: usize = 4 << 10;

/// The most headers of a usual request.
const MAX_HEADERS: usize = 32;

/// Answers usual requests until the connection ends, idles for longer than `idle`, or `stop` is told.
///
/// Returns what is left for hyper to answer.
pub(crate) async fn usual(
    door: &Door,
    stream: &mut impl Stream,
    idle: Duration,
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
        while let Some(request) = Usual::read(&arrived[taken..]) {
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
struct Usual<'a> {
    question: Question,
    older: bool,
    /// The token, if it comes with one.
    shown: Option<&'a [u8]>,
    caller: Caller,
    body: &'a [u8],
    /// Head and body, in bytes.
    length: usize,
}

impl<'a> Usual<'a> {
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
        let question = Question::of(request.method?, target.next()?)?;
        let query = target.next();
        // Whether other queries are well-formed, hyper knows.
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.=&".contains(&b);
        if !query.is_none_or(|query| query.bytes().all(plain)) {
            return None;
        }
        let (mut json, mut length, mut shown) = (false, None, None);
        let mut caller = Caller::default();
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
                shown = bearer(value);
            } else if is("transfer-encoding") || is("expect") || is("upgrade") {
                return None;
            } else {
                caller.hear(name, value);
            }
        }
        let length = head.checked_add(length.filter(|_| json)?)?;
        let body = arrived.get(head..length)?;
        Some(Usual { question, older: wants_older(query), shown, caller, body, length })
    }

    async fn answer(&self, door: &Door) -> Answer {
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
