//! Who else counts on a server: each process tells it now and then that it is there, and reads who else did.
//!
//! Nobody's clock is trusted: a process is alive as long as the number it counts up goes up.

use std::collections::BTreeMap;

use crate::Micros;

/// Heartbeats that may be missed before a process counts as gone.
const MISSED: u64 = 3;

/// What a process that is gone has said is removed after this long.
const FORGOTTEN: Micros = Micros::from_secs(120);

/// What a process says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saying {
    /// It decides by the server.
    Direct,
    /// It has written everything back.
    Joined,
    /// It decides by itself.
    Away,
    /// It decides nothing any more.
    Left,
}

#[derive(Clone, Debug)]
pub(super) struct Peers {
    me: String,
    counter: u64,
    others: BTreeMap<String, Peer>,
    /// How many nodes there are, this one included, and which of them this is; as was last known.
    share: (u64, u64),
}

#[derive(Clone, Debug)]
struct Peer {
    said: String,
    /// When, by our clock, it last said something new.
    heard: Micros,
    /// Whether it was there when this node last knew.
    alive: bool,
}

impl Peer {
    fn has_left(&self) -> bool {
        self.said.split(' ').nth(1) == Some("left")
    }
}

/// A name for this process among the others: six letters and digits.
pub(super) fn name(chance: u64) -> String {
    let digit =
        |i: u32| char::from(b"0123456789abcdefghijklmnopqrstuvwxyz"[(chance / 36u64.pow(i) % 36) as usize]);
    (0..6).map(digit).collect()
}

impl Peers {
    /// One of `nodes`, as far as is known.
    pub(super) fn new(me: &str, nodes: u32) -> Self {
        let nodes = u64::from(nodes.max(1));
        Peers { me: me.to_owned(), counter: 0, others: BTreeMap::new(), share: (nodes, nodes - 1) }
    }

    /// What to say next on a server that runs as `run`.
    pub(super) fn say(&mut self, what: Saying, run: &str) -> String {
        self.counter += 1;
        let what = match what {
            Saying::Direct => "direct",
            Saying::Joined => "joined",
            Saying::Away => "away",
            Saying::Left => "left",
        };
        format!("{} {what} {run}", self.counter)
    }

    /// Takes what everybody said. Until this node is `settled` nobody is given up and the shares stay: the others
    /// may still decide by them.
    pub(super) fn heard(
        &mut self,
        all: Vec<(String, String)>,
        now: Micros,
        heartbeat: Micros,
        settled: bool,
    ) {
        for (name, said) in all.into_iter().filter(|(name, _)| *name != self.me) {
            let new = self.others.get(&name).is_none_or(|peer| peer.said != said);
            if new {
                self.others.insert(name, Peer { said, heard: now, alive: true });
            }
        }
        if !settled {
            return;
        }
        let silence = Micros::new(heartbeat.get() * MISSED + heartbeat.get() / 2);
        for peer in self.others.values_mut() {
            peer.alive = now.since(peer.heard) <= silence && !peer.has_left();
        }
        let alive = || self.others.iter().filter(|(_, peer)| peer.alive);
        let before = alive().filter(|(name, _)| **name < self.me).count();
        self.share = (alive().count() as u64 + 1, before as u64);
    }

    /// Those who have been gone for so long that what they said may be removed.
    pub(super) fn forgotten(&mut self, now: Micros) -> Vec<String> {
        let (gone, others) = std::mem::take(&mut self.others)
            .into_iter()
            .partition(|(_, peer)| !peer.alive && now.since(peer.heard) > FORGOTTEN);
        self.others = others;
        let gone: BTreeMap<String, Peer> = gone;
        gone.into_keys().collect()
    }

    /// How many nodes share what a server counts, and which of them this is.
    pub(super) fn share(&self) -> (u64, u64) {
        self.share
    }

    /// Whether everybody who was there has written back to the server that runs as `run`, and said so after `since`,
    /// when this node first read again what was said: that may have been said long before.
    pub(super) fn are_back(&self, run: &str, since: Micros) -> bool {
        self.others.values().filter(|peer| peer.alive).all(|peer| {
            let mut words = peer.said.split(' ').skip(1);
            let (what, there) = (words.next(), words.next());
            let written = there == Some(run) && matches!(what, Some("direct" | "joined"));
            peer.has_left() || peer.heard > since && written
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: Micros = Micros::from_secs(1);

    fn said(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(name, said)| ((*name).to_owned(), (*said).to_owned())).collect()
    }

    #[test]
    fn who_counts_up_is_there() {
        let mut peers = Peers::new("m", 1);
        assert_eq!(peers.share(), (1, 0));
        let at = Micros::from_secs;
        peers.heard(
            said(&[("a", "1 direct r"), ("m", "1 direct r"), ("z", "7 direct r")]),
            at(100),
            BEAT,
            true,
        );
        assert_eq!(peers.share(), (3, 1));
        peers.heard(said(&[("a", "2 direct r"), ("z", "7 direct r")]), at(103), BEAT, true);
        assert_eq!(peers.share(), (3, 1));
        peers.heard(said(&[("a", "3 direct r"), ("z", "7 direct r")]), at(104), BEAT, true);
        assert_eq!(peers.share(), (2, 1), "z has said nothing new for more than three heartbeats");
        peers.heard(said(&[("a", "4 left r")]), at(105), BEAT, false);
        assert_eq!(peers.share(), (2, 1), "shares stay while they are decided by");
        assert!(peers.are_back("q", at(106)), "nobody waits for one that left");
        peers.heard(said(&[("a", "4 left r")]), at(105), BEAT, true);
        assert_eq!(peers.share(), (1, 0));
    }

    #[test]
    fn back_is_who_says_so_of_this_run_and_after() {
        let mut peers = Peers::new("m", 1);
        let at = Micros::from_secs;
        peers.heard(said(&[("a", "1 direct r"), ("z", "7 direct r")]), at(100), BEAT, true);
        assert!(!peers.are_back("r", at(101)), "said before");
        peers.heard(said(&[("a", "2 joined q"), ("z", "8 direct q")]), at(102), BEAT, true);
        assert!(peers.are_back("q", at(101)));
        assert!(!peers.are_back("r", at(101)), "of another run");
        peers.heard(said(&[("a", "3 away q")]), at(103), BEAT, true);
        assert!(!peers.are_back("q", at(101)), "not yet written");
    }
}
