//! Independent servers: each key has one, by rendezvous hashing.
//!
//! The weight of a server for a key is a hash of both, and the server with the highest weight has the key. So an
//! added server takes its share from all others, a removed server leaves its share to all others, and no other key
//! moves. The hash is the same in every process and every version: it is computed from digests, byte by byte.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use hrw_hash::{HrwNode, HrwNodes};
use sha2::{Digest, Sha256};

use super::{Server, ServerId, ShardId};
use crate::{Error, Key};

pub(super) struct Shards {
    servers: Vec<Arc<Server>>,
    nodes: HrwNodes<Node>,
}

/// Digest of a server's address, and the server's number.
#[derive(PartialEq, Eq)]
struct Node {
    digest: [u8; 8],
    shard: ShardId,
}

impl Hash for Node {
    /// Leaves out the number: the order of the servers in the configuration must not move keys.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.digest);
    }
}

impl HrwNode for Node {}

/// Text that decides which server has a key.
struct Tag<'k>(&'k str);

impl Hash for Tag<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&digest(self.0));
    }
}

fn digest(text: &str) -> [u8; 8] {
    let digest = Sha256::digest(text.as_bytes());
    std::array::from_fn(|i| digest[i])
}

impl Shards {
    pub(super) fn new(servers: Vec<Arc<Server>>) -> Self {
        let nodes = nodes(servers.iter().map(|server| server.connections.address()));
        Shards { servers, nodes }
    }

    pub(super) fn shard_of(&self, key: &Key) -> ShardId {
        shard_in(&self.nodes, key)
    }

    pub(super) fn server(&self, shard: ShardId) -> Result<&Arc<Server>, Error> {
        self.servers.get(usize::from(shard)).ok_or_else(|| Error::invalid("there is no such shard"))
    }

    pub(super) fn servers(&self) -> Vec<ServerId> {
        (0..).map(ServerId).take(self.servers.len()).collect()
    }
}

fn nodes<'a>(addresses: impl Iterator<Item = &'a str>) -> HrwNodes<Node> {
    HrwNodes::new(addresses.zip(0..).map(|(address, shard)| Node { digest: digest(address), shard }))
}

fn shard_in(nodes: &HrwNodes<Node>, key: &Key) -> ShardId {
    let tag = Tag(key.tag().unwrap_or(key.as_str()));
    nodes.sorted(&tag).next().map_or(0, |node| node.shard)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: u32 = 100_000;

    /// Returns the address of each key's server.
    fn servers_of_keys(addresses: &[&'static str]) -> Vec<&'static str> {
        let nodes = nodes(addresses.iter().copied());
        let shard = |n: u32| shard_in(&nodes, &Key::new("r", [("user", n.to_string().as_str())]));
        (0..KEYS).map(|n| addresses[usize::from(shard(n))]).collect()
    }

    #[test]
    fn added_server_takes_only_its_share() {
        let (four, five) = (
            servers_of_keys(&["a:1", "b:1", "c:1", "d:1"]),
            servers_of_keys(&["a:1", "b:1", "c:1", "d:1", "e:1"]),
        );
        let moved = four.iter().zip(&five).filter(|(before, after)| before != after);
        assert!(moved.clone().all(|(_, after)| *after == "e:1"), "keys move only to the new server");
        let fraction = moved.count() as f64 / f64::from(KEYS);
        println!("a fifth server: {:.2} % of {KEYS} keys moved", 100.0 * fraction);
        assert!((0.19..0.21).contains(&fraction), "{fraction}");
        let most = ["a:1", "b:1", "c:1", "d:1"].map(|server| four.iter().filter(|s| **s == server).count());
        assert!(most.iter().all(|n| (24_000..26_000).contains(n)), "{most:?}");
    }

    #[test]
    fn removed_server_moves_only_its_own_keys() {
        let (four, three) =
            (servers_of_keys(&["a:1", "b:1", "c:1", "d:1"]), servers_of_keys(&["d:1", "a:1", "c:1"]));
        let moved = four.iter().zip(&three).filter(|(before, after)| before != after);
        assert!(moved.clone().all(|(before, _)| *before == "b:1"), "only keys of the removed server move");
        let fraction = moved.count() as f64 / f64::from(KEYS);
        println!("one of four servers removed: {:.2} % of {KEYS} keys moved", 100.0 * fraction);
        assert!((0.24..0.26).contains(&fraction), "{fraction}");
    }

    /// Processes of other versions must agree; a change of these numbers moves the keys of every deployment.
    #[test]
    fn key_placement_is_stable() {
        let nodes = nodes(["a:1", "b:1", "c:1", "d:1"].into_iter());
        let shards = (0..16).map(|n: u32| shard_in(&nodes, &Key::new("r", [("n", n.to_string().as_str())])));
        assert_eq!(shards.collect::<Vec<_>>(), [3, 3, 1, 3, 3, 3, 3, 1, 3, 1, 0, 1, 0, 0, 3, 0]);
        let tagged =
            |user: String| shard_in(&nodes, &Key::tagged(("t", "acme"), "r", [("user", user.as_str())]));
        assert!((0..100).all(|n: u32| tagged(n.to_string()) == tagged("x".to_owned())));
    }
}
