//! Tests rows of the fault table in docs/explanation/operations.md that concern one key: each bound is reached, and not passed.

use std::sync::Arc;

use slidegate::{
    Key, OnError, Quota, Source, Store,
    redis::{Failover, FailoverOptions, RedisOptions, RedisStore},
    store::{Check, Checks, Outcome},
};
use slidegate_testkit::{Fault, FaultProxy, Flavour, RedisServer, lasting_port};

use crate::deployment::{ms, soon};
use crate::failover_write_back::{back, given_up};

const LIMIT: u64 = 60;

fn failover(url: &str, options: FailoverOptions) -> Failover {
    let store = RedisStore::with_options(&RedisOptions::new(url)).unwrap();
    // Long timeouts, so that a stall of the machine is not an outage.
    Failover::new(store, FailoverOptions { deadline: ms(2_000), heartbeat: ms(100), ..options }).unwrap()
}

fn check(n: u64) -> Check {
    let key = Key::new("bounded", [("n", n.to_string().as_str())]);
    Check { on_error: Some(OnError::Local), ..Check::new(key, Quota::per_hour(LIMIT).unwrap(), 1) }
}

async fn send(failover: &Failover, n: u64) -> (Source, bool) {
    let verdicts = failover.admit(&[Checks::one(check(n)).unwrap()]).await.unwrap().remove(0);
    (verdicts.source, verdicts.verdicts[0].outcome == Outcome::Charged)
}

/// Calls up to `times` times, asserts that `source` decided all, and returns the number of admissions.
async fn admit(failover: &Failover, times: u64, source: Source) -> u64 {
    let mut admitted = 0;
    for _ in 0..times {
        let (by, allowed) = send(failover, 0).await;
        assert_eq!(by, source);
        admitted += u64::from(allowed);
    }
    admitted
}

async fn blocking(server: &Arc<RedisServer>, what: fn(&RedisServer)) {
    let server = Arc::clone(server);
    tokio::task::spawn_blocking(move || what(&server)).await.unwrap();
}

fn excess(failover: &Failover) -> u64 {
    failover.stats().servers.iter().map(|server| server.excess).sum()
}

/// Waits until both failovers count two nodes.
async fn acquainted(one: &Failover, other: &Failover) {
    one.start();
    other.start();
    let nodes = |failover: &Failover| failover.stats().servers.first().map_or(0, |server| server.nodes);
    soon("the nodes know of each other", || nodes(one) == 2 && nodes(other) == 2).await;
}

#[tokio::test]
async fn nodes_started_during_an_outage_use_the_configured_node_count() {
    let url = format!("redis://127.0.0.1:{}", lasting_port());
    for (nodes, admitted) in [(1, 3 * LIMIT), (3, LIMIT), (4, LIMIT / 4 * 3)] {
        let mut total = 0;
        for _ in 0..3 {
            let options = FailoverOptions { nodes, ..FailoverOptions::default() };
            let failover = Failover::new(RedisStore::new(&url).unwrap(), options).unwrap();
            total += admit(&failover, 2 * LIMIT, Source::Local).await;
        }
        assert_eq!(total, admitted, "three nodes that assume {nodes} nodes");
    }
}

#[tokio::test]
async fn admissions_of_a_dead_node_are_lost_with_an_empty_redis() {
    let server = Arc::new(RedisServer::start(Flavour::Redis7));
    let options = FailoverOptions { write_back: ms(200), ..FailoverOptions::default() };
    let (one, other) = (failover(&server.url(), options.clone()), failover(&server.url(), options));
    acquainted(&one, &other).await;
    let before = (admit(&one, 20, Source::Store).await, admit(&other, 15, Source::Store).await);
    assert_eq!(before, (20, 15));
    drop(other);
    blocking(&server, RedisServer::restart).await;
    back(&one, 1).await;
    let after = admit(&one, 2 * LIMIT, Source::Store).await;
    assert_eq!(20 + 15 + after, LIMIT + 15, "over by the admissions of the dead node");
}

/// A new node finds an empty server, and an old one has not written back to it yet.
#[tokio::test]
async fn late_write_back_is_counted_as_excess() {
    let server = Arc::new(RedisServer::start(Flavour::Redis7));
    let proxy = FaultProxy::start(server.address());
    let old = failover(&proxy.url(), FailoverOptions::default());
    assert_eq!(admit(&old, 20, Source::Store).await, 20);
    proxy.set(Fault::Reset);
    given_up(&old, 1).await;
    assert_eq!(admit(&old, 5, Source::Local).await, 5);
    blocking(&server, RedisServer::restart).await;
    let new = failover(&server.url(), FailoverOptions::default());
    assert_eq!(admit(&new, 2 * LIMIT, Source::Store).await, LIMIT);
    proxy.set(Fault::None);
    back(&old, 1).await;
    assert_eq!(excess(&old), 25, "over by the admissions that the old node had not written back");
    let used = new.inspect(&check(0).key).await.unwrap().unwrap().used;
    assert_eq!(used, LIMIT + 25);
    assert_eq!(admit(&old, 5, Source::Store).await + admit(&new, 5, Source::Store).await, 0);
}

/// A node that alone is cut off admits its share, and the other nodes admit the limit.
#[tokio::test]
async fn isolated_node_adds_at_most_its_share() {
    let server = RedisServer::start(Flavour::Redis7);
    let proxy = FaultProxy::start(server.address());
    let (cut, other) = (
        failover(&proxy.url(), FailoverOptions::default()),
        failover(&server.url(), FailoverOptions::default()),
    );
    acquainted(&cut, &other).await;
    proxy.set(Fault::Reset);
    given_up(&cut, 1).await;
    let (alone, by_server) =
        (admit(&cut, 2 * LIMIT, Source::Local).await, admit(&other, 2 * LIMIT, Source::Store).await);
    assert_eq!((alone, by_server), (LIMIT / 2, LIMIT));
    // When the node is back, it writes its admissions, and they count.
    proxy.set(Fault::None);
    back(&cut, 1).await;
    assert_eq!(excess(&cut), LIMIT / 2);
}

#[tokio::test]
async fn full_journal_is_over_by_its_dropped_entries() {
    let server = Arc::new(RedisServer::start(Flavour::Redis7));
    // In the journal a key takes as much room as 24 admissions.
    let failover =
        failover(&server.url(), FailoverOptions { journal: 24 + 30, ..FailoverOptions::default() });
    assert_eq!(admit(&failover, 50, Source::Store).await, 50);
    let dropped = failover.stats().journal.dropped;
    assert_eq!(dropped, 20);
    blocking(&server, RedisServer::kill).await;
    given_up(&failover, 1).await;
    assert_eq!(
        admit(&failover, 10, Source::Local).await,
        0,
        "admissions that do not fit into the journal are denied"
    );
    blocking(&server, RedisServer::restart).await;
    back(&failover, 1).await;
    assert_eq!(50 + admit(&failover, 2 * LIMIT, Source::Store).await, LIMIT + dropped);
}

/// A server that is out of memory, or has become a replica, answers but cannot decide.
#[tokio::test]
async fn read_only_server_counts_as_unavailable() {
    let server = RedisServer::start(Flavour::Redis7).without_ttl_check();
    for (fault, repair) in
        [("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"), ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE")]
    {
        server.run("FLUSHALL");
        let failover = failover(&server.url(), FailoverOptions::default());
        assert_eq!(admit(&failover, 20, Source::Store).await, 20);
        server.run(fault);
        assert_eq!(admit(&failover, 2 * LIMIT, Source::Local).await, LIMIT - 20, "{fault}");
        server.run(repair);
        back(&failover, 1).await;
        assert_eq!(admit(&failover, 5, Source::Store).await, 0, "{fault}");
        assert_eq!(excess(&failover), 0);
    }
}

#[tokio::test]
async fn dead_shard_affects_only_its_own_keys() {
    let servers = [(); 2].map(|()| RedisServer::start(Flavour::Redis7));
    let store =
        RedisStore::with_options(&RedisOptions::shards(servers.iter().map(RedisServer::url))).unwrap();
    let failover =
        Failover::new(store, FailoverOptions { deadline: ms(500), ..FailoverOptions::default() }).unwrap();
    for n in 0..40 {
        assert_eq!(send(&failover, n).await, (Source::Store, true));
    }
    let living = |n: u64| {
        let name = format!("sg:{{{}}}", check(n).key);
        servers[1].run(&format!("EXISTS {name}")) == redis::Value::Int(1)
    };
    let living: Vec<bool> = (0..40).map(living).collect();
    assert!(living.contains(&true) && living.contains(&false));
    servers[0].kill();
    for (n, living) in (0..).zip(living) {
        let expected = if living { Source::Store } else { Source::Local };
        for _ in 1..LIMIT {
            assert_eq!(send(&failover, n).await, (expected, true));
        }
        assert_eq!(send(&failover, n).await, (expected, false), "no node is over its limit");
    }
}
