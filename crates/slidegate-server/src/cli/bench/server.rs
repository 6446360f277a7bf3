//! A server over HTTP: one connection for each caller, kept open.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, StatusCode, Uri};
use hyper::client::conn::http1::SendRequest;
use serde::Deserialize;
use slidegate::Micros;

use super::counts::Answer;
use super::options::Question;
use crate::cli::client;

/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 64 << 10;

/// A server, and what every request to it has in common.
pub(super) struct Server {
    pub(super) url: String,
    server: client::Server,
    acquire: Uri,
    peek: Uri,
    timeout: Duration,
    /// The body up to the key's number, and from there on.
    body: (String, String),
}

impl Server {
    /// Resolves the host of `url`.
    pub(super) async fn find(url: &str, timeout: Micros, question: &Question) -> Result<Self, String> {
        let server = client::Server::find(url).await?;
        Ok(Server {
            url: url.to_owned(),
            acquire: server.operation("acquire")?,
            peek: server.operation("peek")?,
            server,
            timeout: timeout.into(),
            body: body(question)?,
        })
    }
}

/// The JSON of a question around the number of its key.
fn body(question: &Question) -> Result<(String, String), String> {
    let Question { resource, limit, window, permits } = question;
    let name = serde_json::to_string(resource).map_err(|error| error.to_string())?;
    // Only its own quote: the name may end in another.
    let name = name.strip_suffix('"').unwrap_or(&name);
    let rest = format!(r#"","limit":{limit},"window":"{window}","permits":{permits}}}"#);
    Ok((format!(r#"{{"resource":{name}-"#), rest))
}

/// One caller's connection.
pub(super) struct Connection {
    server: Arc<Server>,
    sender: Option<SendRequest<String>>,
}

impl Connection {
    /// Connects, so that no ask has to wait for that.
    pub(super) async fn open(server: Arc<Server>) -> Result<Self, String> {
        let connected = tokio::time::timeout(server.timeout, server.server.connect()).await;
        let connected = connected.unwrap_or_else(|_| Err("it does not answer".to_owned()));
        let sender = connected.map_err(|error| format!("cannot reach {}: {error}", server.url))?;
        Ok(Connection { server, sender: Some(sender) })
    }

    /// Asks about the key of that number.
    pub(super) async fn ask(&mut self, key: u64) -> Result<Answer, String> {
        let uri = self.server.acquire.clone();
        self.exchange(uri, key).await
    }

    /// As [`Connection::ask`], and charges nothing.
    pub(super) async fn peek(&mut self, key: u64) -> Result<Answer, String> {
        let uri = self.server.peek.clone();
        self.exchange(uri, key).await
    }

    async fn exchange(&mut self, uri: Uri, key: u64) -> Result<Answer, String> {
        let (before, after) = &self.server.body;
        let mut request = hyper::Request::new(format!("{before}{key}{after}"));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        *request.headers_mut() = self.server.server.headers.clone();
        let timeout = self.server.timeout;
        let answered = tokio::time::timeout(timeout, self.send(request)).await;
        let (status, bytes) =
            answered.map_err(|_| format!("no answer within {}", Micros::from(timeout)))??;
        read(status, &bytes)
    }

    /// What goes wrong, or is given up, leaves no connection: its answer would be taken for the next one.
    async fn send(
        &mut self,
        request: hyper::Request<String>,
    ) -> Result<(StatusCode, axum::body::Bytes), String> {
        let mut sender = match self.sender.take() {
            Some(mut sender) => match sender.ready().await {
                Ok(()) => sender,
                // Closed while it was idle.
                Err(_) => self.reconnect().await?,
            },
            None => self.reconnect().await?,
        };
        let no_answer = |error: &dyn std::fmt::Display| format!("no answer: {error}");
        let response = sender.send_request(request).await.map_err(|error| no_answer(&error))?;
        let (head, body) = response.into_parts();
        let bytes =
            axum::body::to_bytes(Body::new(body), MAX_ANSWER).await.map_err(|error| no_answer(&error))?;
        self.sender = Some(sender);
        Ok((head.status, bytes))
    }

    async fn reconnect(&self) -> Result<SendRequest<String>, String> {
        self.server.server.connect().await.map_err(|error| format!("no connection: {error}"))
    }
}

#[derive(Deserialize)]
struct AnswerBody<'a> {
    allowed: bool,
    #[serde(borrow, default)]
    source: Cow<'a, str>,
}

#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Deserialize)]
struct ErrorDetail {
    message: String,
}

fn read(status: StatusCode, bytes: &[u8]) -> Result<Answer, String> {
    if let StatusCode::OK | StatusCode::TOO_MANY_REQUESTS = status
        && let Ok(AnswerBody { allowed, source }) = serde_json::from_slice(bytes)
    {
        return Ok(Answer { allowed, source: Cow::Owned(source.into_owned()) });
    }
    Err(match serde_json::from_slice::<ErrorBody>(bytes) {
        Ok(body) => format!("{}: {}", status.as_u16(), body.error.message),
        Err(_) => format!("{}: not an answer of Slidegate", status.as_u16()),
    })
}
