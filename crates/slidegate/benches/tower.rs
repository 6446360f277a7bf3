//! What the tower layer costs: the same service with and without it, in one run.
//!
//! `cargo bench -p slidegate --bench tower [-- seconds]` prints two tables: calls in this process, and an axum server that
//! `wrk` asks. Contenders take turns, round after round; a figure is the median of its rounds, a ratio that of the rounds'
//! ratios.
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
const CALLS: usize = 200_000;

/// A layer whose limit no run reaches, by the address and the path; or one that refuses nearly everything.
fn layer(limit: u64) -> RateLimitLayer {
    let rules = format!("rules: [{{ name: per-client, key: [ip, path], limit: {limit}, window: 1s }}]");
    let limiter = Limiter::new(MemoryStore::new(), Rules::from_yaml(&rules).unwrap());
    RateLimitLayer::new(limiter)
        .attribute("ip", ClientAddress::new(|ConnectInfo(peer): &ConnectInfo<SocketAddr>| Some(*peer)))
        .and_then(|layer| layer.attribute("path", Extract::path()))
        .unwrap()
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Nanoseconds a call, the making of the request included.
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

async fn in_this_process() {
    println!("{:<26}{:>10}{:>10}{:>12}", "ns a call", "bare", "limited", "difference");
    let mut bare = tower::service_fn(async |_: Request<Body>| Ok(Response::new(Body::empty())));
    let contenders = [
        ("admit", layer(1_000_000_000)),
        ("admit, no headers", layer(1_000_000_000).headers_on_refusals_only()),
        ("refuse", layer(1)),
    ];
    for (name, layer) in contenders {
        let mut limited = layer.layer(bare);
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            without.push(call(&mut bare).await);
            with.push(call(&mut limited).await);
        }
        let differences = without.iter().zip(&with).map(|(without, with)| with - without).collect();
        println!("{name:<26}{:>10.0}{:>10.0}{:>12.0}", median(without), median(with), median(differences));
    }
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

/// Requests a second.
async fn wrk(url: &str, seconds: u32) -> f64 {
    let (url, length) = (url.to_owned(), format!("-d{seconds}s"));
    let run = move || Command::new("wrk").args(["-t1", "-c64", &length, &url]).output().unwrap();
    let output = String::from_utf8(tokio::task::spawn_blocking(run).await.unwrap().stdout).unwrap();
    let line = output.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
    line.expect("wrk prints it").trim().parse().unwrap()
}

async fn by_wrk(seconds: u32) {
    println!("\n{:<26}{:>10}{:>10}{:>9}", "axum, requests/s", "bare", "limited", "ratio");
    let bare = serve(None).await;
    for (name, layer) in [("admit", layer(1_000_000_000)), ("refuse", layer(1))] {
        let limited = serve(Some(layer)).await;
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            without.push(wrk(&bare, seconds).await);
            with.push(wrk(&limited, seconds).await);
        }
        let ratios = without.iter().zip(&with).map(|(without, with)| with / without).collect();
        println!("{name:<26}{:>10.0}{:>10.0}{:>8.2}x", median(without), median(with), median(ratios));
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
