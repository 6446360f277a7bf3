//! Deterministic tests, in virtual time, of how far nodes without a server can exceed a limit.
//!
//! Each test is a row of the fault table in docs/explanation/operations.md. The tests with real servers show that nodes behave
//! like this; here every bound is checked to the permit.

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
    /// Instant, node and source of each admission.
    admitted: Vec<(Micros, usize, Source)>,
    outages: u64,
    random: u64,
}

struct Node {
    journal: Journal,
    /// Number and start of the outage; none while the server answers this node.
    outage: Option<(u64, Micros)>,
    /// Number of nodes that the node assumes, and its position among them.
    share: (u64, u64),
}

impl World {
    fn new(nodes: usize, limit: u64, seed: u64) -> Self {
        let quota = Quota::new(limit, WINDOW.into()).unwrap();
        let node =
            |rank| Node { journal: Journal::new(1_000_000), outage: None, share: (nodes as u64, rank) };
        World {
            quota,
            now: Micros::from_secs(1_000),
            server: State::new(&quota),
            nodes: (0..nodes as u64).map(node).collect(),
            admitted: Vec::new(),
            outages: 0,
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        }
    }

    /// Returns a random number below `n` (xorshift).
    fn random_below(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % n
    }

    fn advance(&mut self, micros: u64) {
        self.now = self.now.plus(Micros::new(micros));
    }

    /// Requests one permit on one node.
    fn acquire(&mut self, node: usize) -> bool {
        let checks = Checks::one(Check::new(Key::new("shared", []), self.quota, 1)).unwrap();
        let now = self.now;
        let Node { journal, outage, share: (nodes, rank) } = &mut self.nodes[node];
        let verdicts = match *outage {
            None => {
                let verdicts = evaluate_one(&checks, now, &mut self.server, None);
                journal.record_verdicts(checks.as_slice(), &verdicts, true);
                verdicts
            }
            Some((number, since)) => {
                let outage = Outage {
                    number,
                    since,
                    now,
                    clock_uncertainty: Micros::ZERO,
                    nodes: *nodes,
                    rank: *rank,
                };
                decide(journal, &checks, &outage, false)
            }
        };
        let allowed = verdicts.verdicts[0].outcome == Outcome::Charged;
        if allowed {
            self.admitted.push((verdicts.verdicts[0].entry.at, node, verdicts.source));
        }
        allowed
    }

    /// Starts an outage for one node.
    fn cut_off(&mut self, node: usize) {
        self.outages += 1;
        self.nodes[node].outage = Some((self.outages, self.now));
    }

    /// Sends random requests to random nodes at random instants, for this long.
    fn run(&mut self, micros: u64) {
        let end = self.now.plus(Micros::new(micros));
        while self.now < end {
            let node = self.random_below(self.nodes.len() as u64) as usize;
            self.acquire(node);
            let gap = self.random_below(4_000);
            self.advance(gap);
        }
    }

    /// Sends requests to every node until it denies one.
    fn exhaust(&mut self) {
        for node in 0..self.nodes.len() {
            while self.acquire(node) {}
        }
    }

    fn share(&self, node: usize) -> u64 {
        let (limit, nodes) = (self.quota.limit(), self.nodes.len() as u64);
        limit / nodes + u64::from((node as u64) < limit % nodes)
    }

    /// Returns the highest number of permits in any window that ends after `since`.
    fn max_in_window(&self, since: Micros) -> u64 {
        let mut instants: Vec<Micros> = self.admitted.iter().map(|(at, ..)| *at).collect();
        instants.sort_unstable();
        let (mut first, mut max_in_window) = (0, 0);
        for (i, end) in instants.iter().enumerate() {
            while instants[first].plus(WINDOW) <= *end {
                first += 1;
            }
            if *end > since {
                max_in_window = max_in_window.max(i + 1 - first);
            }
        }
        max_in_window as u64
    }
}

/// Returns deployments with a random number of nodes and a random limit.
fn deployments() -> impl Iterator<Item = World> {
    (1..=100).map(|seed| {
        let mut world = World::new(1, 1, seed);
        let (nodes, limit) = (2 + world.random_below(4) as usize, 1 + world.random_below(60));
        World::new(nodes, limit, seed)
    })
}

#[test]
fn nodes_without_a_server_stay_within_the_limit_and_reach_it() {
    for mut world in deployments() {
        let before = 1_000_000 + world.random_below(2_000_000);
        world.run(before);
        world.exhaust();
        for node in 0..world.nodes.len() {
            // Each node notices the outage at its next request. No node gets an answer meanwhile.
            let gap = world.random_below(50_000);
            world.advance(gap);
            world.cut_off(node);
        }
        let outage_start = world.now;
        world.run(2_500_000);
        let limit = world.quota.limit();
        assert!(
            world.max_in_window(Micros::ZERO) <= limit,
            "{} of {limit}",
            world.max_in_window(Micros::ZERO)
        );
        // The shares add up to the limit: after the first window all of it can be used.
        world.exhaust();
        assert_eq!(world.max_in_window(outage_start.plus(WINDOW)), limit);
    }
}

#[test]
fn node_without_the_server_adds_at_most_its_share() {
    for mut world in deployments() {
        world.run(1_500_000);
        let cut = 1 + world.random_below(world.nodes.len() as u64) as usize;
        for node in 0..cut {
            world.cut_off(node);
            let gap = world.random_below(300_000);
            world.run(gap);
        }
        world.run(3_000_000);
        let shares: u64 = (0..cut).map(|node| world.share(node)).sum();
        let (max_in_window, limit) = (world.max_in_window(Micros::ZERO), world.quota.limit());
        assert!(max_in_window <= limit + shares, "{cut} cut off: {max_in_window} of {limit} + {shares}");
    }
    // The bound is reached: the other nodes use all of the limit.
    let mut world = World::new(3, 60, 1);
    world.cut_off(0);
    world.exhaust();
    assert_eq!(world.max_in_window(Micros::ZERO), 60 + world.share(0));
    world.advance(WINDOW.get());
    world.exhaust();
    assert_eq!(world.max_in_window(Micros::ZERO), 60 + world.share(0), "in each window, and no more");
}

#[test]
fn key_used_by_one_node_exceeds_once_by_the_shares_of_the_other_nodes() {
    let mut world = World::new(3, 60, 1);
    while world.acquire(0) {}
    (0..3).for_each(|node| world.cut_off(node));
    let outage_start = world.now;
    world.exhaust();
    assert_eq!(world.max_in_window(Micros::ZERO), 60 + world.share(1) + world.share(2));
    for _ in 0..200 {
        world.advance(20_000);
        world.exhaust();
    }
    assert_eq!(world.max_in_window(outage_start.plus(WINDOW)), 60, "once");
}

#[test]
fn key_below_its_limit_exceeds_by_at_most_the_admissions_a_node_has_not_seen() {
    let mut worst = 0;
    for mut world in deployments() {
        let count = world.nodes.len();
        // For each node: admissions of the other nodes since its last request.
        let mut missed = vec![0; count];
        for _ in 0..world.random_below(2 * world.quota.limit()) {
            let node = world.random_below(count as u64) as usize;
            if world.acquire(node) {
                missed.iter_mut().for_each(|missed| *missed += 1);
            }
            missed[node] = 0;
            world.advance(100);
        }
        (0..count).for_each(|node| world.cut_off(node));
        let outage_start = world.now;
        for _ in 0..100 {
            world.exhaust();
            world.advance(30_000);
        }
        let allowed: u64 = (0..count).map(|node| world.share(node).min(missed[node])).sum();
        let (max_in_window, limit) = (world.max_in_window(Micros::ZERO), world.quota.limit());
        assert!(max_in_window <= limit + allowed, "{max_in_window} of {limit} + {missed:?}");
        worst = worst.max(max_in_window.saturating_sub(limit));
        assert!(world.max_in_window(outage_start.plus(WINDOW)) <= limit, "in the first window only");
    }
    assert!(worst > 0, "no deployment was over: the bound shows nothing");
}

#[test]
fn node_that_the_others_count_as_gone_adds_its_share() {
    let mut world = World::new(3, 60, 1);
    world.exhaust();
    world.nodes[0].share = (2, 0);
    world.nodes[1].share = (2, 1);
    (0..3).for_each(|node| world.cut_off(node));
    for _ in 0..200 {
        world.advance(20_000);
        world.exhaust();
    }
    assert_eq!(world.max_in_window(Micros::ZERO), 60 + world.share(2));
}

/// While a server is back and other nodes have not written back, both the server and the share must allow. The server
/// admits later than the node decided, and the share must count the admission until it expires at the server.
#[test]
fn share_counts_an_admission_from_the_instant_of_the_server() {
    let quota = Quota::new(3, WINDOW.into()).unwrap();
    counts_from_the_instant_of_the_server(quota);
    counts_from_the_instant_of_the_server(quota.with_count(Count::Attempts));
}

fn counts_from_the_instant_of_the_server(quota: Quota) {
    let journal = Journal::new(1_000_000);
    let checks = Checks::one(Check::new(Key::new("shared", []), quota, 1)).unwrap();
    let (started, call) = (Micros::from_secs(1_000), Micros::from_millis(40));
    let at =
        |now| Outage { number: 1, since: started, now, clock_uncertainty: Micros::ZERO, nodes: 3, rank: 0 };
    let allows = |now, joint| {
        let verdicts = decide(&journal, &checks, &at(now), joint);
        (verdicts.verdicts[0].outcome == Outcome::Charged, verdicts)
    };
    let (allowed, verdicts) = allows(started, true);
    assert!(allowed);
    // A call for another outage changes nothing, because the counter of that outage has its own admissions.
    let other = Outage { number: 2, ..at(started) };
    postpone(&journal, &checks, &verdicts, &other, started.plus(call).plus(call));
    postpone(&journal, &checks, &verdicts, &at(started), started.plus(call));
    let end = started.plus(call).plus(WINDOW);
    let peek = |now| decide(&journal, &checks.clone().peek(), &at(now), false).verdicts[0].outcome;
    assert_eq!(peek(started.plus(WINDOW)), Outcome::Denied, "the admission still counts at the server");
    assert_eq!(peek(end.since(Micros::new(1))), Outcome::Denied);
    assert!(allows(end, false).0);
}

/// The server's clock may show an earlier time than this node assumes. Admissions that may still count by that clock
/// stay in the journal for the write-back.
#[test]
fn journal_keeps_admissions_that_may_still_count_at_the_server() {
    for (uncertainty, entries) in [(Micros::from_millis(20), 2), (Micros::ZERO, 1)] {
        let quota = Quota::new(3, WINDOW.into()).unwrap();
        let checks = Checks::one(Check::new(Key::new("shared", []), quota, 1)).unwrap();
        let (journal, at) = (Journal::new(1_000_000), Micros::from_secs(1_000));
        let verdicts = evaluate_one(&checks, at, &mut State::new(&quota), None);
        journal.record_verdicts(checks.as_slice(), &verdicts, true);
        let now = at.plus(WINDOW).plus(Micros::from_millis(10));
        let outage = Outage { number: 1, since: now, now, clock_uncertainty: uncertainty, nodes: 1, rank: 0 };
        let local = decide(&journal, &checks, &outage, false);
        assert_eq!(local.verdicts[0].outcome, Outcome::Charged);
        let steps = 0..Journal::STEPS;
        let earliest = now.since(uncertainty);
        let pending = steps.flat_map(|step| journal.snapshot_step(step, |_| true, true, now, earliest));
        assert_eq!(pending.map(|pending| pending.entries.len()).sum::<usize>(), entries);
    }
}
