//! Redis goes away and comes back, perhaps with nothing: what all nodes together admit stays within the limits.

use std::time::Duration;

use slidegate::{GuardOptions, RedisOptions, Source};

use crate::deployment::{Deployment, KEYS, Told, micros, ms, peak, quota, worst};
use crate::redis_server::{Flavour, Server};

/// How often; `scripts/soak.sh` does it more often.
fn times(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

fn options() -> GuardOptions {
    // A machine that is busy with other tests is not an outage.
    GuardOptions { heartbeat: ms(200), deadline: ms(250), ..GuardOptions::default() }
}

/// What a run of outages came to.
struct Run {
    told: Vec<Told>,
    excess: u64,
    written_back: u64,
}

/// Three nodes; the server is killed and comes back empty, some times.
async fn restarts(options: &GuardOptions, rounds: u64) -> Run {
    away(options, rounds, Server::kill, Server::restart).await
}

/// Three nodes; the server goes away and comes back, some times.
async fn away(options: &GuardOptions, rounds: u64, go: impl Fn(&Server), back: impl Fn(&Server)) -> Run {
    let server = Server::start(Flavour::Redis7);
    let redis = RedisOptions::new(server.url());
    let deployment = Deployment::start(3, 3, ms(3), &redis, options).await;
    tokio::time::sleep(ms(1_200)).await;
    for round in 0..rounds {
        go(&server);
        tokio::time::sleep(ms(if round % 2 == 0 { 300 } else { 1_500 })).await;
        back(&server);
        tokio::time::sleep(ms(2_500)).await;
    }
    let stats: Vec<_> = deployment.nodes.iter().flat_map(|guard| guard.stats().servers).collect();
    let excess = stats.iter().map(|server| server.excess).sum();
    let written_back = stats.iter().map(|server| server.written_back).sum();
    Run { told: deployment.stop().await, excess, written_back }
}

/// Keys whose limit was passed in some window, with the worst of it.
fn over(told: &[Told]) -> Vec<(u64, u64, u64)> {
    let all = (0..KEYS).map(|key| (key, worst(told, key), quota(key).capacity()));
    all.filter(|(_, worst, limit)| worst > limit).collect()
}

fn count(told: &[Told], source: Source) -> usize {
    told.iter().filter(|told| told.source == source).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_stay_within_the_limits_although_redis_comes_back_empty() {
    within_the_limits("restarts", restarts(&options(), times("SLIDEGATE_OUTAGES", 2)).await);
}

/// It hangs, and comes back with all it had, and with what was asked of it meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_stay_within_the_limits_although_redis_hangs() {
    let (stop, go_on) = (|server: &Server| server.signal("-STOP"), |server: &Server| server.signal("-CONT"));
    within_the_limits("hangs", away(&options(), times("SLIDEGATE_OUTAGES", 2), stop, go_on).await);
}

fn within_the_limits(what: &str, run: Run) {
    let Run { told, excess, written_back } = run;
    let worst: Vec<(u64, u64)> = (0..KEYS).map(|key| (worst(&told, key), quota(key).capacity())).collect();
    eprintln!(
        "{what}: {} answers, {} by the store, {} local; {written_back} permits written back, excess {excess}; \
         most in any window of each key and its limit: {worst:?}",
        told.len(),
        count(&told, Source::Store),
        count(&told, Source::Local),
    );
    assert_eq!(over(&told), []);
    assert!(count(&told, Source::Local) > 100 && count(&told, Source::Store) > 100);
    assert!(written_back > 0);
    // Independent of what anybody says of instants: as the callers saw it, no answer taking longer than 100 ms.
    for key in 0..3 {
        let window = quota(key).window().get() - micros(ms(100));
        let seen = peak(&told, key, window, |told| told.answered);
        assert!(seen <= quota(key).limit(), "key {key}: {seen}");
    }
    // The limits are also reached, by the store and in fallback.
    for (key, (worst, limit)) in worst.iter().enumerate() {
        assert!(worst + 3 >= *limit, "key {key}: only {worst} of {limit}");
    }
    for told in &told {
        let took = Duration::from_micros(told.answered - told.asked);
        assert!(took < ms(500), "{told:?} took {took:?}");
    }
}

/// The same without write-back fails: so the test above sees what it should.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_mirror_an_empty_redis_admits_again() {
    let Run { told, .. } = restarts(&GuardOptions { mirror: 0, ..options() }, 2).await;
    let over = over(&told);
    eprintln!("outages without the mirror: over in (key, most in a window, limit): {over:?}");
    assert!(!over.is_empty());
}
