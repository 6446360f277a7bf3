//! HTTP server with responses that a test chooses: late, wrong, or none.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Body of an allowed decision.
pub const ALLOWED: &str = r#"{"allowed":true,"source":"store"}"#;

/// Stub server. It runs until the process of the test ends.
pub struct Stub {
    /// Base URL.
    pub url: String,
    seen: Arc<AtomicU64>,
}

impl Stub {
    /// Starts a server that answers the n-th `acquire`, from 0, with `answer(n)`, which may block. Other requests are allowed.
    pub fn start(answer: impl Fn(u64) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(AtomicU64::new(0));
        let (answer, counter) = (Arc::new(answer), Arc::clone(&seen));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (answer, counter) = (Arc::clone(&answer), Arc::clone(&counter));
                std::thread::spawn(move || talk(&stream.unwrap(), &*answer, &counter));
            }
        });
        Stub { url, seen }
    }

    /// Returns the number of `acquire` calls.
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::SeqCst)
    }
}

/// Address that refuses every connection. The port stays bound, so that no other process can listen there meanwhile.
pub struct Denying {
    _socket: tokio::net::TcpSocket,
    /// Address that refuses connections.
    pub address: SocketAddr,
}

impl Denying {
    /// Binds a free port without listening.
    pub fn new() -> Self {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = socket.local_addr().unwrap();
        Denying { _socket: socket, address }
    }
}

/// Formats a complete HTTP response.
pub fn answer(status: u16, body: &str) -> String {
    format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Serves one connection until either side closes it.
fn talk(stream: &TcpStream, of: &dyn Fn(u64) -> String, seen: &AtomicU64) {
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
                break;
            }
            if let Some(number) = line.strip_prefix("content-length: ") {
                length = number.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let text = match first.contains("/v1/acquire") {
            true => of(seen.fetch_add(1, Ordering::SeqCst)),
            false => answer(200, ALLOWED),
        };
        if writer.write_all(text.as_bytes()).is_err() || text.contains("connection: close") {
            return;
        }
    }
}
