//! Helper: the table of docs/explanation/operations.md as assertions over the answers of callers, that is how far a key may be over
//! its limit.
//!
//! While every node has lost the server, nothing is over. A node that decides alone while the server still decides for
//! the others is over by its share at most, because it admits no more than that in a window. Such a *stray* admission
//! happens to a node that waits in vain for an answer, or that may not have more calls in flight.

use std::collections::BTreeSet;
use std::time::Duration;

use slidegate::{Algorithm, Source};

use crate::deployment::{CallRecord, micros, quota, worst};

/// Period in which no node could reach the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    /// Time from which the server was certainly unreachable.
    pub gone: u64,
    /// Time at which the server was certainly still unreachable. Every node had given it up by then.
    pub until: u64,
    /// Time from which the server could be reached again.
    pub back: u64,
    /// True if all nodes had given the server up at that moment, and none has more callers than calls in flight. Then
    /// they return together. A slow server answers some calls.
    pub given_up: bool,
}

/// Result of a run: the answers, and the conditions under which they were given.
pub(crate) struct Run<'t> {
    pub calls: &'t [CallRecord],
    pub nodes: usize,
    pub deadline: Duration,
    /// The most calls of one node that may be on their way to the server, of one permit each.
    pub in_flight: u64,
    pub outages: &'t [Outage],
}

/// Admission, and the instants between which it was made.
#[derive(Clone, Copy)]
struct Admission {
    call: CallRecord,
    from: u64,
    to: u64,
    stray: bool,
}

/// One outage, as far as it concerns one key.
struct Episode {
    /// Time of the last decision of the server on the key before the outage.
    went: u64,
    /// Time until which each node certainly decided alone.
    ends: Vec<u64>,
    /// Nodes that had already waited in vain when the server went away: their share counts from that wait on.
    early: BTreeSet<usize>,
    /// Bound that the table grants to a key below its limit: permits that a node did not know of, up to its share.
    unknown: u64,
}

/// Bound on the permits in one window: the sum of these parts.
#[derive(Debug)]
struct Bound {
    limit: u64,
    /// Shares of the nodes with stray admissions.
    shares: u64,
    unknown: u64,
    /// Late answers around the end of a fixed window, which may count in the next window instead.
    late: u64,
    /// Error around an outage of algorithms that keep sums: permits that a node writes back late may count too little
    /// by the permits that other nodes have admitted since.
    sums: u64,
}

impl Bound {
    fn most(&self) -> u64 {
        self.limit + self.shares + self.unknown + self.late + self.sums
    }
}

/// Largest difference between the clocks of callers and of servers on one machine.
const CLOCKS: u64 = 5_000;

impl Run<'_> {
    /// Asserts the bounds of the table for each key. Prints the most permits in a window, their bound, and the number
    /// of stray admissions.
    pub(crate) fn assert_bounds(&self, what: &str, keys: &[u64]) {
        for &key in keys {
            eprintln!("{}", self.check_bounds(what, key));
        }
    }

    /// Asserts the bounds of the table for one key. Returns the figures.
    pub(crate) fn check_bounds(&self, what: &str, key: u64) -> String {
        let episodes: Vec<Episode> = self.outages.iter().map(|outage| self.episode(key, outage)).collect();
        let all = self.admissions(key, &episodes);
        let strays = all.iter().filter(|admission| admission.stray).count();
        let local = self.local_in_a_window(key, &all);
        let late = quota(key).algorithm() == Algorithm::FixedWindow && strays > 0;
        let late = if late { self.in_flight } else { 0 };
        let share = shares(quota(key).capacity(), self.nodes, 1) + late;
        let limit = quota(key).capacity();
        if matches!(quota(key).algorithm(), Algorithm::TokenBucket { .. }) {
            let dated: Vec<CallRecord> =
                all.iter().filter(|all| all.from == all.to).map(|all| all.call).collect();
            let most = worst(&dated, key);
            // A stray node fills its part of the bucket from then on, so there is no bound for a window.
            let unknown: u64 = episodes.iter().map(|episode| episode.unknown).sum();
            assert!(strays > 0 || most <= limit + unknown, "key {key}: {most} of {limit}");
            return format!("{what}: key {key}: at most {most} of {limit} missing, {strays} stray");
        }
        let by_callers: Vec<Admission> = all
            .iter()
            .map(|all| Admission { from: all.call.started, to: all.call.answered, ..*all })
            .collect();
        let mut worst: Option<(u64, Bound)> = None;
        for view in [&all, &by_callers] {
            for (i, (most, bound)) in self.windows(key, view, &episodes).into_iter().enumerate() {
                assert!(
                    most <= bound.most(),
                    "{what}: key {key}: {most} in a window, allowed are {bound:?}:{}",
                    describe(view, i, quota(key).window().get()),
                );
                if worst.as_ref().is_none_or(|(before, _)| *before < most) {
                    worst = Some((most, bound));
                }
            }
        }
        let (most, bound) = worst.expect("something was admitted");
        assert!(local <= share, "{what}: key {key}: one node alone admitted {local}, its share is {share}");
        format!(
            "{what}: key {key}: at most {most} of {limit} in a window that may have {}; {strays} stray; at most {local} \
                 by one node alone, whose share is {share}",
            bound.most(),
        )
    }

    /// Returns the answers of a node for a key.
    fn of(&self, key: u64, node: usize) -> impl Iterator<Item = &CallRecord> {
        self.calls.iter().filter(move |call| call.key == key && call.node == node)
    }

    /// Returns true if the node waited for the store before it decided alone. Then the store may have admitted the
    /// request at any time since.
    fn waited(&self, call: &CallRecord) -> bool {
        call.source != Source::Store && call.answered - call.started >= micros(self.deadline) * 4 / 5
    }

    fn episode(&self, key: u64, outage: &Outage) -> Episode {
        let by_store = |call: &&CallRecord| call.source == Source::Store;
        let decided = self.calls.iter().filter(|call| call.key == key).filter(by_store);
        let silent = if outage.given_up { outage.gone } else { outage.until };
        let went = decided.map(|call| call.decided_at).filter(|at| *at <= silent).max().unwrap_or(0);
        let (window, limit) = (quota(key).window().get(), quota(key).capacity());
        let (mut ends, mut early, mut unknown) = (Vec::new(), BTreeSet::new(), 0);
        for node in 0..self.nodes {
            let own = || self.calls.iter().filter(move |call| call.node == node);
            let returned = self.of(key, node).filter(by_store).find(|call| call.started >= outage.back);
            let again = own().find(|call| call.started >= outage.back && self.waited(call));
            let end =
                if outage.given_up { returned.map_or(u64::MAX, |call| call.answered) } else { outage.back };
            ends.push(end.min(again.map_or(u64::MAX, |call| call.started)));
            let alone = |call: &&CallRecord| call.source != Source::Store;
            if let Some(last) = own().filter(alone).rfind(|call| call.answered < went)
                && !self.of(key, node).filter(by_store).any(|call| {
                    call.answered > last.answered && call.started > last.started && call.decided_at <= went
                })
            {
                early.insert(node);
            }
            // The node's share counts from its first decision without the store.
            let first = own().filter(alone).find(|call| call.answered >= went);
            let since = first.map_or(outage.until, |call| call.answered) + CLOCKS;
            let answers: Vec<&CallRecord> =
                self.of(key, node).filter(by_store).filter(|call| call.decided_at <= went).collect();
            if answers.iter().any(|call| call.full && call.decided_at + window > since) {
                continue;
            }
            let last = answers.iter().map(|call| call.decided_at).max().unwrap_or(0);
            let others =
                self.calls.iter().filter(|call| call.key == key && call.node != node && call.allowed);
            let missed = others.filter(by_store).filter(|call| (last..=went).contains(&call.at));
            let missed: u64 = missed.map(|call| call.cost).sum();
            unknown += missed.min(shares(limit, self.nodes, 1));
        }
        Episode { went, ends, early, unknown }
    }

    fn admissions(&self, key: u64, episodes: &[Episode]) -> Vec<Admission> {
        let admitted = self.calls.iter().filter(|call| call.key == key && call.allowed);
        let mut all: Vec<Admission> = admitted
            .map(|call| {
                let common = |episode: &Episode| {
                    call.answered >= episode.went
                        && call.answered <= episode.ends[call.node]
                        && !episode.early.contains(&call.node)
                };
                let stray = call.source != Source::Store && !episodes.iter().any(common);
                let (from, to) = if self.waited(call) {
                    (call.started - CLOCKS, call.at.max(call.answered))
                } else {
                    (call.at, call.at)
                };
                Admission { call: *call, from, to, stray }
            })
            .collect();
        all.sort_by_key(|admission| admission.from);
        all
    }

    /// Returns, for each window that begins with an admission, the permits that are certainly in it, and the bound on them.
    fn windows(&self, key: u64, all: &[Admission], episodes: &[Episode]) -> Vec<(u64, Bound)> {
        let window = quota(key).window().get();
        let fixed = quota(key).algorithm() == Algorithm::FixedWindow;
        let mut all: Vec<&Admission> = all.iter().collect();
        all.sort_by_key(|admission| admission.from);
        let of = |i: usize| {
            let start = if fixed { all[i].from / window * window } else { all[i].from };
            let end = start + window;
            let within = all[i..].iter().take_while(|admission| admission.from < end);
            let most =
                within.filter(|admission| admission.to < end).map(|admission| admission.call.cost).sum();
            // Excess admissions of the previous window are replaced by new admissions as they leave.
            let near = |from: u64, to: u64| to + window > start && from < end;
            let strays = all.iter().filter(|admission| admission.stray && near(admission.from, admission.to));
            let strays: BTreeSet<usize> = strays.map(|admission| admission.call.node).collect();
            let touches = |episode: &&Episode| {
                let last = episode.ends.iter().copied().max().unwrap_or(u64::MAX);
                episode.went < end.saturating_add(window) && last.saturating_add(2 * window) > start
            };
            let touched: Vec<&Episode> = episodes.iter().filter(touches).collect();
            let unknown = touched.iter().map(|episode| episode.unknown).sum();
            let limit = quota(key).capacity();
            let late = if fixed { strays.len() as u64 * self.in_flight } else { 0 };
            let keeps_sums = quota(key).algorithm() != Algorithm::SlidingWindow;
            let others = if keeps_sums && !touched.is_empty() { self.nodes - 1 } else { 0 };
            let sums = shares(limit, self.nodes, others);
            (most, Bound { limit, shares: shares(limit, self.nodes, strays.len()), unknown, late, sums })
        };
        (0..all.len()).map(of).collect()
    }

    /// Returns the most permits that one node admitted alone in any window.
    fn local_in_a_window(&self, key: u64, all: &[Admission]) -> u64 {
        let of_node = |node: usize| {
            let own: Vec<Admission> = all
                .iter()
                .filter(|admission| admission.call.node == node && admission.call.source == Source::Local)
                .copied()
                .collect();
            self.windows(key, &own, &[]).into_iter().map(|(most, _)| most).max().unwrap_or(0)
        };
        (0..self.nodes).map(of_node).max().unwrap_or(0)
    }
}

/// Lists the admissions of a window that begins with the `i`-th admission: node, source, permits, and the microseconds from
/// the start of the window between which it was made.
fn describe(all: &[Admission], i: usize, window: u64) -> String {
    let mut all: Vec<&Admission> = all.iter().collect();
    all.sort_by_key(|admission| admission.from);
    let start = all[i].from;
    let within = all[i..].iter().take_while(|admission| admission.from < start + window);
    let lines = within.map(|Admission { call, from, to, .. }| {
        let (from, to) = (from - start, to.saturating_sub(start));
        format!("\n  node {} {:?} {} at {from}..{to}", call.node, call.source, call.cost)
    });
    format!(" from {start}{}", lines.collect::<String>())
}

/// Returns the keys that were over their limit in some window, with the most permits and the limit: by the instants of
/// the decisions, or by the clock of the callers. For runs in which no node decides alone while the server decides for
/// others.
pub(crate) fn over(calls: &[CallRecord], keys: &[u64]) -> Vec<(u64, u64, u64)> {
    let of = |&key: &u64| {
        let run = Run { calls, nodes: 1, deadline: Duration::MAX, in_flight: 0, outages: &[] };
        let admitted = calls.iter().filter(|call| call.key == key && call.allowed);
        let seen: Vec<Admission> = admitted
            .map(|call| Admission { call: *call, from: call.started, to: call.answered, stray: false })
            .collect();
        let exact = quota(key).algorithm() == Algorithm::SlidingWindow;
        let seen = if exact { run.windows(key, &seen, &[]) } else { Vec::new() };
        let seen = seen.into_iter().map(|(most, _)| most).max().unwrap_or(0);
        (key, worst(calls, key).max(seen), quota(key).capacity())
    };
    keys.iter().map(of).filter(|(_, most, limit)| most > limit).collect()
}

/// Returns the sum of the `some` largest shares of `nodes` nodes.
fn shares(limit: u64, nodes: usize, some: usize) -> u64 {
    let (nodes, some) = (nodes as u64, some as u64);
    limit / nodes * some + some.min(limit % nodes)
}
