//! A server behind a proxy: answers everything with one text, and counts.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub struct Upstream {
    pub address: String,
    asked: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Upstream {
    pub fn start(text: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (asked, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, stopped) = (Arc::clone(&asked), Arc::clone(&stop));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let counter = Arc::clone(&counter);
                std::thread::spawn(move || answer(stream.unwrap(), text, &counter));
            }
        });
        Upstream { address, asked, stop }
    }

    /// Requests that came.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    pub fn forget(&self) {
        self.asked.store(0, Ordering::Relaxed);
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.address);
    }
}

fn answer(mut stream: TcpStream, text: &str, asked: &AtomicUsize) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        // Only requests without a body come here.
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        asked.fetch_add(1, Ordering::Relaxed);
        let length = text.len();
        let answer =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\ncontent-type: text/plain\r\n\r\n{text}");
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
