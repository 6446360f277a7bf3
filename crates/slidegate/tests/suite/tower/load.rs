//! Tests real servers under load: never over the limit in any window, and never denied while there is room.

use std::collections::VecDeque;
use std::process::Command;
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Extension};
use axum::routing::get;
use parking_lot::Mutex;
use slidegate::tower::{ClientAddress, Denial, RateLimitLayer};
use slidegate::{
    Decision, Limiter, MemoryStore, Micros, Rules, Store,
    redis::{Failover, FailoverOptions},
};
use slidegate_testkit::{Flavour, RedisServer};
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Channel, Server as TonicServer};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::server::serve;
use crate::audit_healthy::patient_store;

const LIMIT: usize = 40;
const WINDOW: Micros = Micros::from_millis(200);
const CONNECTIONS: usize = 16;

fn rules() -> Rules {
    Rules::from_yaml("rules: [{ name: per-client, key: [ip], limit: 40, window: 200ms }]").unwrap()
}

/// Times of admissions and denials, by the clock of the store.
#[derive(Clone, Default)]
struct Instants(Arc<Mutex<Vec<(Micros, Verdict)>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Admitted,
    Denied,
}

impl Instants {
    fn record(&self, decision: &Decision, verdict: Verdict) {
        self.0.lock().push((decision.at(), verdict));
    }

    fn watch<S: Store + 'static>(&self, layer: RateLimitLayer<S>) -> RateLimitLayer<S> {
        let instants = self.clone();
        layer.pass_decision().answer_with(move |denial, usual| {
            let Denial::OverLimit(decision) = denial else { panic!("{denial:?}") };
            instants.record(decision, Verdict::Denied);
            usual
        })
    }

    /// Returns the numbers of admissions and denials.
    fn check(&self) -> (usize, usize) {
        let mut instants = self.0.lock().clone();
        instants.sort();
        let mut counted: VecDeque<Micros> = VecDeque::new();
        let mut denied = 0;
        for (at, verdict) in &instants {
            while counted.front().is_some_and(|first| at.since(*first) >= WINDOW) {
                counted.pop_front();
            }
            match verdict {
                Verdict::Admitted => counted.push_back(*at),
                Verdict::Denied => denied += 1,
            }
            let full = if *verdict == Verdict::Denied { LIMIT..=LIMIT } else { 1..=LIMIT };
            assert!(
                full.contains(&counted.len()),
                "{} in the window when {verdict:?} at {at}",
                counted.len()
            );
        }
        (instants.len() - denied, denied)
    }
}

/// Returns the number of responses that wrk saw in one second, and of denials among them.
fn wrk(url: &str) -> (usize, usize) {
    let connections = CONNECTIONS.to_string();
    let output = Command::new("wrk").args(["-t1", "-c", &connections, "-d1s", url]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let number = |line: &str, before: &str, after: &str| {
        line.split_once(before)?.1.split_once(after)?.0.trim().parse::<usize>().ok()
    };
    let all = text.lines().find_map(|line| number(line, "", "requests in"));
    let denied = text.lines().find_map(|line| line.split_once("Non-2xx or 3xx responses:"));
    (all.expect(&text), denied.map_or(0, |(_, count)| count.trim().parse().unwrap()))
}

async fn axum_under_wrk<S: Store + 'static>(limiter: Limiter<S>) {
    let instants = Instants::default();
    let client = ClientAddress::new(|ConnectInfo(peer): &ConnectInfo<std::net::SocketAddr>| Some(*peer));
    let layer = instants.watch(RateLimitLayer::new(limiter).attribute("ip", client).unwrap());
    let recorded = instants.clone();
    let handler = async move |Extension(decision): Extension<Arc<Decision>>| {
        recorded.record(&decision, Verdict::Admitted);
        "hello"
    };
    let address = serve(Router::new().route("/", get(handler)).layer(layer)).await;
    let url = format!("http://{address}/");
    let (all, denied) = tokio::task::spawn_blocking(move || wrk(&url)).await.unwrap();

    let (admitted_here, denied_here) = instants.check();
    eprintln!("admitted {admitted_here}, denied {denied_here}; wrk saw {} and {denied}", all - denied);
    // wrk did not see the responses that were under way when it ended.
    let unseen = 0..=CONNECTIONS;
    assert!(unseen.contains(&(admitted_here + denied_here - all)));
    assert!(unseen.contains(&(admitted_here - (all - denied))) && unseen.contains(&(denied_here - denied)));
    assert!(admitted_here > 2 * LIMIT && denied > 0, "the server was not under load");
}

#[tokio::test(flavor = "multi_thread")]
async fn axum_admits_exactly_the_limit_in_memory() {
    axum_under_wrk(Limiter::new(MemoryStore::new(), rules())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn axum_admits_exactly_the_limit_in_redis() {
    let server = RedisServer::start(Flavour::Redis7);
    let patient =
        FailoverOptions { deadline: std::time::Duration::from_secs(20), ..FailoverOptions::default() };
    let store = Failover::new(patient_store(&server), patient).unwrap();
    axum_under_wrk(Limiter::new(store, rules())).await;
}

async fn check(client: &HealthClient<Channel>) -> Result<(), Status> {
    let request = HealthCheckRequest { service: String::new() };
    client.clone().check(request).await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread")]
async fn tonic_admits_exactly_the_limit() {
    let instants = Instants::default();
    let limiter = Limiter::new(MemoryStore::new(), rules());
    let peer = ClientAddress::new(|info: &TcpConnectInfo| info.remote_addr());
    let layer = instants.watch(RateLimitLayer::new(limiter).attribute("ip", peer).unwrap());
    let recorded = instants.clone();
    let record = tower::util::MapRequestLayer::new(move |request: http::Request<_>| {
        let decision = request.extensions().get::<Arc<Decision>>().unwrap();
        recorded.record(decision, Verdict::Admitted);
        request
    });
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    let server = TonicServer::builder().layer(layer).layer(record).add_service(health);
    tokio::spawn(server.serve_with_incoming(incoming));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let client = HealthClient::new(channel);

    let callers = (0..CONNECTIONS).map(|_| {
        let client = client.clone();
        tokio::spawn(async move {
            let (mut ok, mut denied) = (0, 0);
            for _ in 0..400 {
                match check(&client).await {
                    Ok(()) => ok += 1,
                    Err(status) => {
                        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                        assert!(status.message().starts_with("denied by per-client, retry in "), "{status}");
                        let wait = status.metadata().get("grpc-retry-pushback-ms").unwrap();
                        let wait: u64 = wait.to_str().unwrap().parse().unwrap();
                        assert!((1..=200).contains(&wait));
                        assert!(status.metadata().contains_key("ratelimit"));
                        denied += 1;
                    }
                }
            }
            (ok, denied)
        })
    });
    let (mut ok, mut denied) = (0, 0);
    for caller in callers.collect::<Vec<_>>() {
        let seen = caller.await.unwrap();
        ok += seen.0;
        denied += seen.1;
    }
    eprintln!("ok {ok}, ResourceExhausted {denied}");
    assert_eq!(instants.check(), (ok, denied));
    assert!(ok >= LIMIT && denied > 0, "the server was not under load");
}
