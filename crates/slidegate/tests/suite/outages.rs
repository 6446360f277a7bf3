//! Tests outages of Redis, which may come back empty: all nodes together stay within the limits.
//!
//! `SLIDEGATE_OUTAGES` does it more often, as `scripts/soak.sh` does.

use std::sync::Arc;

use slidegate::{
    Source,
    redis::{FailoverOptions, RedisOptions},
};
use slidegate_testkit::{Flavour, RedisServer};

use crate::deployment::{CallRecord, Deployment, KEYS, ms, quota, worst};
use crate::failover_kills::number;
use crate::fault_bounds::{Outage, Run};
use crate::watchdog::Latency;

const NODES: usize = 3;
const ALL: [u64; KEYS as usize] = [0, 1, 2, 3, 4, 5];

fn options() -> FailoverOptions {
    // A busy machine is not an outage, and a node that is slow to return is waited for.
    FailoverOptions {
        heartbeat: ms(500),
        deadline: ms(250),
        write_back: ms(20_000),
        ..FailoverOptions::default()
    }
}

/// Result of a deployment after some outages of its server.
struct Ended {
    calls: Vec<CallRecord>,
    outages: Vec<Outage>,
    latency: Latency,
    excess: u64,
    written_back: u64,
}

/// Three nodes, and a server that goes away and comes back several times. The server goes away when every key is at its
/// limit. It comes back when every node has given it up; every other time it stays away until all keys were admitted
/// without it.
async fn away(options: &FailoverOptions, rounds: u64, go: fn(&RedisServer), back: fn(&RedisServer)) -> Ended {
    let server = Arc::new(RedisServer::start(Flavour::Redis7));
    let redis = RedisOptions::new(server.url());
    let deployment = Deployment::start(NODES, 3, ms(3), &redis, options).await;
    let watchdog = Arc::clone(&deployment.watchdog);
    let blocking = |what: fn(&RedisServer)| {
        let server = Arc::clone(&server);
        async move { tokio::task::spawn_blocking(move || what(&server)).await.unwrap() }
    };
    let mut outages = Vec::new();
    for round in 0..rounds {
        deployment.until_full(&ALL).await;
        blocking(go).await;
        let gone = deployment.now();
        deployment.until_given_up(0).await;
        if round % 2 == 1 {
            let admitted =
                |calls: &[&CallRecord], key| calls.iter().any(|call| call.key == key && call.allowed);
            deployment
                .until("every node admits every key without the store", |calls| {
                    ALL.iter().all(|key| admitted(calls, *key))
                })
                .await;
        }
        let until = deployment.now();
        blocking(back).await;
        outages.push(Outage { gone, until, back: deployment.now(), given_up: true });
        deployment.until_by_store(0).await;
    }
    // Lost permits would be admitted again before the store denies.
    deployment.until_full(&ALL).await;
    let stats: Vec<_> = deployment.nodes.iter().flat_map(|failover| failover.stats().servers).collect();
    let excess = stats.iter().map(|server| server.excess).sum();
    let written_back = stats.iter().map(|server| server.written_back).sum();
    let calls = deployment.stop().await;
    let latency = watchdog.latency(calls.iter());
    Ended { calls, outages, latency, excess, written_back }
}

fn count(calls: &[CallRecord], source: Source) -> usize {
    calls.iter().filter(|call| call.source == source).count()
}

#[tokio::test]
async fn three_nodes_stay_within_limits_if_redis_restarts_empty() {
    let rounds = number("SLIDEGATE_OUTAGES", 2);
    within_the_limits("restarts", away(&options(), rounds, RedisServer::kill, RedisServer::restart).await);
}

/// The server hangs, and comes back with all its keys and the calls that were sent to it meanwhile.
#[tokio::test]
async fn three_nodes_stay_within_limits_if_redis_hangs() {
    let (stop, go_on) =
        (|server: &RedisServer| server.signal("-STOP"), |server: &RedisServer| server.signal("-CONT"));
    within_the_limits("hangs", away(&options(), number("SLIDEGATE_OUTAGES", 2), stop, go_on).await);
}

fn within_the_limits(what: &str, ended: Ended) {
    let Ended { calls, outages, latency, excess, written_back } = ended;
    eprintln!(
        "{what}: {latency}; {} by the store, {} local; {written_back} permits written back, excess {excess}",
        count(&calls, Source::Store),
        count(&calls, Source::Local),
    );
    let deadline = options().deadline;
    Run { calls: &calls, nodes: NODES, deadline, in_flight: 3, outages: &outages }.assert_bounds(what, &ALL);
    assert!(written_back > 0);
    // The store denied every key, so the limits were also reached. A cost of up to 3 may not fit the last permits.
    for key in ALL {
        let (worst, limit) = (worst(&calls, key), quota(key).capacity());
        assert!(worst + 3 >= limit, "key {key}: only {worst} of {limit}");
    }
    assert!(latency.corrected <= deadline + ms(10), "{latency}");
}

/// The same without write-back fails, which shows that the tests above can detect lost state.
#[tokio::test]
async fn without_journal_an_empty_redis_admits_again() {
    let options = FailoverOptions { journal: 0, ..options() };
    let Ended { calls, .. } = away(&options, 1, RedisServer::kill, RedisServer::restart).await;
    let all = [0, 1, 2].map(|key| (key, worst(&calls, key), quota(key).capacity()));
    eprintln!("outages without the journal: most in a window of (key, most, limit): {all:?}");
    assert!(all.iter().any(|(_, worst, limit)| worst > limit), "{all:?}");
    // Lost permits, admissions of the nodes meanwhile, and admissions of the empty server: each up to the limit.
    assert!(all.iter().all(|(_, worst, limit)| *worst <= 3 * limit), "{all:?}");
}
