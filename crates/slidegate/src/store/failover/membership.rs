//! Membership: the nodes that use one server, as they announce themselves there by heartbeats.
//!
//! No node trusts another node's clock. A node is alive as long as the counter in its message increases.

use std::collections::BTreeMap;

use crate::Micros;

/// Heartbeats that a node may miss before it counts as gone.
const MAX_MISSED_HEARTBEATS: u64 = 3;

/// Time after which the message of a node that is gone is removed.
const RETENTION: Micros = Micros::from_secs(120);

/// State that a node announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// The server decides.
    Direct,
    /// The node has written everything back; the server and the node decide together.
    Joined,
    /// The node decides by itself.
    Away,
    /// The node has stopped.
    Left,
}

#[derive(Clone, Debug)]
pub(super) struct Membership {
    own_name: String,
    counter: u64,
    peers: BTreeMap<String, Peer>,
    /// Last known number of nodes, this one included, and the position of this node among them.
    pub(super) share: (u64, u64),
}

#[derive(Clone, Debug)]
struct Peer {
    message: String,
    /// Time, by this node's clock, at which the message last changed.
    changed_at: Micros,
    /// True if the node was alive at the last update of the shares.
    alive: bool,
}

impl Peer {
    fn has_left(&self) -> bool {
        self.message.split(' ').nth(1) == Some("left")
    }
}

/// Returns a node name of six letters and digits.
pub(super) fn node_name(seed: u64) -> String {
    let digit =
        |i: u32| char::from(b"0123456789abcdefghijklmnopqrstuvwxyz"[(seed / 36u64.pow(i) % 36) as usize]);
    (0..6).map(digit).collect()
}

impl Membership {
    /// Assumes `nodes` nodes until the first update.
    pub(super) fn new(own_name: &str, nodes: u32) -> Self {
        let nodes = u64::from(nodes.max(1));
        Membership {
            own_name: own_name.to_owned(),
            counter: 0,
            peers: BTreeMap::new(),
            share: (nodes, nodes - 1),
        }
    }

    /// Returns the next message to announce on the server with this run id.
    pub(super) fn next_message(&mut self, state: Presence, run_id: &str) -> String {
        self.counter += 1;
        let state = match state {
            Presence::Direct => "direct",
            Presence::Joined => "joined",
            Presence::Away => "away",
            Presence::Left => "left",
        };
        format!("{} {state} {run_id}", self.counter)
    }

    /// Records the messages of all nodes. If `update_share` is false, no node counts as gone and the shares do not
    /// change, because the nodes may still decide by their shares.
    pub(super) fn update(
        &mut self,
        all: Vec<(String, String)>,
        now: Micros,
        heartbeat: Micros,
        update_share: bool,
    ) {
        for (name, message) in all.into_iter().filter(|(name, _)| *name != self.own_name) {
            let new = self.peers.get(&name).is_none_or(|peer| peer.message != message);
            if new {
                self.peers.insert(name, Peer { message, changed_at: now, alive: true });
            }
        }
        if !update_share {
            return;
        }
        let silence = Micros::new(heartbeat.get() * MAX_MISSED_HEARTBEATS + heartbeat.get() / 2);
        for peer in self.peers.values_mut() {
            peer.alive = now.since(peer.changed_at) <= silence && !peer.has_left();
        }
        let alive = || self.peers.iter().filter(|(_, peer)| peer.alive);
        let before = alive().filter(|(name, _)| **name < self.own_name).count();
        self.share = (alive().count() as u64 + 1, before as u64);
    }

    /// Removes the nodes that have been gone for longer than [`RETENTION`], and returns their names. Their messages can
    /// then be deleted.
    pub(super) fn remove_expired(&mut self, now: Micros) -> Vec<String> {
        let is_expired = |peer: &Peer| !peer.alive && now.since(peer.changed_at) > RETENTION;
        let expired = self.peers.iter().filter(|(_, peer)| is_expired(peer));
        let names = expired.map(|(name, _)| name.clone()).collect();
        self.peers.retain(|_, peer| !is_expired(peer));
        names
    }

    /// Returns whether all live nodes have written back to the server with this run id. A message counts only if it
    /// changed after `since`, when the server first answered this node again: an older message may date from long
    /// before.
    pub(super) fn all_written_back(&self, run_id: &str, since: Micros) -> bool {
        self.peers.values().filter(|peer| peer.alive).all(|peer| {
            let mut words = peer.message.split(' ').skip(1);
            let (state, run_of_message) = (words.next(), words.next());
            let written = run_of_message == Some(run_id) && matches!(state, Some("direct" | "joined"));
            peer.has_left() || peer.changed_at > since && written
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARTBEAT: Micros = Micros::from_secs(1);

    fn messages(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(name, message)| ((*name).to_owned(), (*message).to_owned())).collect()
    }

    #[test]
    fn node_is_alive_while_its_counter_increases() {
        let mut membership = Membership::new("m", 1);
        assert_eq!(membership.share, (1, 0));
        let at = Micros::from_secs;
        membership.update(
            messages(&[("a", "1 direct r"), ("m", "1 direct r"), ("z", "7 direct r")]),
            at(100),
            HEARTBEAT,
            true,
        );
        assert_eq!(membership.share, (3, 1));
        membership.update(messages(&[("a", "2 direct r"), ("z", "7 direct r")]), at(103), HEARTBEAT, true);
        assert_eq!(membership.share, (3, 1));
        membership.update(messages(&[("a", "3 direct r"), ("z", "7 direct r")]), at(104), HEARTBEAT, true);
        assert_eq!(membership.share, (2, 1), "z has sent nothing new for more than three heartbeats");
        membership.update(messages(&[("a", "4 left r")]), at(105), HEARTBEAT, false);
        assert_eq!(membership.share, (2, 1), "shares stay the same while nodes decide by them");
        assert!(membership.all_written_back("q", at(106)), "no node waits for a node that left");
        membership.update(messages(&[("a", "4 left r")]), at(105), HEARTBEAT, true);
        assert_eq!(membership.share, (1, 0));
    }

    #[test]
    fn node_has_written_back_if_it_says_so_for_this_run_and_later() {
        let mut membership = Membership::new("m", 1);
        let at = Micros::from_secs;
        membership.update(messages(&[("a", "1 direct r"), ("z", "7 direct r")]), at(100), HEARTBEAT, true);
        assert!(!membership.all_written_back("r", at(101)), "said before");
        membership.update(messages(&[("a", "2 joined q"), ("z", "8 direct q")]), at(102), HEARTBEAT, true);
        assert!(membership.all_written_back("q", at(101)));
        assert!(!membership.all_written_back("r", at(101)), "of another run");
        membership.update(messages(&[("a", "3 away q")]), at(103), HEARTBEAT, true);
        assert!(!membership.all_written_back("q", at(101)), "not yet written");
    }
}
