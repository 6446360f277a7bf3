//! Tests pipelines of many commands.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use slidegate::Request;
use slidegate_testkit::eventually;

use super::raw_client::{RespServer, bulk, encode, simple};

/// Eight clients, each with many commands in flight: exactly `limit` commands pass, and each client gets its replies in
/// order.
#[test]
fn concurrent_pipelines_admit_exactly_the_limit() {
    let server = RespServer::open();
    let allowed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (server, allowed) = (&server, &allowed);
            scope.spawn(move || {
                let mut client = server.client();
                for round in 0..40 {
                    let mut bytes = Vec::new();
                    for i in 0..30 {
                        bytes.extend(encode("SG.ACQUIRE hot 5000 3600000"));
                        if i % 7 == n % 7 {
                            bytes.extend(encode(&format!("ECHO {n}-{round}-{i}")));
                        }
                    }
                    // The pipeline is longer than one read, and is cut at any byte.
                    let (first, second) = bytes.split_at((round * 97 + 13) % bytes.len());
                    client.send(first);
                    client.send(second);
                    let mut last = i64::MAX;
                    for i in 0..30 {
                        let numbers = client.read().unwrap().numbers();
                        allowed.fetch_add(numbers[0].unsigned_abs(), Ordering::Relaxed);
                        assert!(numbers[2] <= last, "the remaining permits never increase");
                        last = numbers[2];
                        if i % 7 == n % 7 {
                            assert_eq!(client.read(), Some(bulk(&format!("{n}-{round}-{i}"))));
                        }
                    }
                }
            });
        }
    });
    assert_eq!(allowed.into_inner(), 5_000, "of 9600");
}

/// One write has more commands than a batch may have, and than the buffers hold.
#[test]
fn long_pipeline_is_answered_completely() {
    let server = RespServer::open();
    let mut client = server.client();
    client.send(&encode("SG.ACQUIRE long 1000 60000").repeat(3_000));
    let allowed = (0..3_000).filter(|_| client.read().unwrap().numbers()[0] == 1).count();
    assert_eq!(allowed, 1_000);
    assert_eq!(client.call("PING"), simple("PONG"));
}

#[test]
fn replies_are_in_order() {
    let server = RespServer::open();
    let mut client = server.client();
    let commands = [
        "SG.ACQUIRE a 2 60000",
        "SG.ACQUIRE a 2",
        "SG.ACQUIRE a 2 60000",
        "NOSUCH",
        "SG.ACQUIRE a 2 60000",
        "SG.ACQUIRE a 2 1",
        "SG.PEEK ACQUIRE a 3 60000",
        "CL.THROTTLE a 0 1 60 5",
        "CL.THROTTLE a 0 1 60",
        "THROTTLE a 1 1 60",
        "SG.SETTLE x 0",
        "PING",
    ];
    client.send(&commands.map(encode).concat());
    let mut read = || client.read().unwrap();
    assert_eq!(read().numbers()[..3], [1, 2, 1]);
    assert!(read().error().starts_with("ERR wrong number of arguments"));
    assert_eq!(read().numbers()[..3], [1, 2, 0]);
    assert_eq!(read().error(), "ERR unknown command 'NOSUCH'");
    assert_eq!(read().numbers()[..3], [0, 2, 0]);
    assert_eq!(read().error(), "ERR window must be between 1s and 1h, not 1ms");
    assert_eq!(read().numbers()[..3], [1, 3, 1]);
    assert_eq!(read().numbers()[..4], [1, 1, 1, -1]);
    assert_eq!(read().numbers()[..4], [0, 1, 0, -1]);
    assert_eq!(read().numbers()[..3], [0, 1, 0]);
    assert!(read().error().starts_with("ERR invalid reservation"));
    assert_eq!(read(), simple("PONG"));
}

/// Clients send without a pause while the server stops: every charge was answered.
#[test]
fn shutdown_loses_no_reply() {
    for pipeline in [1, 16] {
        let mut server = RespServer::open();
        let (admitted, stopped) = (AtomicU64::new(0), AtomicBool::new(false));
        let commands = encode("SG.ACQUIRE hot 100000 3600000").repeat(pipeline);
        let clients: Vec<_> = (0..6).map(|_| server.client()).collect();
        std::thread::scope(|scope| {
            for mut client in clients {
                let (admitted, commands, stopped) = (&admitted, &commands, &stopped);
                scope.spawn(move || {
                    while client.try_send(commands) {
                        for _ in 0..pipeline {
                            let Some(answer) = client.read() else {
                                assert!(
                                    stopped.load(Ordering::SeqCst),
                                    "only a stopped server closes the connection"
                                );
                                return;
                            };
                            admitted.fetch_add(answer.numbers()[0].unsigned_abs(), Ordering::Relaxed);
                        }
                    }
                });
            }
            eventually("the server is under load", || admitted.load(Ordering::Relaxed) > 1_000);
            stopped.store(true, Ordering::SeqCst);
            server.stop();
        });
        let hot = Request::resource("hot").limit(100_000).window(Duration::from_secs(3_600));
        let decision = server.block_on(server.app.limiter.peek(hot)).unwrap();
        let admitted = admitted.into_inner();
        assert_eq!(decision.limits().next().unwrap().used(), admitted);
    }
}
