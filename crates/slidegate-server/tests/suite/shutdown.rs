//! Tests the steps of a shutdown, and the notifications to a service manager.

use std::io::{Read, Seek, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use slidegate_testkit::{Flavour, RedisServer, eventually};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::server::Server;

const NOT_SERVING: i32 = 2;

/// Starts a server whose logs are in the returned file.
fn logged(config: &str) -> (Server, std::fs::File) {
    let log = tempfile::tempfile().unwrap();
    (Server::logging_to(&log, &[], config, &[]), log)
}

fn read(mut log: std::fs::File) -> String {
    let mut text = String::new();
    log.rewind().unwrap();
    log.read_to_string(&mut text).unwrap();
    text
}

/// Asserts that the texts are in the log, in this order.
fn assert_steps(log: &str, steps: &[&str]) {
    let mut rest = log;
    for step in steps {
        let at = rest.find(step).unwrap_or_else(|| panic!("`{step}` is not next in:\n{log}"));
        rest = &rest[at + step.len()..];
    }
}

/// In the delay, load balancers see that the node stops, and requests are still answered. A second signal ends the process.
#[test]
fn node_is_not_ready_but_decides_during_the_delay() {
    let (mut server, log) = logged("shutdown: { delay: 1h }\nrules: []\n");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = format!("http://{}", server.listener_address("grpc"));
        let channel = Endpoint::new(endpoint).unwrap().connect().await.unwrap();
        let mut client = HealthClient::new(channel);
        let request = HealthCheckRequest { service: String::new() };
        let mut watch = client.watch(request.clone()).await.unwrap().into_inner();
        assert_eq!(watch.message().await.unwrap().unwrap().status, 1);
        server.terminate();
        let next = tokio::time::timeout(Duration::from_secs(60), watch.message()).await;
        assert_eq!(next.expect("a change of the status").unwrap().unwrap().status, NOT_SERVING);
        assert_eq!(client.check(request).await.unwrap().into_inner().status, NOT_SERVING);
    });
    let answer = server.get("/readyz");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["reason"], "the server is stopping");
    assert_eq!(server.get("/healthz").status, 200);
    let body = r#"{"resource":"r","limit":5,"window":"1m"}"#;
    assert_eq!(server.post("/v1/acquire", body).status, 200);
    server.terminate();
    assert_eq!(server.wait().code(), Some(130));
    let steps =
        ["not ready any more: the listeners close in 1h", "stopping at once, because of a second signal"];
    assert_steps(&read(log), &steps);
}

#[test]
fn steps_are_logged() {
    let (mut server, log) = logged("shutdown: { delay: 10ms, timeout: 1m }\nrules: []\n");
    server.terminate();
    assert!(server.wait().success());
    let steps = [
        "not ready any more: the listeners close in 10ms",
        "listeners closed: open connections: 0",
        "all requests are answered",
    ];
    assert_steps(&read(log), &steps);
}

#[test]
fn connections_are_cut_after_the_timeout() {
    let (mut server, log) = logged("shutdown: { timeout: 100ms }\nrules: []\n");
    let mut stuck = TcpStream::connect(&server.address).unwrap();
    stuck.write_all(b"POST /v1/acquire HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{").unwrap();
    // Including the connection of this request.
    let two = "slidegate_connections{protocol=\"http\"} 2\n";
    eventually("the connection is accepted", || server.get("/metrics").body.contains(two));
    server.terminate();
    assert!(server.wait().success());
    let log = read(log);
    assert_steps(
        &log,
        &["listeners closed: open connections: ", "closing connections that are still open after 75ms: "],
    );
    assert!(!log.contains("not ready any more"), "there is no delay: {log}");
}

#[test]
fn leases_are_returned_and_other_nodes_informed() {
    let redis = RedisServer::start(Flavour::Redis7);
    let config = format!("store: {}\nrules: []\n", redis.url());
    let (mut server, log) = logged(&config);
    eventually("Redis answers", || server.get("/readyz").status == 200);
    server.terminate();
    assert!(server.wait().success());
    let steps =
        ["all requests are answered", "leased permits are returned, and the other nodes are informed"];
    assert_steps(&read(log), &steps);
}

/// Asks a node whether it is ready. It may stop meanwhile.
fn is_ready(address: &str) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.starts_with("HTTP/1.1 200 "))
}

/// Nodes behind a load balancer, which sends requests to nodes that are ready.
#[derive(Default)]
struct Balancer {
    nodes: Mutex<Vec<(String, bool)>>,
}

impl Balancer {
    /// Checks every node once, as a load balancer does all the time.
    fn check(&self) {
        let addresses: Vec<String> =
            self.nodes.lock().unwrap().iter().map(|(address, _)| address.clone()).collect();
        for address in addresses {
            let ready = is_ready(&address).unwrap_or(false);
            let mut nodes = self.nodes.lock().unwrap();
            nodes.iter_mut().filter(|(known, _)| *known == address).for_each(|node| node.1 = ready);
        }
    }

    /// Returns the address of a node that is ready, each in turn.
    fn pick(&self, turn: usize) -> String {
        let nodes = self.nodes.lock().unwrap();
        let ready: Vec<&String> =
            nodes.iter().filter(|(_, ready)| *ready).map(|(address, _)| address).collect();
        ready[turn % ready.len()].clone()
    }
}

/// Three nodes on one Redis are replaced one after the other, under load: no request fails, and exactly the limit is admitted.
#[test]
fn rolling_restart_loses_no_request() {
    const LIMIT: usize = 300;
    let redis = RedisServer::start(Flavour::Redis7);
    // On a busy machine Redis may take longer than the usual deadline; then it would not be who decides.
    let config = format!(
        "store: {}\nguard: {{ deadline: 20s, nodes: 3 }}\nshutdown: {{ delay: 5s }}\n\
         rules: [{{ name: all, limit: {LIMIT}, window: 1h }}]\n",
        redis.url()
    );
    let start = || {
        let server = Server::with_rules(&config);
        eventually("the node is ready", || server.get("/readyz").status == 200);
        server
    };
    let mut servers: Vec<Server> = (0..3).map(|_| start()).collect();
    let balancer = Balancer::default();
    let add = |server: &Server| balancer.nodes.lock().unwrap().push((server.address.clone(), true));
    servers.iter().for_each(add);
    let done = AtomicBool::new(false);
    let (admitted, denied) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                balancer.check();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                for turn in 0.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    let answer =
                        Server::at(&balancer.pick(turn)).post("/v1/acquire", r#"{"attributes":{"a":"b"}}"#);
                    match answer.status {
                        200 => admitted.fetch_add(1, Ordering::Relaxed),
                        429 => denied.fetch_add(1, Ordering::Relaxed),
                        status => panic!("{status}: {}", answer.body),
                    };
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        }
        for server in &mut servers {
            let new = start();
            add(&new);
            server.terminate();
            assert!(server.wait().success());
            balancer.nodes.lock().unwrap().retain(|(address, _)| *address != server.address);
            *server = new;
        }
        eventually("more was requested than is allowed", || denied.load(Ordering::Relaxed) > 0);
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(admitted.load(Ordering::Relaxed), LIMIT);
}

/// The protocol of systemd's `Type=notify`.
#[test]
fn service_manager_is_notified() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let receive = || {
        let mut buffer = [0; 1_024];
        let length = socket.recv(&mut buffer).expect("a notification within 60 s");
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    // Signs of life come at any time.
    let next = || loop {
        let message = receive();
        if message != "WATCHDOG=1\n" {
            break message;
        }
    };
    let variables = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "100000")];
    let mut server = Server::with_env(&variables, "rules: []\n", &[]);
    assert_eq!(next(), "READY=1\n");
    while receive() != "WATCHDOG=1\n" {}
    server.signal("HUP");
    let reloading = next();
    let time = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect("the time of the reload");
    assert!(time.trim_end().parse::<u64>().is_ok(), "{reloading}");
    assert_eq!(next(), "READY=1\n");
    server.terminate();
    assert_eq!(next(), "STOPPING=1\n");
    // Nobody reads the signs of life any more.
    drop(socket);
    assert!(server.wait().success());
}
