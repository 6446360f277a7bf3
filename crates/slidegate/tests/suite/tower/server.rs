//! Helper: an axum server, and a plain client that sees when bytes arrive and can disconnect.

use std::net::SocketAddr;

use axum::Router;
use slidegate_testkit::within_limit;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Serves on a free port until the runtime ends.
pub(super) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

/// One connection.
pub(super) struct Connection(TcpStream);

impl Connection {
    /// Connects, and sends a request.
    pub(super) async fn get(address: SocketAddr, path: &str) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        Connection(stream)
    }

    /// Reads until `text` has arrived.
    pub(super) async fn read_to(&mut self, text: &str) {
        let mut read = String::new();
        let reading = async {
            while !read.contains(text) {
                let mut some = [0; 1024];
                let n = self.0.read(&mut some).await.unwrap();
                assert!(n > 0, "the response ended with {read}");
                read += str::from_utf8(&some[..n]).unwrap();
            }
        };
        within_limit(&format!("{text} arrives"), reading).await;
    }

    /// The whole response.
    pub(super) async fn read(mut self) -> String {
        let mut read = String::new();
        within_limit("the response ends", self.0.read_to_string(&mut read)).await.unwrap();
        read
    }
}
