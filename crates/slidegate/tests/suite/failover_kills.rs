//! Tests a server that is killed under load repeatedly: which store decides meanwhile, and how soon the server is used
//! again.
//!
//! `FAILOVER_KILLS` kills it more often.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{
    Source,
    redis::{FailoverOptions, RedisOptions},
};
use slidegate_testkit::{Flavour, RedisServer};

use crate::deployment::{CLOSED, CallRecord, Deployment, OPEN, ms};
use crate::fault_bounds::{Outage, Run};

/// Returns a number from the environment, or the default.
pub(crate) fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Returns true if the policy of the rule permits the answer: a decision of the store, or the answer for an outage.
pub(crate) fn obeys(call: &CallRecord) -> bool {
    match (call.key, call.source) {
        (_, Source::Store) => true,
        (OPEN, source) => source == Source::FailOpen && call.allowed,
        (CLOSED, source) => source == Source::FailClosed && !call.allowed,
        (_, source) => source == Source::Local,
    }
}

/// Returns, for each node, the time of the first answer of the store to a call after `since`.
pub(crate) fn first_by_store(calls: &[CallRecord], nodes: usize, since: u64, key: Option<u64>) -> Vec<u64> {
    let by_store = |call: &&CallRecord| {
        call.source == Source::Store && call.started >= since && key.is_none_or(|key| call.key == key)
    };
    let first = |node| calls.iter().filter(by_store).find(|call| call.node == node);
    (0..nodes).map(|node| first(node).map_or(u64::MAX, |call| call.answered)).collect()
}

#[tokio::test]
async fn repeated_kills_under_load_stay_bounded() {
    const NODES: usize = 3;
    const LOCAL: [u64; 5] = [0, 1, 2, 3, 4];
    let kills = number("FAILOVER_KILLS", 3);
    let server = Arc::new(RedisServer::start(Flavour::Redis7));
    let options =
        FailoverOptions { heartbeat: ms(500), write_back: ms(20_000), ..FailoverOptions::default() };
    let redis = RedisOptions::new(server.url());
    let deployment =
        Deployment::start_with_keys(&[0, 1, 2, 3, 4, OPEN, CLOSED], NODES, 3, ms(6), &redis, &options).await;
    let watchdog = Arc::clone(&deployment.watchdog);
    let blocking = |what: fn(&RedisServer)| {
        let server = Arc::clone(&server);
        async move { tokio::task::spawn_blocking(move || what(&server)).await.unwrap() }
    };
    let mut outages = Vec::new();
    for kill in 0..kills {
        deployment.until_full(&LOCAL).await;
        blocking(RedisServer::kill).await;
        let gone = deployment.now();
        deployment.until_given_up(0).await;
        let answers = [40, 200, 400][kill as usize % 3];
        deployment.until("every node answers without the store", |calls| calls.len() >= answers).await;
        let until = deployment.now();
        blocking(RedisServer::restart).await;
        outages.push(Outage { gone, until, back: deployment.now(), given_up: true });
        deployment.until_by_store(0).await;
    }
    // Lost permits would be admitted again before the store denies.
    deployment.until_full(&LOCAL).await;
    let servers: Vec<_> = deployment.nodes.iter().flat_map(|failover| failover.stats().servers).collect();
    let calls = deployment.stop().await;

    let latency = watchdog.latency(calls.iter());
    let disobeyed: Vec<&CallRecord> = calls.iter().filter(|call| !obeys(call)).collect();
    let mut away = 0;
    let mut slowest = Duration::ZERO;
    for Outage { gone, until, back, .. } in &outages {
        for call in calls.iter().filter(|call| call.started >= *gone && call.answered < *until) {
            assert_ne!(call.source, Source::Store, "{call:?}");
            away += 1;
        }
        for first in first_by_store(&calls, NODES, *back, None) {
            slowest = slowest.max(watchdog.between(*back, first));
        }
    }
    let excess: u64 = servers.iter().map(|server| server.excess).sum();
    eprintln!(
        "killed {kills} times: {latency}; {away} answers while it was away, {} against their policy; slowest return \
         {slowest:?}; excess {excess}",
        disobeyed.len()
    );
    assert!(disobeyed.is_empty(), "{disobeyed:?}");
    assert!(latency.corrected <= options.deadline + ms(10), "{latency}");
    assert!(slowest <= ms(2_000), "{slowest:?}");
    let deadline = options.deadline;
    Run { calls: &calls, nodes: NODES, deadline, in_flight: 3, outages: &outages }
        .assert_bounds("kills", &LOCAL);
}
