//! State of one server: who decides, circuit breaker, clock, membership and counters.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use super::breaker::{Breaker, BreakerState};
use super::clock_offset::ClockOffset;
use super::fallback::Outage;
use super::membership::Membership;
use super::node::Node;
use crate::store::remote::ServerId;
use crate::{Fault, Micros};

/// Component that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// The server decides.
    Direct,
    /// This node decides; the server is not called.
    Away,
    /// Both decide: this node has written everything back, and other nodes may not have.
    Joining,
}

pub(super) struct ServerState {
    pub(super) id: ServerId,
    phase: AtomicU8,
    /// Read-locked during a decision without the server, and write-locked while the phase changes.
    pub(super) local_decisions: RwLock<()>,
    last_call_failed: AtomicBool,
    outage_state: Mutex<OutageState>,
    clock_offset: Mutex<ClockOffset>,
    pub(super) membership: Mutex<Membership>,
    /// Wakes the recovery task before its wait is over.
    pub(super) task_wake: Notify,
    pub(super) written_back: AtomicU64,
    pub(super) excess: AtomicU64,
    /// Epoch of the server that has all admissions of this node; 0 if the server was never identified.
    pub(super) epoch: AtomicU64,
    pub(super) outages: AtomicU64,
}

struct OutageState {
    breaker: Breaker,
    /// Number of the current or last outage.
    number: u64,
    /// Start of that outage by the server's clock.
    since: Micros,
    /// Time, by this node's clock, at which the server first answered again.
    answering_since: Option<Micros>,
    fault: Option<Fault>,
    /// Total time of the outages before `away_since`.
    away_before: Micros,
    /// Start of the current outage by this node's clock; none if there is none.
    away_since: Option<Micros>,
}

/// Statistics of one server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerStats {
    /// Address, without the password.
    pub address: String,
    /// State of the circuit breaker.
    pub breaker: BreakerState,
    /// True if the server decides alone, without this node's share.
    pub direct: bool,
    /// Last known number of nodes that use the server, this one included.
    pub nodes: u64,
    /// Number of outages.
    pub outages: u64,
    /// Total time of the outages, during which this node decided without the server.
    pub away: Micros,
    /// Permits that were written back to the server.
    pub written_back: u64,
    /// Permits by which writing back raised keys above their limit: permits that were admitted twice.
    pub excess: u64,
    /// Reason of the last failure.
    pub fault: Option<Fault>,
}

impl OutageState {
    fn total_away(&self, now: Micros) -> Micros {
        self.away_before.plus(self.away_since.map_or(Micros::ZERO, |since| now.since(since)))
    }

    fn set_away(&mut self, away: bool, now: Micros) {
        self.away_before = self.total_away(now);
        self.away_since = away.then_some(now);
    }
}

impl ServerState {
    /// Creates the state of a server. If it replaces `template`, it starts with the clock and the nodes of that
    /// server.
    pub(super) fn new(id: ServerId, node: &Node, template: Option<&ServerState>) -> Self {
        let membership = template.map(|template| template.membership.lock().clone());
        ServerState {
            id,
            phase: AtomicU8::new(Phase::Direct as u8),
            local_decisions: RwLock::default(),
            last_call_failed: AtomicBool::new(false),
            outage_state: Mutex::new(OutageState {
                breaker: Breaker::new(&node.options),
                number: 0,
                since: Micros::ZERO,
                answering_since: None,
                fault: None,
                away_before: Micros::ZERO,
                away_since: None,
            }),
            clock_offset: Mutex::new(
                template.map(|template| *template.clock_offset.lock()).unwrap_or_default(),
            ),
            membership: Mutex::new(
                membership.unwrap_or_else(|| Membership::new(&node.name, node.options.nodes)),
            ),
            task_wake: Notify::new(),
            written_back: AtomicU64::new(0),
            excess: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            outages: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Direct,
            1 => Phase::Away,
            _ => Phase::Joining,
        }
    }

    /// Changes the phase. It waits for the decisions in progress without the server, and lets none begin meanwhile.
    pub(super) fn set_phase(&self, node: &Node, phase: Phase) {
        let _no_local_decisions = self.local_decisions.write();
        self.phase.store(phase as u8, Ordering::Release);
        self.outage_state.lock().set_away(phase == Phase::Away, node.clock.now());
        if phase != Phase::Away {
            self.last_call_failed.store(false, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn is_identified(&self) -> bool {
        self.epoch.load(Ordering::Relaxed) != 0
    }

    /// Records an answer of the server.
    pub(super) fn record_answer(&self, sent: Micros, received: Micros, at: Micros) {
        self.clock_offset.lock().record(sent, received, at);
        if self.last_call_failed.load(Ordering::Relaxed) && self.phase() != Phase::Away {
            let mut outage_state = self.outage_state.lock();
            outage_state.breaker.record_success();
            self.last_call_failed.store(false, Ordering::Relaxed);
        }
    }

    /// Records a failure that affected this number of decisions.
    #[cold]
    pub(super) fn record_failure(&self, node: &Node, fault: Fault, decisions: usize) {
        let now = node.clock.now();
        let latest = self.clock_offset.lock().latest(now);
        let mut outage_state = self.outage_state.lock();
        outage_state.fault = Some(fault);
        if !self.last_call_failed.swap(true, Ordering::Relaxed) {
            outage_state.number = node.next_outage();
            outage_state.since = latest;
            outage_state.answering_since = None;
        }
        let opened = match fault {
            // A fault of one call or one key does not mean that the server is unavailable.
            Fault::Overloaded | Fault::WrongType | Fault::Conflict | Fault::Trimming => false,
            // The server has lost its data, so it must not decide before the data is written back.
            Fault::Restarted => {
                outage_state.breaker.open(now, node.random());
                true
            }
            _ => (0..decisions).any(|_| outage_state.breaker.record_failure(now, node.random())),
        };
        drop(outage_state);
        if opened && self.phase() != Phase::Away {
            self.set_phase(node, Phase::Away);
            self.outages.fetch_add(1, Ordering::Relaxed);
            self.task_wake.notify_one();
        }
    }

    /// Returns the current outage, for a decision that is made now.
    pub(super) fn current_outage(&self, node: &Node) -> Outage {
        let clock_offset = *self.clock_offset.lock();
        let (nodes, rank) = self.membership.lock().share();
        let (number, since) = {
            let outage_state = self.outage_state.lock();
            (outage_state.number, outage_state.since)
        };
        Outage {
            number,
            since,
            now: clock_offset.latest(node.clock.now()),
            clock_uncertainty: clock_offset.uncertainty(),
            nodes,
            rank,
        }
    }

    /// Returns the time, by this node's clock, at which the server first answered again; sets it to `now` if unset.
    pub(super) fn answering_since(&self, now: Micros) -> Micros {
        *self.outage_state.lock().answering_since.get_or_insert(now)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.breaker_state() == BreakerState::Closed
    }

    /// Returns the earliest possible time on the server.
    pub(super) fn earliest_now(&self, node: &Node) -> Micros {
        let clock_offset = *self.clock_offset.lock();
        clock_offset.latest(node.clock.now()).since(clock_offset.uncertainty())
    }

    /// Records a timestamp of the server from outside a decision.
    pub(super) fn record_server_time(&self, sent: Micros, received: Micros, at: Micros) {
        self.clock_offset.lock().record(sent, received, at);
    }

    /// Returns the latest possible time on the server.
    pub(super) fn latest_now(&self, node: &Node) -> Micros {
        self.clock_offset.lock().latest(node.clock.now())
    }

    /// Returns the time until the next probe.
    pub(super) fn until_probe(&self, node: &Node) -> Micros {
        self.outage_state.lock().breaker.until_probe(node.clock.now()).unwrap_or_default()
    }

    pub(super) fn breaker_state(&self) -> BreakerState {
        self.outage_state.lock().breaker.state()
    }

    /// Records the end of a probe; returns whether the circuit breaker is closed now.
    pub(super) fn record_probe(&self, node: &Node, answered: bool) -> bool {
        let mut outage_state = self.outage_state.lock();
        outage_state.breaker.record_probe(answered, node.clock.now(), node.random())
    }

    pub(super) fn stats(&self, node: &Node, address: String) -> ServerStats {
        // One lock at a time: a temporary in the expression below would be held until its end.
        let (nodes, _) = self.membership.lock().share();
        let (fault, away) = {
            let outage_state = self.outage_state.lock();
            (outage_state.fault, outage_state.total_away(node.clock.now()))
        };
        ServerStats {
            address,
            breaker: self.breaker_state(),
            direct: self.phase() == Phase::Direct,
            nodes,
            outages: self.outages.load(Ordering::Relaxed),
            away,
            written_back: self.written_back.load(Ordering::Relaxed),
            excess: self.excess.load(Ordering::Relaxed),
            fault,
        }
    }
}
