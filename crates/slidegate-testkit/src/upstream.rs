//! HTTP server behind a proxy: answers every request with one status and text, and counts requests.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Upstream server, stopped on drop.
pub struct Upstream {
    /// Address and port.
    pub address: String,
    requests: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Upstream {
    /// Starts a server that answers 200 with `text`.
    pub fn start(text: &'static str) -> Self {
        Self::with_status(200, text)
    }

    /// Starts a server that answers with `status` and `text`.
    pub fn with_status(status: u16, text: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (requests, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, stopped) = (Arc::clone(&requests), Arc::clone(&stop));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let counter = Arc::clone(&counter);
                std::thread::spawn(move || answer(stream.unwrap(), status, text, &counter));
            }
        });
        Upstream { address, requests, stop }
    }

    /// Returns the number of requests since the start or the last `reset_count`.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Sets the number of requests to 0.
    pub fn reset_count(&self) {
        self.requests.store(0, Ordering::Relaxed);
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.address);
    }
}

fn answer(mut stream: TcpStream, status: u16, text: &str, requests: &AtomicUsize) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        // Tests send only requests without a body.
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        requests.fetch_add(1, Ordering::Relaxed);
        let length = text.len();
        let answer = format!(
            "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\ncontent-type: text/plain\r\n\r\n{text}"
        );
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
