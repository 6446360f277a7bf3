//! Deterministic tests, in virtual time, of how far nodes that decide alone can be over a limit.
//!
//! Each test is a row of the fault table in docs/operations.md. The tests with real servers show that nodes behave like
//! this; here every bound is checked to the permit.

use super::fallback::{Outage, decide, postpone};
use super::journal::Journal;
use crate::algorithm::evaluate::evaluate_one;
use crate::{Check, Checks, Count, Key, Micros, Outcome, Quota, Source, State};

const WINDOW: Micros = Micros::from_millis(1_000);

/// Nodes that share one key, and the server that counts it.
struct World {
    quota: Quota,
    now: Micros,
    server: State,
    nodes: Vec<Node>,
    /// Which node admitted when, and whether it decided alone.
    admitted: Vec<(Micros, usize, Source)>,
    outages: u64,
    chance: u64,
}

struct Node {
    mirror: Journal,
    /// The number of the outage, and since when it lasts. None while the server answers this node.
    alone: Option<(u64, Micros)>,
    /// How many nodes it believes there are, and which of them it is.
    share: (u64, u64),
}

impl World {
    fn new(nodes: usize, limit: u64, seed: u64) -> Self {
        let quota = Quota::new(limit, WINDOW.into()).unwrap();
        let node = |rank| Node { mirror: Journal::new(1_000_000), alone: None, share: (nodes as u64, rank) };
        World {
            quota,
            now: Micros::from_secs(1_000),
            server: State::new(&quota),
            nodes: (0..nodes as u64).map(node).collect(),
            admitted: Vec::new(),
            outages: 0,
            chance: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        }
    }

    /// A number below `n`: xorshift.
    fn below(&mut self, n: u64) -> u64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.chance % n
    }

    fn pass(&mut self, micros: u64) {
        self.now = self.now.plus(Micros::new(micros));
    }

    /// One permit, on one node.
    fn ask(&mut self, node: usize) -> bool {
        let ask = Checks::one(Check::new(Key::new("shared", []), self.quota, 1)).unwrap();
        let now = self.now;
        let Node { mirror, alone, share: (nodes, rank) } = &mut self.nodes[node];
        let reading = match *alone {
            None => {
                let reading = evaluate_one(&ask, now, &mut self.server, None);
                mirror.answered(ask.checks(), &reading, true);
                reading
            }
            Some((number, since)) => {
                let outage = Outage { number, since, now, spread: Micros::ZERO, nodes: *nodes, rank: *rank };
                decide(mirror, &ask, &outage, false)
            }
        };
        let allowed = reading.verdicts[0].outcome == Outcome::Charged;
        if allowed {
            self.admitted.push((reading.verdicts[0].entry.at, node, reading.source));
        }
        allowed
    }

    /// From now on the node decides alone.
    fn cut_off(&mut self, node: usize) {
        self.outages += 1;
        self.nodes[node].alone = Some((self.outages, self.now));
    }

    /// Random asks on random nodes, at random instants, for so long.
    fn run(&mut self, micros: u64) {
        let end = self.now.plus(Micros::new(micros));
        while self.now < end {
            let node = self.below(self.nodes.len() as u64) as usize;
            self.ask(node);
            let gap = self.below(4_000);
            self.pass(gap);
        }
    }

    /// Every node asks until it is denied.
    fn exhaust(&mut self) {
        for node in 0..self.nodes.len() {
            while self.ask(node) {}
        }
    }

    fn share(&self, node: usize) -> u64 {
        let (limit, nodes) = (self.quota.limit(), self.nodes.len() as u64);
        limit / nodes + u64::from((node as u64) < limit % nodes)
    }

    /// The most permits in any window that ends after `since`.
    fn most(&self, since: Micros) -> u64 {
        let mut instants: Vec<Micros> = self.admitted.iter().map(|(at, ..)| *at).collect();
        instants.sort_unstable();
        let (mut first, mut most) = (0, 0);
        for (i, end) in instants.iter().enumerate() {
            while instants[first].plus(WINDOW) <= *end {
                first += 1;
            }
            if *end > since {
                most = most.max(i + 1 - first);
            }
        }
        most as u64
    }
}

/// Random deployments: how many nodes, which limit, and a seed.
fn deployments() -> impl Iterator<Item = World> {
    (1..=100).map(|seed| {
        let mut world = World::new(1, 1, seed);
        let (nodes, limit) = (2 + world.below(4) as usize, 1 + world.below(60));
        World::new(nodes, limit, seed)
    })
}

#[test]
fn nodes_that_all_lose_the_server_stay_within_the_limit_and_reach_it() {
    for mut world in deployments() {
        let before = 1_000_000 + world.below(2_000_000);
        world.run(before);
        world.exhaust();
        for node in 0..world.nodes.len() {
            // Each notices when it next asks; nobody is answered meanwhile.
            let gap = world.below(50_000);
            world.pass(gap);
            world.cut_off(node);
        }
        let gone = world.now;
        world.run(2_500_000);
        let limit = world.quota.limit();
        assert!(world.most(Micros::ZERO) <= limit, "{} of {limit}", world.most(Micros::ZERO));
        // The shares together are the limit: after the first window all of it can be used.
        world.exhaust();
        assert_eq!(world.most(gone.plus(WINDOW)), limit);
    }
}

#[test]
fn a_node_that_decides_alone_adds_its_share_at_most() {
    for mut world in deployments() {
        world.run(1_500_000);
        let cut = 1 + world.below(world.nodes.len() as u64) as usize;
        for node in 0..cut {
            world.cut_off(node);
            let gap = world.below(300_000);
            world.run(gap);
        }
        world.run(3_000_000);
        let shares: u64 = (0..cut).map(|node| world.share(node)).sum();
        let (most, limit) = (world.most(Micros::ZERO), world.quota.limit());
        assert!(most <= limit + shares, "{cut} cut off: {most} of {limit} + {shares}");
    }
    // No less than the share: the others use all of the limit.
    let mut world = World::new(3, 60, 1);
    world.cut_off(0);
    world.exhaust();
    assert_eq!(world.most(Micros::ZERO), 60 + world.share(0));
    world.pass(WINDOW.get());
    world.exhaust();
    assert_eq!(world.most(Micros::ZERO), 60 + world.share(0), "in each window, and no more");
}

#[test]
fn a_key_in_use_on_other_nodes_only_is_over_once_by_the_shares_of_those_that_did_not_know_of_it() {
    let mut world = World::new(3, 60, 1);
    while world.ask(0) {}
    (0..3).for_each(|node| world.cut_off(node));
    let gone = world.now;
    world.exhaust();
    assert_eq!(world.most(Micros::ZERO), 60 + world.share(1) + world.share(2));
    for _ in 0..200 {
        world.pass(20_000);
        world.exhaust();
    }
    assert_eq!(world.most(gone.plus(WINDOW)), 60, "once");
}

#[test]
fn a_key_below_its_limit_is_over_by_no_more_than_the_others_admitted_since_a_node_last_asked() {
    let mut worst = 0;
    for mut world in deployments() {
        let count = world.nodes.len();
        // What the others were admitted since each node last asked.
        let mut missed = vec![0; count];
        for _ in 0..world.below(2 * world.quota.limit()) {
            let node = world.below(count as u64) as usize;
            if world.ask(node) {
                missed.iter_mut().for_each(|missed| *missed += 1);
            }
            missed[node] = 0;
            world.pass(100);
        }
        (0..count).for_each(|node| world.cut_off(node));
        let gone = world.now;
        for _ in 0..100 {
            world.exhaust();
            world.pass(30_000);
        }
        let allowed: u64 = (0..count).map(|node| world.share(node).min(missed[node])).sum();
        let (most, limit) = (world.most(Micros::ZERO), world.quota.limit());
        assert!(most <= limit + allowed, "{most} of {limit} + {missed:?}");
        worst = worst.max(most.saturating_sub(limit));
        assert!(world.most(gone.plus(WINDOW)) <= limit, "in the first window only");
    }
    assert!(worst > 0, "no deployment was over: the bound shows nothing");
}

#[test]
fn a_node_that_was_given_up_by_the_others_adds_its_share() {
    let mut world = World::new(3, 60, 1);
    world.exhaust();
    world.nodes[0].share = (2, 0);
    world.nodes[1].share = (2, 1);
    (0..3).for_each(|node| world.cut_off(node));
    for _ in 0..200 {
        world.pass(20_000);
        world.exhaust();
    }
    assert_eq!(world.most(Micros::ZERO), 60 + world.share(2));
}

/// While a server is back and other nodes are not, both it and the share must allow. The server admits later than the
/// node decided, and the share must not be free before the window of the server is over.
#[test]
fn what_the_server_admits_counts_in_the_share_from_when_the_server_admitted_it() {
    let quota = Quota::new(3, WINDOW.into()).unwrap();
    counts_from_when_the_server_admitted_it(quota);
    counts_from_when_the_server_admitted_it(quota.with_count(Count::Attempts));
}

fn counts_from_when_the_server_admitted_it(quota: Quota) {
    let mirror = Journal::new(1_000_000);
    let ask = Checks::one(Check::new(Key::new("shared", []), quota, 1)).unwrap();
    let (begun, call) = (Micros::from_secs(1_000), Micros::from_millis(40));
    let at = |now| Outage { number: 1, since: begun, now, spread: Micros::ZERO, nodes: 3, rank: 0 };
    let allows = |now, asked| {
        let reading = decide(&mirror, &ask, &at(now), asked);
        (reading.verdicts[0].outcome == Outcome::Charged, reading)
    };
    let (allowed, reading) = allows(begun, true);
    assert!(allowed);
    // The state of another outage has its own admissions.
    let other = Outage { number: 2, ..at(begun) };
    postpone(&mirror, &ask, &reading, &other, begun.plus(call).plus(call));
    postpone(&mirror, &ask, &reading, &at(begun), begun.plus(call));
    let end = begun.plus(call).plus(WINDOW);
    let peek = |now| decide(&mirror, &ask.clone().peek(), &at(now), false).verdicts[0].outcome;
    assert_eq!(peek(begun.plus(WINDOW)), Outcome::Denied, "it still counts at the server");
    assert_eq!(peek(end.since(Micros::new(1))), Outcome::Denied);
    assert!(allows(end, false).0);
}
