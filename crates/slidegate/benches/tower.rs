//! Cost of the tower layer: the same service with and without it, in one run.
//!
//! `cargo bench -p slidegate --bench tower [-- seconds]` prints two tables: calls in this process, and an axum server under
//! `wrk`. Contenders take turns, round after round. A figure is the median of its rounds; a ratio is the median of the ratios
//! within a round.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]
#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::{Request, Response};
use slidegate::tower::{ClientAddress, Extract, RateLimitLayer};
use slidegate::{Limiter, MemoryStore, Rules};
use tokio::net::TcpListener;
use tower::{Layer, Service, ServiceExt};

const ROUNDS: usize = 7;

/// Calls in one turn, and number of turns: short, so that most turns are not interrupted.
const CALLS: usize = 1_000;
const TURNS: usize = 1_001;

/// Creates a limiter by address and path. The limit is one that no run reaches, or one that denies nearly everything.
fn limiter(limit: u64) -> Limiter {
    let rules = format!("rules: [{{ name: per-client, key: [ip, path], limit: {limit}, window: 1s }}]");
    Limiter::new(MemoryStore::new(), Rules::from_yaml(&rules).unwrap())
}

fn layer(limit: u64) -> RateLimitLayer {
    RateLimitLayer::new(limiter(limit))
        .attribute("ip", ClientAddress::new(|ConnectInfo(peer): &ConnectInfo<SocketAddr>| Some(*peer)))
        .and_then(|layer| layer.attribute("path", Extract::path()))
        .unwrap()
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Nanoseconds per call, including the construction of the request.
async fn call<Inner, B>(service: &mut Inner) -> f64
where
    Inner: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let peer = SocketAddr::from(([192, 0, 2, 7], 4711));
    let start = Instant::now();
    for _ in 0..CALLS {
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(ConnectInfo(peer));
        std::hint::black_box(service.ready().await.unwrap().call(request).await.unwrap());
    }
    start.elapsed().as_nanos() as f64 / CALLS as f64
}

/// Nanoseconds of the same decision without a layer.
async fn decide(limiter: &Limiter) -> f64 {
    let start = Instant::now();
    for _ in 0..CALLS {
        let request = slidegate::Request::new([("ip", "192.0.2.7"), ("path", "/")]);
        std::hint::black_box(limiter.acquire(request).await.unwrap());
    }
    start.elapsed().as_nanos() as f64 / CALLS as f64
}

async fn in_this_process() {
    println!("{:<26}{:>10}{:>10}{:>12}", "ns a call", "bare", "limited", "difference");
    let mut bare = tower::service_fn(async |_: Request<Body>| Ok(Response::new(Body::empty())));
    let contenders = [
        ("admit", layer(1_000_000_000)),
        ("admit, no headers", layer(1_000_000_000).headers_on_denials_only()),
        ("deny", layer(1)),
    ];
    for (name, layer) in contenders {
        let mut limited = layer.layer(bare);
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            without.push(call(&mut bare).await);
            with.push(call(&mut limited).await);
        }
        let differences = without.iter().zip(&with).map(|(without, with)| with - without).collect();
        println!("{name:<26}{:>10.0}{:>10.0}{:>12.0}", median(without), median(with), median(differences));
    }
    let alone = limiter(1_000_000_000);
    let mut decisions = Vec::new();
    for _ in 0..TURNS {
        decisions.push(decide(&alone).await);
    }
    println!("{:<26}{:>32.0}", "the decision alone", median(decisions));
}

async fn serve(layer: Option<RateLimitLayer>) -> String {
    let app = Router::new().route("/", get(async || "hello"));
    let app = match layer {
        Some(layer) => app.layer(layer),
        None => app,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

/// Result of one turn of wrk.
struct Turn {
    per_second: f64,
    /// CPU time of this process, which serves; other processes are not included.
    cpu_micros: f64,
}

async fn wrk(url: &str, seconds: u32) -> Turn {
    let (url, length) = (url.to_owned(), format!("-d{seconds}s"));
    let run = move || Command::new("wrk").args(["-t1", "-c64", &length, &url]).output().unwrap();
    let before = cpu_seconds();
    let output = String::from_utf8(tokio::task::spawn_blocking(run).await.unwrap().stdout).unwrap();
    let used = cpu_seconds() - before;
    let rate = output.lines().find_map(|line| line.strip_prefix("Requests/sec:")).expect("wrk prints it");
    let count = output.lines().find_map(|line| line.split_once(" requests in ")).expect("and how many");
    let requests: f64 = count.0.trim().parse().unwrap();
    Turn { per_second: rate.trim().parse().unwrap(), cpu_micros: used * 1e6 / requests }
}

/// CPU time of this process, in ticks of a hundredth of a second.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    let ticks = after_name.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap());
    ticks.sum::<f64>() / 100.0
}

async fn by_wrk(seconds: u32) {
    println!(
        "\n{:<12}{:>14}{:>10}{:>8}{:>16}{:>10}{:>8}",
        "axum", "bare req/s", "limited", "ratio", "bare CPU us/req", "limited", "ratio"
    );
    let bare = serve(None).await;
    for (name, layer) in [("admit", layer(1_000_000_000)), ("deny", layer(1))] {
        let limited = serve(Some(layer)).await;
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            without.push(wrk(&bare, seconds).await);
            with.push(wrk(&limited, seconds).await);
        }
        let compared = |figure: fn(&Turn) -> f64| {
            let ratios = without.iter().zip(&with).map(|(without, with)| figure(with) / figure(without));
            let of = |turns: &[Turn]| median(turns.iter().map(figure).collect());
            (of(&without), of(&with), median(ratios.collect()))
        };
        let (rate, limited_rate, rate_ratio) = compared(|turn| turn.per_second);
        let (cpu, limited_cpu, cpu_ratio) = compared(|turn| turn.cpu_micros);
        println!(
            "{name:<12}{rate:>14.0}{limited_rate:>10.0}{rate_ratio:>7.2}x{cpu:>16.1}{limited_cpu:>10.1}{cpu_ratio:>7.2}x"
        );
    }
}

fn main() {
    let seconds = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(2);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        in_this_process().await;
        by_wrk(seconds).await;
    });
}
