//! Tests that slow clients time out, and that a shutdown loses no response.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use slidegate::{MemoryStore, Rules};
use slidegate_server::AnyStore;
use slidegate_server::AppState;
use slidegate_server::Limits;
use slidegate_server::serve::{self, Listeners};
use slidegate_testkit::eventually;
use tokio::sync::oneshot;

use crate::server::{Answer, Server};

const BODY: &str = r#"{"resource":"r","limit":5}"#;

fn head(length: usize) -> String {
    format!(
        "POST /v1/acquire HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
}

/// SIGTERM arrives while half a request has been sent: the rest is read and answered, then the server exits.
#[test]
fn shutdown_answers_requests_in_flight() {
    let mut server = Server::demo();
    let mut clients: Vec<TcpStream> = (0..20).map(|_| server.connect()).collect();
    let (first, rest) = BODY.split_at(10);
    for client in &mut clients {
        let head = head(BODY.len()).replace("content-type", "expect: 100-continue\r\ncontent-type");
        client.write_all(head.as_bytes()).unwrap();
    }
    for client in &mut clients {
        // The server sends `100 Continue` when it waits for the body. Then the request is in flight.
        let mut go_on = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
        client.read_exact(&mut go_on).unwrap();
        client.write_all(first.as_bytes()).unwrap();
    }
    server.terminate();
    eventually("new connections are refused", || TcpStream::connect(&server.address).is_err());
    let mut allowed = 0;
    for mut client in clients {
        client.write_all(rest.as_bytes()).unwrap();
        let answer = Answer::read(client);
        assert!(answer.status == 200 || answer.status == 429, "{}", answer.body);
        allowed += usize::from(answer.status == 200);
    }
    assert_eq!(allowed, 5, "and exactly");
    assert!(server.wait().success());
}

/// Server in this process with short timeouts.
async fn impatient(limits: Limits) -> (String, oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut app = AppState::new(AnyStore::Memory(MemoryStore::new()), Rules::new([]).unwrap(), "a test");
    app.settings.limits = limits;
    app.settings.shutdown.timeout = Duration::from_millis(100);
    let app = Arc::new(app);
    let listeners = Listeners { http: Some(listener), ..Listeners::default() };
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(serve::run(listeners, app, async {
        let _ = stopped.await;
    }));
    (address, stop, served)
}

fn short() -> Limits {
    Limits {
        head: Duration::from_millis(100),
        request: Duration::from_millis(100),
        connections: 3,
        ..Limits::default()
    }
}

/// Reads until the server closes the connection, which it must.
async fn read_all(mut stream: TcpStream) -> String {
    tokio::task::spawn_blocking(move || {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut text = String::new();
        if let Err(error) = stream.read_to_string(&mut text) {
            // A reset closes the connection too.
            assert_ne!(
                error.kind(),
                ErrorKind::WouldBlock,
                "the connection is still open after 30 s: {text:?}"
            );
        }
        text
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_head_or_body_times_out() {
    let (address, _stop, _) = impatient(short()).await;
    let mut slow_head = TcpStream::connect(&address).unwrap();
    slow_head.write_all(b"POST /v1/acq").unwrap();
    let mut slow_body = TcpStream::connect(&address).unwrap();
    slow_body.write_all(head(100).as_bytes()).unwrap();
    slow_body.write_all(b"{").unwrap();
    let answer = read_all(slow_body).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(
        answer.contains(r#"{"error":{"code":"timeout","message":"the request took too long to arrive"}}"#)
    );
    let answer = read_all(slow_head).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_are_closed_for_new_ones() {
    let limits = Limits { request: Duration::from_secs(10), ..short() };
    let (address, _stop, _) = impatient(limits).await;
    let _idle: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let mut fourth = TcpStream::connect(&address).unwrap();
    fourth.write_all(head(BODY.len()).as_bytes()).unwrap();
    fourth.write_all(BODY.as_bytes()).unwrap();
    let answer = read_all(fourth).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// One client requests megabytes and reads none; there is room for only one connection.
#[tokio::test(flavor = "multi_thread")]
async fn client_that_does_not_read_is_closed() {
    let requests = vec![BODY; 1_000].join(",");
    let batch = format!("{{\"requests\":[{requests}]}}");
    // Responses of a quarter of a megabyte by hyper, and many small ones on the fast path.
    for (path, body, times) in [("/v1/acquire/batch", batch.as_str(), 60), ("/v1/acquire", BODY, 100_000)] {
        let limits = Limits {
            head: Duration::from_secs(300),
            request: Duration::from_millis(500),
            connections: 1,
            // Both clients have the same address.
            connections_per_address: Some(2),
            ..short()
        };
        let (address, _stop, _) = impatient(limits).await;
        let head = head(body.len()).replace("/v1/acquire", path).replace("connection: close\r\n", "");
        let request = head + body;
        let mut deaf = TcpStream::connect(&address).unwrap();
        // The first response shows that the connection is in use. So the next client cannot evict it, and must wait.
        deaf.write_all(request.as_bytes()).unwrap();
        deaf.peek(&mut [0]).unwrap();
        let sender = std::thread::spawn(move || {
            // The responses are larger than the buffers of both sockets.
            let _ = (0..times).try_for_each(|_| deaf.write_all(request.as_bytes()));
            // The client keeps the connection open, so only the server can end it.
            deaf
        });
        let mut next = TcpStream::connect(&address).unwrap();
        next.write_all(self::head(BODY.len()).as_bytes()).unwrap();
        next.write_all(BODY.as_bytes()).unwrap();
        let answer = read_all(next).await;
        assert!(answer.starts_with("HTTP/1.1 429 ") || answer.starts_with("HTTP/1.1 200 "), "{answer:?}");
        drop(sender.join().unwrap());
    }
}

/// Kept-alive connections end when the server stops, and after a long time without a request.
#[tokio::test(flavor = "multi_thread")]
async fn kept_alive_connections_end() {
    for stops in [true, false] {
        // The idle timeout is longer than the pauses of a busy machine between requests.
        let idle = Duration::from_secs(if stops { 300 } else { 1 });
        let limits = Limits { head: idle, request: Duration::from_secs(10), ..short() };
        let (address, stop, _served) = impatient(limits).await;
        let mut connection = TcpStream::connect(&address).unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let request = head(BODY.len()).replace("connection: close\r\n", "") + BODY;
        let mut answer = [0; 1_024];
        for _ in 0..3 {
            connection.write_all(request.as_bytes()).unwrap();
            assert!(connection.read(&mut answer).unwrap() > 0);
        }
        let _stop = if stops { stop.send(()).map(|()| None) } else { Ok(Some(stop)) };
        assert_eq!(read_all(connection).await, "", "the connection ends without another response");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_time_is_bounded() {
    let limits = Limits { head: Duration::from_secs(300), request: Duration::from_secs(10), ..short() };
    let (address, stop, served) = impatient(limits).await;
    let mut stuck = TcpStream::connect(&address).unwrap();
    stuck.write_all(b"POST /v1/acq").unwrap();
    tokio::task::spawn_blocking(move || {
        // The number includes the connection of this request.
        let two = "slidegate_connections{protocol=\"http\"} 2\n";
        eventually("the connection is accepted", || Server::at(&address).get("/metrics").body.contains(two));
    })
    .await
    .unwrap();
    stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(30), served).await.expect("it stops").unwrap();
}
