//! Redis Cluster: the slot map, and calls that follow redirects.
//!
//! The slot map is read from any node when it is first needed, when a redirect or an unreachable node suggests that it
//! is wrong, and periodically. A call follows MOVED and ASK, and is repeated after TRYAGAIN, CLUSTERDOWN and failed
//! attempts to connect. In all these cases no node has executed the call. A call that was sent and not answered is
//! never sent again: it could charge twice.

mod redirects;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::{ConnectionAddr, ConnectionInfo, Value};

pub(super) use self::redirects::RedirectLoop;
use super::{Call, Purpose, Server, ServerId, ShardId};
use super::{Target, client, info};
use crate::store::redis::client::info_at;
use crate::store::redis::layout::{KeyPart, Names};
use crate::store::redis::{RedisOptions, bad_reply, convert};
use crate::{Clock, Error, Fault, Key, Micros, SystemClock};

const SLOTS: u16 = 16_384;

/// Owner of a slot that no node has.
const NO_OWNER: u16 = u16::MAX;

/// Nodes that are asked for the map concurrently; the first reply is taken.
const CONCURRENT_QUERIES: usize = 4;

pub(super) struct Cluster {
    map: ArcSwap<SlotMap>,
    /// Locked while nodes are added and the map is replaced.
    change_lock: Mutex<()>,
    /// Locked while the map is read, so that one caller reads it and the others wait.
    read_lock: tokio::sync::Mutex<()>,
    /// Configured urls.
    seeds: Vec<(String, ConnectionInfo)>,
    options: RedisOptions,
    hold: Arc<AtomicBool>,
    timeout: Micros,
    clock: SystemClock,
}

#[derive(Clone)]
struct SlotMap {
    /// Number of reads and changes; 0 before the first read.
    version: u64,
    read_at: Micros,
    /// Number of the owning node, by slot.
    owners: Box<[u16]>,
    /// The number of a node is its index. Nodes are never removed, so they keep their numbers.
    nodes: Vec<Node>,
}

#[derive(Clone)]
struct Node {
    host: String,
    port: u16,
    server: Arc<Server>,
    role: NodeRole,
}

/// Role of a node in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeRole {
    /// The node has slots.
    Primary,
    /// The node is about to have slots.
    Importing,
    /// The node is a replica, has left, or is not yet known.
    Other,
}

/// Range of slots and its primary, as one node reports them.
struct Range {
    slots: std::ops::RangeInclusive<u16>,
    primary: (String, u16),
}

impl Cluster {
    pub(super) fn new(
        urls: &[String],
        options: &RedisOptions,
        hold: &Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        let clock = SystemClock::new();
        let mut seeds = Vec::new();
        for url in urls {
            let info = info(url, options)?;
            client(info.clone(), options)?;
            seeds.push((super::address_of(url), info));
        }
        let map = SlotMap {
            version: 0,
            read_at: Micros::ZERO,
            owners: vec![NO_OWNER; usize::from(SLOTS)].into(),
            nodes: Vec::new(),
        };
        let cluster = Cluster {
            map: ArcSwap::from_pointee(map),
            change_lock: Mutex::new(()),
            read_lock: tokio::sync::Mutex::new(()),
            seeds,
            options: options.clone(),
            hold: Arc::clone(hold),
            timeout: options.response_timeout.into(),
            clock,
        };
        cluster.change(|map| {
            for (address, info) in &cluster.seeds {
                let (ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }) =
                    info.addr()
                else {
                    return Err(Error::invalid(format!("a cluster has no socket such as {address}")));
                };
                cluster.node(map, host, *port)?;
            }
            Ok(())
        })?;
        Ok(cluster)
    }

    pub(super) async fn call(&self, slot: ShardId, purpose: Purpose, call: Call<'_>) -> Result<Value, Error> {
        check_slots(call, slot)?;
        let mut redirects = self.redirect_loop(slot);
        loop {
            let (server, asking) = redirects.next().await?;
            match server.perform(purpose, call, asking).await {
                Ok(answer) => return Ok(answer),
                Err(error) => redirects.prepare_retry(error, true).await?,
            }
        }
    }

    pub(super) fn redirect_loop(&self, slot: ShardId) -> RedirectLoop<'_> {
        RedirectLoop::new(self, slot)
    }

    /// Reads the map if that was never done.
    pub(super) async fn ensure_loaded(&self) -> Result<(), Error> {
        match self.map.load().version {
            0 => self.read_since(0).await,
            _ => Ok(()),
        }
    }

    /// Reads the map again.
    pub(super) async fn refresh(&self) -> Result<(), Error> {
        self.read_since(self.map.load().version).await
    }

    pub(super) fn primaries(&self) -> Vec<ServerId> {
        let map = self.map.load();
        let nodes = map.nodes.iter().zip(0..);
        nodes.filter(|(node, _)| node.role != NodeRole::Other).map(|(_, i)| ServerId(i)).collect()
    }

    pub(super) fn server(&self, id: ServerId) -> Option<Arc<Server>> {
        self.map.load().nodes.get(usize::from(id.0)).map(|node| Arc::clone(&node.server))
    }

    pub(super) fn owner_of(&self, slot: ShardId) -> ServerId {
        match self.map.load().owners.get(usize::from(slot)) {
            None | Some(&NO_OWNER) => ServerId(0),
            Some(&owner) => ServerId(owner),
        }
    }

    pub(super) fn tag_of(&self, server: ServerId) -> String {
        let map = self.map.load();
        if !map.owners.contains(&server.0) {
            return "0".to_owned();
        }
        let owned = |tag: &String| map.owners[usize::from(slot_of_tag(tag.as_bytes()))] == server.0;
        // A million tags include at least one for every slot.
        (0..1_000_000u32).map(|n| n.to_string()).find(owned).unwrap_or_else(|| "0".to_owned())
    }

    /// Reads the map, unless another caller has done so since `version`.
    async fn read_since(&self, version: u64) -> Result<(), Error> {
        let _read_lock = self.read_lock.lock().await;
        let map = self.map.load_full();
        if map.version != version {
            return Ok(());
        }
        // Nodes with slots come first, starting with a different node each time.
        let mut nodes: Vec<&Node> = map.nodes.iter().collect();
        let turn = version as usize % nodes.len().max(1);
        nodes.rotate_left(turn);
        nodes.sort_by_key(|node| node.role != NodeRole::Primary);
        let mut last = None;
        for some in nodes.chunks(CONCURRENT_QUERIES) {
            let mut queries: FuturesUnordered<_> = some.iter().map(|node| query_map(node)).collect();
            while let Some(answer) = queries.next().await {
                match answer {
                    Ok(ranges) => return self.install(&ranges),
                    Err(error) => last = Some(error),
                }
            }
        }
        Err(last.unwrap_or_else(|| Error::invalid("the cluster has no nodes")))
    }

    /// Replaces the map. A node that has slots now and had none before starts a new epoch, unless an ASK redirect has
    /// already started it.
    fn install(&self, ranges: &[Range]) -> Result<(), Error> {
        let now = self.clock.now();
        self.change(|map| {
            map.owners.fill(NO_OWNER);
            let first = map.version == 0;
            let before: Vec<NodeRole> = map.nodes.iter().map(|node| node.role).collect();
            for Range { slots, primary: (host, port) } in ranges {
                let owner = self.node(map, host, *port)?;
                map.owners[usize::from(*slots.start())..=usize::from(*slots.end())].fill(owner);
                let node = &mut map.nodes[usize::from(owner)];
                if node.role == NodeRole::Other && !first {
                    node.server.epochs.advance();
                }
                node.role = NodeRole::Primary;
            }
            for (i, role) in before.into_iter().enumerate() {
                if role == NodeRole::Primary && !map.owners.contains(&(i as u16)) {
                    map.nodes[i].role = NodeRole::Other;
                }
            }
            map.read_at = now;
            Ok(())
        })
    }

    /// Applies a MOVED redirect: `address` has `slot`. If the address is unknown, reads the whole map.
    async fn apply_moved(&self, slot: ShardId, address: &str, from: &str, version: u64) -> Result<(), Error> {
        let Some((host, port)) = split_address(address, from) else { return self.read_since(version).await };
        let known = |node: &Node| node.host == host && node.port == port && node.role == NodeRole::Primary;
        if !self.map.load().nodes.iter().any(known) {
            return self.read_since(version).await;
        }
        self.change(|map| {
            let owner = self.node(map, &host, port)?;
            map.owners[usize::from(slot)] = owner;
            Ok(())
        })
    }

    /// Returns the node that an ASK redirect named.
    fn importing_server(&self, address: &str, from: &str) -> Result<Arc<Server>, Error> {
        let (host, port) = split_address(address, from).ok_or_else(bad_reply)?;
        let map = self.map.load();
        let counts = |node: &&Node| node.host == host && node.port == port && node.role != NodeRole::Other;
        if let Some(node) = map.nodes.iter().find(counts) {
            return Ok(Arc::clone(&node.server));
        }
        let mut found = None;
        self.change(|map| {
            let node = self.node(map, &host, port)?;
            let node = &mut map.nodes[usize::from(node)];
            if node.role == NodeRole::Other {
                node.server.epochs.advance();
                node.role = NodeRole::Importing;
            }
            found = Some(Arc::clone(&node.server));
            Ok(())
        })?;
        found.ok_or_else(bad_reply)
    }

    /// Returns the number of the node at an address; adds the node if it is new.
    fn node(&self, map: &mut SlotMap, host: &str, port: u16) -> Result<u16, Error> {
        let known = map.nodes.iter().position(|node| node.host == host && node.port == port);
        if let Some(known) = known {
            return Ok(known as u16);
        }
        let address = format!("{host}:{port}");
        let seed = self.seeds.iter().find(|(seed, _)| *seed == address).or(self.seeds.first());
        let (_, template) = seed.ok_or_else(bad_reply)?;
        let client = Box::new(client(info_at(template, host, port), &self.options)?);
        let password = self.options.password.clone();
        let target = Target::Fixed { client, address: address.into(), password };
        let server = Arc::new(Server::new(target, &self.options, &self.hold));
        map.nodes.push(Node { host: host.to_owned(), port, server, role: NodeRole::Other });
        u16::try_from(map.nodes.len() - 1).ok().filter(|n| *n != NO_OWNER).ok_or_else(bad_reply)
    }

    fn change(&self, change: impl FnOnce(&mut SlotMap) -> Result<(), Error>) -> Result<(), Error> {
        let _change_lock = self.change_lock.lock();
        let mut map = SlotMap::clone(&self.map.load());
        change(&mut map)?;
        // Before the first read there are no slots, and the version stays 0.
        if map.read_at > Micros::ZERO {
            map.version += 1;
        }
        self.map.store(Arc::new(map));
        Ok(())
    }
}

async fn query_map(node: &Node) -> Result<Vec<Range>, Error> {
    let mut command = redis::cmd("CLUSTER");
    let call = Call::Command(command.arg("SLOTS"));
    let ranges: Vec<Vec<Value>> = convert(node.server.perform(Purpose::Maintain, call, false).await?)?;
    let ranges: Option<Vec<Range>> = ranges.into_iter().map(|range| read_range(range, &node.host)).collect();
    match ranges {
        Some(ranges) if ranges.is_empty() => Err(Error::store(
            Fault::Cluster,
            format!("the node at {} has no slot map: see CLUSTER INFO", node.server.connections.address()),
        )),
        Some(ranges) => Ok(ranges),
        None => Err(bad_reply()),
    }
}

/// Parses one range: first slot, last slot, primary, replicas; a node is host, port, and more. If a node does not know
/// its own host, the result has the host under which the node was reached.
fn read_range(range: Vec<Value>, queried_host: &str) -> Option<Range> {
    let mut fields = range.into_iter();
    let first: u16 = redis::from_redis_value(fields.next()?).ok()?;
    let last: u16 = redis::from_redis_value(fields.next()?).ok()?;
    let mut primary = redis::from_redis_value::<Vec<Value>>(fields.next()?).ok()?.into_iter();
    let host: Option<String> = redis::from_redis_value(primary.next()?).ok()?;
    let host =
        host.filter(|host| !matches!(host.as_str(), "" | "?")).unwrap_or_else(|| queried_host.to_owned());
    let port: u16 = redis::from_redis_value(primary.next()?).ok()?;
    (first <= last && last < SLOTS).then_some(Range { slots: first..=last, primary: (host, port) })
}

/// Parses `host:port`. If the host is empty, it is replaced by `from`.
fn split_address(address: &str, from: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = if matches!(host, "" | "?") { from } else { host };
    Some((host.to_owned(), port.parse().ok()?))
}

/// Slot of a key: the slot of its tag, or of the whole key if it has no tag.
pub(super) fn slot_of(key: &Key, names: &Names) -> ShardId {
    // A key that this crate did not build may have braces anywhere.
    if key.tag().is_none() && key.as_str().contains(['{', '}']) {
        return slot_of_name(&names.name(key, KeyPart::Main));
    }
    slot_of_tag(key.tag().unwrap_or(key.as_str()).as_bytes())
}

/// Slot of a name, as the cluster computes it: of the text in the first braces, if that is not empty.
fn slot_of_name(name: &str) -> ShardId {
    let inside = name.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    slot_of_tag(inside.filter(|tag| !tag.is_empty()).unwrap_or(name).as_bytes())
}

pub(crate) fn slot_of_tag(tag: &[u8]) -> ShardId {
    static CRC: crc::Crc<u16> = crc::Crc::<u16>::new(&crc::CRC_16_XMODEM);
    CRC.checksum(tag) % SLOTS
}

/// Fails unless all keys of a script are in one slot: the cluster would reject it.
fn check_slots(call: Call<'_>, slot: ShardId) -> Result<(), Error> {
    let Call::Script(_, arguments) = call else { return Ok(()) };
    match arguments.keys.iter().find(|name| slot_of_name(name) != slot) {
        None => Ok(()),
        Some(name) => Err(Error::invalid(format!("{name} is not in slot {slot}, where it was sent"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computes_redis_slots() {
        assert_eq!(slot_of_name("123456789"), 12_739);
        assert_eq!(slot_of_name("sg:{a}:log"), slot_of_name("{a}"));
        assert_eq!(slot_of_name("foo{}{bar}"), slot_of_tag(b"foo{}{bar}"));
        assert_eq!(slot_of_name("foo{{bar}}zap"), slot_of_tag(b"{bar"));
        let names = Names::new("sg");
        for key in [
            Key::new("r", [("user", "{x}")]),
            Key::tagged(("tenant", "{acme}"), "r", [("user", "}{")]),
            Key::tagged(("tenant", "a"), "r", []),
            Key::printed("{}odd"),
            Key::printed("o}d{d}"),
        ] {
            assert_eq!(slot_of(&key, &names), slot_of_name(&names.name(&key, KeyPart::Main)), "{key}");
        }
        let (one, two) = (Key::tagged(("t", "a"), "r", [("u", "1")]), Key::tagged(("t", "a"), "s", []));
        assert_eq!(slot_of(&one, &names), slot_of(&two, &names));
    }

    #[test]
    fn splits_addresses() {
        assert_eq!(split_address("10.0.0.1:7000", "x"), Some(("10.0.0.1".into(), 7_000)));
        assert_eq!(split_address(":7000", "x"), Some(("x".into(), 7_000)));
        assert_eq!(split_address("::1:7000", "x"), Some(("::1".into(), 7_000)));
        assert_eq!(split_address("nowhere", "x"), None);
    }
}
