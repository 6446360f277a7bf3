//! Real Redis cluster for a test: three primaries with a replica each, on free ports, killed on drop.
//!
//! Shard `i` is the nodes `i` and `i + 3`; either may be its primary. The helpers do not call a node that was killed or
//! paused. A method that changes the cluster returns when every living node knows of the change, except `kill_primary`,
//! `pause`, `resume` and `restart`: after those, a test waits for the state that it needs.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};

use crate::redis_server::{Flavour, RedisServer, eventually, lasting_port};

const SHARDS: usize = 3;
const SLOTS: [&str; SHARDS] = ["0 5460", "5461 10922", "10923 16383"];

/// Six cluster nodes, killed on drop.
pub struct Cluster {
    nodes: Vec<RedisServer>,
    paused: Mutex<BTreeSet<u16>>,
}

/// Step of a slot migration. Between `Opened` and `Closed`, a key that is no longer at its old node must be requested
/// from the new node (`ASK`), and a command for keys on both nodes fails (`TRYAGAIN`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Both nodes know of the migration.
    Opened,
    /// Number of keys that have moved so far.
    Moved(usize),
    /// Every node knows the new owner.
    Closed,
}

impl Cluster {
    /// Starts the nodes. Takes some seconds: nodes have to meet, and primaries wait before they accept writes.
    pub fn start() -> Cluster {
        let nodes: Vec<RedisServer> = (0..2 * SHARDS).map(|_| node()).collect();
        for (i, node) in nodes.iter().enumerate() {
            // Nodes get different epochs from the start, because they resolve collisions slowly.
            node.run(&format!("CLUSTER SET-CONFIG-EPOCH {}", i + 1));
            if let Some(slots) = SLOTS.get(i) {
                node.run(&format!("CLUSTER ADDSLOTSRANGE {slots}"));
            }
        }
        let cluster = Cluster { nodes, paused: Mutex::default() };
        let has_met = |node: &RedisServer| {
            let view = view(node);
            view.len() == 2 * SHARDS && view.iter().all(|entry| entry.connected && !entry.has("handshake"))
        };
        let mut looks = 0;
        eventually("all nodes have met", || {
            // On a busy machine a handshake may take longer than a node waits for it, so the loop repeats it.
            if looks % 40 == 0 {
                cluster.introduce();
            }
            looks += 1;
            cluster.nodes.iter().all(has_met)
        });
        let (primaries, replicas) = cluster.nodes.split_at(SHARDS);
        for (primary, replica) in primaries.iter().zip(replicas) {
            replica.run(&format!("CLUSTER REPLICATE {}", id(primary)));
        }
        cluster.wait("all nodes know the replicas", |view| {
            view.iter().filter(|entry| entry.has("slave")).count() == SHARDS
        });
        cluster.wait_until_ok();
        cluster.expect_no_failover();
        cluster
    }

    /// Makes each node meet every other node.
    fn introduce(&self) {
        for (i, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[i + 1..] {
                node.run(&format!("CLUSTER MEET 127.0.0.1 {}", other.port));
            }
        }
    }

    /// Sets a long node timeout: a node that is silent for a few seconds on a busy machine is not replaced.
    pub fn expect_no_failover(&self) {
        self.set_timeout(15_000);
    }

    /// Sets a node timeout of two seconds. Call it before a node is killed or paused.
    pub fn expect_failover(&self) {
        self.set_timeout(2_000);
    }

    fn set_timeout(&self, millis: u64) {
        for node in self.living() {
            node.run(&format!("CONFIG SET cluster-node-timeout {millis}"));
        }
    }

    /// Returns the URLs of all nodes, also of nodes that are down.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// Returns the port of the primary of each shard, as the living nodes know it. A killed primary stays in the list until
    /// a replica is elected.
    pub fn primaries(&self) -> [u16; SHARDS] {
        primaries(&self.view(), &self.nodes).map(|port| port.expect("a primary of each shard"))
    }

    /// Returns the port of the node that owns the slot.
    pub fn node_of_slot(&self, slot: u16) -> u16 {
        owner(&self.view(), slot).expect("every slot has an owner")
    }

    /// Returns the slot of a key.
    pub fn slot_of(&self, key: &str) -> u16 {
        let slot = redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query(&mut self.living()[0].client());
        slot.unwrap()
    }

    /// Returns the node with this port.
    pub fn node(&self, port: u16) -> &RedisServer {
        self.nodes.iter().find(|node| node.port == port).expect("a port of this cluster")
    }

    /// Returns the other node of the same shard.
    pub fn partner(&self, port: u16) -> &RedisServer {
        let i = self.nodes.iter().position(|node| node.port == port).expect("a port of this cluster");
        &self.nodes[(i + SHARDS) % self.nodes.len()]
    }

    /// Moves a slot with its keys to another primary, as an operator would.
    pub fn migrate_slot(&self, slot: u16, to: u16) {
        self.migrate_slot_by(slot, to, 100, |_| {});
    }

    /// Moves a slot like `migrate_slot`, `keys` at a time, and calls `after` after each step.
    pub fn migrate_slot_by(&self, slot: u16, to: u16, keys: usize, mut after: impl FnMut(Step)) {
        let (source, target) = (self.node(self.node_of_slot(slot)), self.node(to));
        assert_ne!(source.port, to, "the node has slot {slot} already");
        let (source_id, target_id) = (id(source), id(target));
        target.run(&format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}"));
        source.run(&format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}"));
        after(Step::Opened);
        let mut connection = source.client();
        let mut moved = 0;
        loop {
            let mut list = redis::cmd("CLUSTER");
            list.arg("GETKEYSINSLOT").arg(slot).arg(keys);
            let batch: Vec<Vec<u8>> = list.query(&mut connection).unwrap();
            if batch.is_empty() {
                break;
            }
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(to).arg("").arg(0).arg(5_000).arg("KEYS").arg(&batch);
            // The reply is NOKEY if the keys expired meanwhile.
            migrate.query::<String>(&mut connection).unwrap();
            moved += batch.len();
            after(Step::Moved(moved));
        }
        // The new owner gets the slot first. Until the old owner knows of the change, it redirects clients to the new
        // one.
        let rest = self.primaries().map(|port| self.node(port));
        let others = rest.into_iter().filter(|node| node.port != to && node.port != source.port);
        for node in [target, source].into_iter().chain(others.filter(|node| self.is_living(node))) {
            node.run(&format!("CLUSTER SETSLOT {slot} NODE {target_id}"));
        }
        self.wait("all nodes know the new owner", |view| owner(view, slot) == Some(to));
        after(Step::Closed);
    }

    /// Kills the primary of shard `i` with SIGKILL and returns its port.
    pub fn kill_primary(&self, i: usize) -> u16 {
        let port = self.primaries()[i];
        self.expect_failover();
        self.node(port).kill();
        self.paused().remove(&port);
        port
    }

    /// Waits until shard `i` has another primary than `old` and all living nodes serve. Returns the port of the new primary.
    pub fn wait_for_failover(&self, i: usize, old: u16) -> u16 {
        self.wait("a replica is elected", |view| {
            primaries(view, &self.nodes)[i].is_some_and(|port| port != old)
        });
        self.wait_until_ok();
        self.expect_no_failover();
        self.primaries()[i]
    }

    /// Starts a node again as the same member, without keys.
    pub fn restart(&self, port: u16) {
        self.node(port).restart();
        self.paused().remove(&port);
    }

    /// Waits until every living node serves and every living replica follows its primary.
    pub fn wait_until_ok(&self) {
        let says = |node: &RedisServer, section: &str, words: &str| text(node, section).contains(words);
        let ok = |node: &&RedisServer| {
            says(node, "CLUSTER INFO", "cluster_state:ok")
                && (says(node, "INFO replication", "role:master")
                    || says(node, "INFO replication", "master_link_status:up"))
        };
        eventually("all serve", || self.living().iter().all(ok));
    }

    /// Sends SIGSTOP: the node keeps its connections and answers nothing.
    pub fn pause(&self, port: u16) {
        self.expect_failover();
        self.paused().insert(port);
        self.node(port).signal("-STOP");
    }

    /// Sends SIGCONT to a paused node.
    pub fn resume(&self, port: u16) {
        self.node(port).signal("-CONT");
        self.paused().remove(&port);
    }

    fn paused(&self) -> std::sync::MutexGuard<'_, BTreeSet<u16>> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_living(&self, node: &RedisServer) -> bool {
        !node.is_killed() && !self.paused().contains(&node.port)
    }

    fn living(&self) -> Vec<&RedisServer> {
        self.nodes.iter().filter(|node| self.is_living(node)).collect()
    }

    fn view(&self) -> Vec<Entry> {
        view(self.living().first().expect("a living node"))
    }

    /// Waits until the condition holds in the view of every living node.
    fn wait(&self, what: &str, holds: impl Fn(&[Entry]) -> bool) {
        eventually(what, || self.living().iter().all(|node| holds(&view(node))));
    }
}

/// One node in the view of a node.
struct Entry {
    port: u16,
    flags: String,
    epoch: u64,
    connected: bool,
    slots: Vec<RangeInclusive<u16>>,
}

impl Entry {
    fn has(&self, flag: &str) -> bool {
        self.flags.split(',').any(|word| word == flag)
    }

    /// Parses a line of CLUSTER NODES: id, ip:port@bus, flags, primary, ping, pong, epoch, link, slots.
    fn read(line: &str) -> Entry {
        let words: Vec<&str> = line.split(' ').collect();
        let port = words[1].split(['@', ',']).next().and_then(|address| address.rsplit(':').next());
        // A migrating slot is in brackets, and still belongs to its owner.
        let slots = words[8..].iter().filter(|word| !word.starts_with('['));
        let slots = slots.map(|word| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            first.parse().unwrap()..=last.parse().unwrap()
        });
        Entry {
            port: port.unwrap().parse().unwrap(),
            flags: words[2].to_owned(),
            epoch: words[6].parse().unwrap(),
            connected: words[7] == "connected",
            slots: slots.collect(),
        }
    }
}

fn view(node: &RedisServer) -> Vec<Entry> {
    text(node, "CLUSTER NODES").lines().map(Entry::read).collect()
}

fn owner(view: &[Entry], slot: u16) -> Option<u16> {
    let has = |entry: &&Entry| entry.slots.iter().any(|range| range.contains(&slot));
    view.iter().find(has).map(|entry| entry.port)
}

/// Returns the primary of each shard. If two nodes claim the role, the one that was elected last counts.
fn primaries(view: &[Entry], nodes: &[RedisServer]) -> [Option<u16>; SHARDS] {
    std::array::from_fn(|i| {
        let of_shard = |entry: &&Entry| [nodes[i].port, nodes[i + SHARDS].port].contains(&entry.port);
        let candidates = view.iter().filter(of_shard).filter(|entry| entry.has("master"));
        candidates.max_by_key(|entry| entry.epoch).map(|entry| entry.port)
    })
}

fn id(node: &RedisServer) -> String {
    text(node, "CLUSTER MYID")
}

fn text(node: &RedisServer, command: &str) -> String {
    redis::from_redis_value(node.run(command)).unwrap()
}

fn node() -> RedisServer {
    let arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
    let further = ["--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no"];
    // Replicas synchronize at once, not after five seconds.
    let sync = ["--repl-diskless-sync-delay", "0"];
    RedisServer::at_with(Flavour::Redis7, lasting_port(), &[&arguments[..], &further, &sync].concat())
}

#[test]
fn slot_moves_with_its_keys() {
    let cluster = Cluster::start();
    let slot = cluster.slot_of("{tag}");
    let (source, target) = {
        let from = cluster.node_of_slot(slot);
        (from, cluster.primaries().into_iter().find(|port| *port != from).unwrap())
    };
    let mut old = cluster.node(source).client();
    let mut new = cluster.node(target).client();
    for n in 0..1_000 {
        redis::cmd("SET").arg(format!("{{tag}}{n}")).arg(n).exec(&mut old).unwrap();
    }
    let code = |connection: &mut redis::Connection, command: &str| {
        let mut words = command.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
        command.exec(connection).err().and_then(|error| error.code().map(str::to_owned)).unwrap_or_default()
    };
    let mut steps = Vec::new();
    cluster.migrate_slot_by(slot, target, 300, |step| {
        if step == Step::Moved(300) {
            let moved: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut new).unwrap();
            let stayed: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut old).unwrap();
            assert_eq!((moved.len(), stayed.len()), (300, 700));
            assert_eq!(code(&mut old, &format!("GET {}", stayed[0])), "");
            assert_eq!(code(&mut old, &format!("GET {}", moved[0])), "ASK");
            assert_eq!(code(&mut old, &format!("MGET {} {}", moved[0], stayed[0])), "TRYAGAIN");
            assert_eq!(code(&mut new, &format!("GET {}", moved[0])), "MOVED");
        }
        steps.push(step);
    });
    let moves = [300, 600, 900, 1_000].map(Step::Moved);
    assert_eq!(steps, [&[Step::Opened], &moves[..], &[Step::Closed]].concat());
    assert_eq!(cluster.node_of_slot(slot), target);
    let sum: u64 = (0..1_000)
        .map(|n| redis::cmd("GET").arg(format!("{{tag}}{n}")).query::<u64>(&mut new).unwrap())
        .sum();
    assert_eq!(sum, 999 * 1_000 / 2);
    assert_eq!(code(&mut old, "GET {tag}0"), "MOVED");
    cluster.migrate_slot(slot, source);
    assert_eq!(code(&mut old, "GET {tag}0"), "");
}

#[test]
fn replica_takes_over_and_old_primary_follows() {
    let cluster = Cluster::start();
    let before = cluster.primaries();
    let slot = cluster.slot_of("a");
    let shard = before.iter().position(|port| *port == cluster.node_of_slot(slot)).unwrap();
    cluster.node(before[shard]).run("SET a 5");
    cluster.node(before[shard]).run("WAIT 1 1000");
    let old = cluster.kill_primary(shard);
    assert_eq!(old, before[shard]);
    let new = cluster.wait_for_failover(shard, old);
    assert_eq!(cluster.node_of_slot(slot), new);
    assert_eq!(cluster.node(new).run("GET a"), redis::Value::BulkString(b"5".into()));
    cluster.restart(old);
    cluster.wait("the old primary follows", |view| {
        view.iter().any(|entry| entry.port == old && entry.has("slave") && !entry.has("fail"))
    });
    cluster.wait_until_ok();
    // The paused primary does not answer, so the roles change back.
    cluster.pause(new);
    assert_eq!(cluster.wait_for_failover(shard, new), old);
    cluster.resume(new);
    cluster.wait("all agree", |view| primaries(view, &cluster.nodes) == before.map(Some));
    assert_eq!(cluster.node(old).run("GET a"), redis::Value::BulkString(b"5".into()));
}
