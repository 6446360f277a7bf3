//! HTTP/2 client without gRPC, for calls that a gRPC client would not make.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::{Body, Bytes, Frame};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::mpsc;

/// Longest wait for a response.
const PATIENCE: Duration = Duration::from_secs(60);

/// One HTTP/2 connection with its own runtime.
pub struct Client {
    runtime: tokio::runtime::Runtime,
    sender: SendRequest<Chunks>,
}

/// Body of a request: chunks from a channel, until its sender is dropped.
pub struct Chunks(mpsc::UnboundedReceiver<Bytes>);

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

impl Client {
    /// Connects to an address.
    pub fn of(address: &str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let sender = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            sender
        });
        Client { runtime, sender }
    }

    /// Calls a method and returns the HTTP status and the gRPC status. If `body` is `None`, the body never ends.
    pub fn call(&self, path: &str, headers: &[(&str, &str)], body: Option<&[u8]>) -> (u16, String) {
        let (chunks, received) = mpsc::unbounded_channel();
        let mut chunks = Some(chunks);
        if let Some(body) = body {
            chunks.take().unwrap().send(Bytes::copy_from_slice(body)).unwrap();
        }
        let answer = self.send(path, headers, Chunks(received));
        drop(chunks);
        answer
    }

    /// Begins a call. Returns a receiver that is notified when the server must have read the headers, and a function that
    /// sends the body and returns the HTTP status and the gRPC status.
    pub fn begin(
        &self,
        path: &str,
    ) -> (std::sync::mpsc::Receiver<()>, impl FnOnce(Vec<u8>) -> (u16, String) + use<>) {
        let (chunks, received) = mpsc::unbounded_channel();
        let (notify, arrived) = std::sync::mpsc::channel();
        let mut sender = self.sender.clone();
        let request = request(path, &[], Chunks(received));
        let handle = self.runtime.handle().clone();
        let answer = handle.spawn(async move {
            let sent = sender.send_request(request);
            // The server answers a later call on the same connection only after it has read this one.
            finish(sent.await.unwrap()).await
        });
        let other = self.call("/nobody/knows", &[], Some(b""));
        assert_eq!(other.1, "12");
        notify.send(()).unwrap();
        (arrived, move |body| {
            chunks.send(body.into()).unwrap();
            drop(chunks);
            let limited = async { tokio::time::timeout(PATIENCE, answer).await };
            handle.block_on(limited).expect("an answer within 60 s").unwrap()
        })
    }

    fn send(&self, path: &str, headers: &[(&str, &str)], body: Chunks) -> (u16, String) {
        let mut sender = self.sender.clone();
        let request = request(path, headers, body);
        let answer = async move { finish(sender.send_request(request).await.unwrap()).await };
        let limited = async { tokio::time::timeout(PATIENCE, answer).await };
        self.runtime.block_on(limited).expect("an answer within 60 s")
    }
}

fn request(path: &str, headers: &[(&str, &str)], body: Chunks) -> Request<Chunks> {
    let mut request = Request::post(format!("http://x{path}")).header("te", "trailers");
    if !headers.iter().any(|(name, _)| *name == "content-type") {
        request = request.header("content-type", "application/grpc");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body).unwrap()
}

async fn finish(response: hyper::Response<hyper::body::Incoming>) -> (u16, String) {
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap();
    let trailers = body.trailers();
    let status = head.headers.get("grpc-status").or_else(|| trailers?.get("grpc-status"));
    (head.status.as_u16(), status.map_or(String::new(), |status| status.to_str().unwrap().to_owned()))
}
