//! Tests a primary that dies with writes that its replica never had, and the replica that takes over.
//!
//! The replica is stopped and its link is cut before the last writes, so that these writes are certainly lost. Then the
//! replica continues without them. `FAILOVER_PROMOTIONS` does it more often.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use slidegate::{
    Key, Source,
    redis::{FailoverOptions, RedisOptions},
};
use slidegate_testkit::{Cluster, RedisServer, Sentinels, eventually};

use crate::deployment::{CallRecord, Deployment, LONG, LONG_CLOSED, ms, name, quota, worst};
use crate::failover_kills::{first_by_store, number};
use crate::fault_bounds::{self, Outage};

/// A primary and its replica: of one shard, or the only two servers. Nodes are identified by their ports.
trait Pair: Send + Sync + 'static {
    fn redis(&self) -> RedisOptions;
    /// Port of the primary that counts a key.
    fn primary(&self, key: &Key) -> u16;
    /// Returns a node, and its replication partner.
    fn both(&self, port: u16) -> (&RedisServer, &RedisServer);
    /// Called before the replica is stopped, and after it was promoted.
    fn expect_failover(&self, expected: bool);
    /// Starts a dead node, which becomes a replica.
    fn repair(&self, dead: u16);
}

impl Pair for Cluster {
    fn redis(&self) -> RedisOptions {
        RedisOptions::cluster(self.urls())
    }

    fn primary(&self, key: &Key) -> u16 {
        self.node_of_slot(self.slot_of(&stored(key)))
    }

    fn both(&self, port: u16) -> (&RedisServer, &RedisServer) {
        (self.node(port), self.partner(port))
    }

    fn expect_failover(&self, expected: bool) {
        if expected { self.expect_failover() } else { self.expect_no_failover() }
    }

    fn repair(&self, dead: u16) {
        self.restart(dead);
        self.wait_until_ok();
    }
}

impl Pair for Sentinels {
    fn redis(&self) -> RedisOptions {
        let options = RedisOptions::sentinel(Sentinels::NAME, self.sentinels());
        RedisOptions { health_check: ms(200), ..options }
    }

    fn primary(&self, _: &Key) -> u16 {
        self.master_port()
    }

    fn both(&self, port: u16) -> (&RedisServer, &RedisServer) {
        (self.node(port), self.partner(port))
    }

    fn expect_failover(&self, _: bool) {}

    fn repair(&self, dead: u16) {
        self.restart(dead);
    }
}

fn stored(key: &Key) -> String {
    format!("sg:{{{key}}}")
}

/// Reads the instants of a key from a server with plain commands.
fn instants(server: &RedisServer, key: &Key) -> BTreeSet<u64> {
    let mut connection = server.client();
    // A cluster replica needs READONLY; other servers answer with an error.
    let _ = redis::cmd("READONLY").exec(&mut connection);
    let mut read = redis::cmd("ZRANGEBYSCORE");
    read.arg(stored(key)).arg("(0").arg("+inf").arg("WITHSCORES");
    let members: Vec<(String, f64)> = read.query(&mut connection).unwrap();
    members.into_iter().map(|(_, score)| score as u64).collect()
}

/// Stops replication: from now on the replica gets no write of the primary.
fn cut_off(pair: &impl Pair, primary: u16) {
    pair.expect_failover(true);
    let (primary, replica) = pair.both(primary);
    replica.signal("-STOP");
    primary.run("CLIENT KILL TYPE replica");
}

/// Waits until the replica is the primary. Returns the instants of `key` that the replica had before.
fn promote(pair: &impl Pair, primary: u16, key: &Key) -> BTreeSet<u64> {
    let (_, replica) = pair.both(primary);
    replica.signal("-CONT");
    let had = instants(replica, key);
    // Sentinels close connections when they promote.
    let role = || {
        let mut connection = redis::Client::open(replica.url()).unwrap().get_connection()?;
        redis::cmd("INFO").arg("replication").query::<String>(&mut connection)
    };
    eventually("the replica is promoted", || role().is_ok_and(|role| role.contains("role:master")));
    had
}

/// Result of a run.
struct Run {
    calls: Vec<CallRecord>,
    outages: Vec<Outage>,
    /// Key on the primary that dies, and the permits of it that were lost.
    key: u64,
    lost: u64,
    /// The slowest return of a node to the store, counted from the promotion.
    slowest: Duration,
    excess: u64,
}

impl Run {
    fn over(&self) -> u64 {
        worst(&self.calls, self.key).saturating_sub(quota(self.key).limit())
    }

    fn print(&self, what: &str) {
        let count = |source| self.calls.iter().filter(|call| call.source == source).count();
        eprintln!(
            "{what}: {} answers, {} by the store, {} local, {} denied without it; {} permits lost, over by {} of {}; \
             slowest return after the promotion {:?}; excess {}",
            self.calls.len(),
            count(Source::Store),
            count(Source::Local),
            count(Source::FailClosed),
            self.lost,
            self.over(),
            quota(self.key).limit(),
            self.slowest,
            self.excess,
        );
    }
}

const NODES: usize = 2;

/// Two nodes decide on `keys` while the primary of the last key dies `times` times.
async fn fail_over(pair: impl Pair, keys: &'static [u64], options: &FailoverOptions, times: u64) -> Run {
    let (pair, key) = (Arc::new(pair), *keys.last().unwrap());
    let deployment = Deployment::start_with_keys(keys, NODES, 3, ms(8), &pair.redis(), options).await;
    let watchdog = Arc::clone(&deployment.watchdog);
    let on_pair = |what: Box<dyn FnOnce(&_) + Send>| {
        let pair = Arc::clone(&pair);
        blocking(move || what(&*pair))
    };
    let admitted = |permits: usize| {
        deployment.until("every node is admitted by the primary", move |calls| {
            let by_store =
                |call: &&&CallRecord| call.key == key && call.allowed && call.source == Source::Store;
            calls.iter().filter(by_store).count() >= permits
        })
    };
    let (mut outages, mut replicated) = (Vec::new(), Vec::new());
    for time in 0..times {
        admitted(30).await;
        let there = Arc::clone(&pair);
        let primary = blocking(move || there.primary(&name(key))).await;
        on_pair(Box::new(move |pair| cut_off(pair, primary))).await;
        // These admissions are lost.
        admitted(30).await;
        on_pair(Box::new(move |pair| pair.both(primary).0.kill())).await;
        let gone = deployment.now();
        deployment.until_given_up(key).await;
        let until = deployment.now();
        let there = Arc::clone(&pair);
        replicated.push(blocking(move || promote(&*there, primary, &name(key))).await);
        outages.push(Outage { gone, until, back: deployment.now(), given_up: true });
        deployment.until_by_store(key).await;
        // Lost permits would be admitted again before the store denies.
        deployment.until_full(&[key]).await;
        on_pair(Box::new(|pair| pair.expect_failover(false))).await;
        if time + 1 < times {
            on_pair(Box::new(move |pair| pair.repair(primary))).await;
        }
    }
    let servers: Vec<_> = deployment.nodes.iter().flat_map(|failover| failover.stats().servers).collect();
    let calls = deployment.stop().await;
    let (mut lost, mut slowest) = (0, Duration::ZERO);
    for (Outage { back: promoted, .. }, had) in outages.iter().zip(&replicated) {
        let window = quota(key).window().get();
        let counts = |call: &&CallRecord| {
            let by_store = call.key == key && call.allowed && call.source == Source::Store;
            by_store && call.answered < *promoted && call.at + window > *promoted
        };
        let died = calls.iter().filter(counts).filter(|call| !had.contains(&call.at));
        lost += died.map(|call| call.cost).sum::<u64>();
        for first in first_by_store(&calls, NODES, *promoted, Some(key)) {
            slowest = slowest.max(watchdog.between(*promoted, first));
        }
    }
    Run { calls, outages, key, lost, slowest, excess: servers.iter().map(|server| server.excess).sum() }
}

async fn blocking<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(what).await.unwrap()
}

fn options() -> FailoverOptions {
    FailoverOptions { heartbeat: ms(500), write_back: ms(20_000), ..FailoverOptions::default() }
}

/// The key whose writes were lost is exact: all nodes lost its primary. The keys with short windows are on all servers.
/// A cluster that is down decides none of them, but nodes notice it at different moments, so each node may add its
/// share.
fn assert_exact(what: &str, run: &Run) {
    assert!(run.lost > 0);
    let of = |outages| fault_bounds::Run {
        calls: &run.calls,
        nodes: NODES,
        deadline: options().deadline,
        in_flight: 3,
        outages,
    };
    of(&run.outages).assert_bounds(what, &[LONG]);
    of(&[]).assert_bounds(what, &[0, 1, 2]);
    assert!(run.slowest <= ms(2_000), "{:?}", run.slowest);
}

#[tokio::test]
async fn cluster_replica_without_last_writes_takes_over() {
    let cluster = blocking(Cluster::start).await;
    let times = number("FAILOVER_PROMOTIONS", 1);
    let run = fail_over(cluster, &[0, 1, 2, LONG, LONG], &options(), times).await;
    run.print("cluster, with the journal");
    assert_exact("cluster", &run);
}

#[tokio::test]
async fn sentinel_replica_without_last_writes_takes_over() {
    let sentinels = blocking(Sentinels::start).await;
    let run = fail_over(sentinels, &[0, 1, 2, LONG, LONG], &options(), 1).await;
    run.print("sentinels, with the journal");
    assert_exact("sentinels", &run);
}

/// Shows the purpose of the journal. Nothing is allowed without the store here, so every excess is a lost write.
#[tokio::test]
async fn without_journal_lost_writes_are_admitted_again() {
    let cluster = blocking(Cluster::start).await;
    let options = FailoverOptions { journal: 0, ..options() };
    let run = fail_over(cluster, &[LONG_CLOSED], &options, 1).await;
    run.print("cluster, without the journal");
    assert!(run.lost > 0 && run.over() > 0);
    assert!(run.over() <= run.lost);
}
