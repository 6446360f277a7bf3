//! A server is killed under load, again and again: who decides meanwhile, how soon, and how soon it is back.
//!
//! `GUARD_KILLS` kills it more often.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{Algorithm, Clock, GuardOptions, RedisOptions, Source};

use crate::deployment::{CLOSED, Deployment, KEYS, OPEN, Told, ms, quota, worst};
use crate::redis_server::{Flavour, Server};
use crate::watchdog::Watchdog;

/// How many, unless the environment says otherwise.
pub(crate) fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Whether an answer is one that its rule allows: the store's, or what it says to answer without it.
pub(crate) fn obeys(told: &Told) -> bool {
    match (told.key, told.source) {
        (_, Source::Store) => true,
        (OPEN, source) => source == Source::FailOpen && told.allowed,
        (CLOSED, source) => source == Source::FailClosed && !told.allowed,
        (_, source) => source == Source::Local,
    }
}

/// Keys that were over their limit in some window, with the most in it and the limit: by the instants of the decisions,
/// or as callers saw it.
///
/// Of an answer that the node made after it had waited for the store in vain, the instant is not known: the store may
/// have admitted it before the node did, and then it counts from then on. Callers saw when it was, but not exactly.
pub(crate) fn over(told: &[Told], keys: &[u64]) -> Vec<(u64, u64, u64)> {
    let waited = |told: &Told| told.source != Source::Store && told.answered - told.asked >= 40_000;
    let dated: Vec<Told> = told.iter().filter(|told| !waited(told)).copied().collect();
    let of_key = |&key: &u64| {
        let exact = quota(key).algorithm() == Algorithm::SlidingWindow;
        let seen = if exact { certain(told, key) } else { 0 };
        (key, worst(&dated, key).max(seen), quota(key).capacity())
    };
    keys.iter().map(of_key).filter(|(_, most, limit)| most > limit).collect()
}

/// On a quiet machine none is over, but for one permit in twenty kills that a node had dated ahead by less than it knows
/// the server's clock. On a busy one a node may wait in vain for a server that answers the others, and then it decides
/// alone for a moment: by its share, which is what docs/operations.md says of a node that is cut off.
fn assert_nearly_exact(over: &[(u64, u64, u64)]) {
    for (key, most, limit) in over {
        assert!(*most <= limit + limit / 10, "key {key}: {most} of {limit}");
    }
}

/// The most permits whose callers asked and were answered within one window: wherever in between each was decided, so
/// many were in one window.
fn certain(told: &[Told], key: u64) -> u64 {
    let window = quota(key).window().get();
    let mut allowed: Vec<&Told> = told.iter().filter(|told| told.allowed && told.key == key).collect();
    allowed.sort_unstable_by_key(|told| told.asked);
    let from = |first: usize| {
        let end = allowed[first].asked + window;
        let within = allowed[first..].iter().take_while(|told| told.asked < end);
        within.filter(|told| told.answered < end).map(|told| told.cost).sum()
    };
    (0..allowed.len()).map(from).max().unwrap_or(0)
}

/// When each node's first answer came that the store made, to an ask from `since` on.
pub(crate) fn first_by_store(told: &[Told], nodes: usize, since: u64, key: Option<u64>) -> Vec<u64> {
    let by_store = |told: &&Told| {
        told.source == Source::Store && told.asked >= since && key.is_none_or(|key| told.key == key)
    };
    let first = |node| told.iter().filter(by_store).find(|told| told.node == node);
    (0..nodes).map(|node| first(node).map_or(u64::MAX, |told| told.answered)).collect()
}

#[tokio::test]
async fn a_server_is_killed_again_and_again() {
    const NODES: usize = 3;
    let kills = number("GUARD_KILLS", 3);
    let server = Arc::new(Server::start(Flavour::Redis7));
    let options = GuardOptions { heartbeat: ms(200), ..GuardOptions::default() };
    let redis = RedisOptions::new(server.url());
    let deployment =
        Deployment::asking(&[0, 1, 2, 3, 4, OPEN, CLOSED], NODES, 3, ms(6), &redis, &options).await;
    let watchdog = Watchdog::start(&deployment.clock);
    let now = || deployment.clock.now().get();
    let blocking = |what: fn(&Server)| {
        let server = Arc::clone(&server);
        async move { tokio::task::spawn_blocking(move || what(&server)).await.unwrap() }
    };
    // From when until when it was certainly away, and when it was back.
    let mut outages = Vec::new();
    tokio::time::sleep(ms(800)).await;
    for kill in 0..kills {
        blocking(Server::kill).await;
        let gone = now();
        tokio::time::sleep(ms([300, 700, 1_300][kill as usize % 3])).await;
        let until = now();
        blocking(Server::restart).await;
        outages.push((gone, until, now()));
        tokio::time::sleep(ms(1_500)).await;
    }
    let servers: Vec<_> = deployment.nodes.iter().flat_map(|guard| guard.stats().servers).collect();
    let told = deployment.stop().await;

    let latency = watchdog.latency(told.iter());
    let disobeyed: Vec<&Told> = told.iter().filter(|told| !obeys(told)).collect();
    let mut away = 0;
    let mut slowest = Duration::ZERO;
    for (gone, until, back) in &outages {
        for told in told.iter().filter(|told| told.asked >= *gone && told.answered < *until) {
            assert_ne!(told.source, Source::Store, "{told:?}");
            away += 1;
        }
        for first in first_by_store(&told, NODES, *back, None) {
            assert_ne!(first, u64::MAX, "a node did not return");
            slowest = slowest.max(watchdog.between(*back, first));
        }
    }
    let excess: u64 = servers.iter().map(|server| server.excess).sum();
    let over = over(&told, &[0, 1, 2, 3, 4]);
    let most: Vec<(u64, u64)> = (0..KEYS).map(|key| (worst(&told, key), quota(key).capacity())).collect();
    eprintln!(
        "killed {kills} times: {latency}; {away} answers while it was away, {} against their policy; slowest \
         return {slowest:?}; excess {excess}, windows over {over:?}, most in any window of each key and its limit \
         {most:?}",
        disobeyed.len()
    );
    assert!(disobeyed.is_empty(), "{disobeyed:?}");
    assert!(away > 100);
    assert!(latency.corrected <= options.deadline + ms(10));
    assert!(slowest <= ms(2_000));
    assert_nearly_exact(&over);
}
