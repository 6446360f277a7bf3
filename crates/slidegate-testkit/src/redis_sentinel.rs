//! Primary, its replica, and three sentinels with a quorum of two, killed on drop.

use std::collections::HashMap;

use crate::redis_server::{Flavour, RedisServer, eventually, lasting_port};

/// Two nodes and three sentinels, killed on drop.
pub struct Sentinels {
    nodes: [RedisServer; 2],
    sentinels: [RedisServer; 3],
}

impl Sentinels {
    /// Name under which the sentinels monitor the primary.
    pub const NAME: &str = "slidegate";

    /// Starts all servers. Returns when the sentinels know the replica and each other.
    pub fn start() -> Sentinels {
        let start = |arguments: &[&str]| RedisServer::at_with(Flavour::Redis7, lasting_port(), arguments);
        // Replicas synchronize at once, not after five seconds.
        let primary = start(&["--repl-diskless-sync-delay", "0"]);
        let port = primary.port.to_string();
        let replica = start(&["--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", &port]);
        eventually("the replica follows", || info(&replica).contains("master_link_status:up"));
        let name = Self::NAME;
        let sentinels = [(); 3].map(|()| {
            let sentinel = start(&["--sentinel"]);
            // By default a sentinel polls its nodes every 10 s, and waits 4 times 2 s before it corrects a role.
            sentinel.run("SENTINEL DEBUG info-period 500 publish-period 250");
            // A sentinel that was not scheduled for 2 s, or waited as long for the fsync of its file, does nothing for
            // 30 s (TILT). It also keeps a link to a node that restarted for up to 15 s.
            sentinel.run("SENTINEL DEBUG tilt-trigger 60000 tilt-period 1000 min-link-reconnect-period 500");
            sentinel.run(&format!("SENTINEL MONITOR {name} 127.0.0.1 {port} 2"));
            // A failover that does not succeed in time is tried again after twice the timeout.
            sentinel.run(&format!("SENTINEL SET {name} down-after-milliseconds 1000 failover-timeout 5000"));
            sentinel
        });
        let knows_all = |sentinel: &RedisServer| {
            let master: HashMap<String, String> =
                redis::from_redis_value(sentinel.run(&format!("SENTINEL MASTER {name}"))).unwrap();
            master["num-slaves"] == "1" && master["num-other-sentinels"] == "2" && master["flags"] == "master"
        };
        eventually("the sentinels know all nodes", || sentinels.iter().all(knows_all));
        Sentinels { nodes: [primary, replica], sentinels }
    }

    /// Returns the URLs of the sentinels, which clients call first.
    pub fn sentinels(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::url).collect()
    }

    /// Returns the URLs of the primary and the replica. Their order does not show their role.
    pub fn nodes(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// Returns the node with this port.
    pub fn node(&self, port: u16) -> &RedisServer {
        self.nodes.iter().find(|node| node.port == port).expect("a port of these nodes")
    }

    /// Returns the other node.
    pub fn partner(&self, port: u16) -> &RedisServer {
        self.nodes.iter().find(|node| node.port != port).expect("two nodes")
    }

    /// Waits until the living sentinels agree on the primary, and returns its port.
    pub fn master_port(&self) -> u16 {
        self.agreed(|_| true)
    }

    /// Kills the primary with SIGKILL and returns its port.
    pub fn kill_master(&self) -> u16 {
        let port = self.master_port();
        self.node(port).kill();
        port
    }

    /// Kills sentinel `i`.
    pub fn kill_sentinel(&self, i: usize) {
        self.sentinels[i].kill();
    }

    /// Waits until the sentinels agree on another primary than `old` which accepts writes. Returns its port.
    pub fn wait_for_failover(&self, old: u16) -> u16 {
        let new = self.agreed(|port| port != old);
        eventually("the replica is a primary", || info(self.node(new)).contains("role:master"));
        new
    }

    /// Starts a node again, without keys. The sentinels make it a replica if another was elected.
    pub fn restart(&self, port: u16) {
        self.node(port).restart();
    }

    fn agreed(&self, accepts: impl Fn(u16) -> bool) -> u16 {
        let mut agreed = None;
        eventually("the sentinels agree", || {
            let living = self.sentinels.iter().filter(|sentinel| !sentinel.is_killed());
            let mut ports = living.map(|sentinel| {
                let answer = sentinel.try_run(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {}", Self::NAME));
                let (_, port): (String, u16) = redis::from_redis_value(answer.ok()?).unwrap();
                Some(port)
            });
            agreed = ports.next().flatten();
            agreed = agreed.filter(|first| ports.all(|port| port == Some(*first)) && accepts(*first));
            agreed.is_some()
        });
        agreed.unwrap()
    }
}

/// Returns INFO replication, or an empty text if the connection was closed, as sentinels do when they change a role.
fn info(node: &RedisServer) -> String {
    node.try_run("INFO replication").map(|info| redis::from_redis_value(info).unwrap()).unwrap_or_default()
}

#[test]
fn sentinels_promote_the_replica_and_the_old_primary_follows() {
    let sentinels = Sentinels::start();
    let first = sentinels.master_port();
    sentinels.node(first).run("SET a 5");
    sentinels.node(first).run("WAIT 1 1000");
    assert_eq!(sentinels.kill_master(), first);
    let second = sentinels.wait_for_failover(first);
    assert_ne!(first, second);
    assert_eq!(sentinels.node(second).run("GET a"), redis::Value::BulkString(b"5".into()));
    sentinels.restart(first);
    eventually("the old primary follows the new one", || {
        info(sentinels.node(first)).contains(&format!("master_port:{second}"))
    });
}
