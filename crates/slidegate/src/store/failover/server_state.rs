//! State of one server: its state machine behind a lock, its clock, the other nodes, and counters.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use super::clock_offset::ClockOffset;
use super::fallback::Outage;
use super::membership::Membership;
use super::node::Node;
use super::state_machine::{BreakerState, Effect, Event, Machine, Phase};
use crate::store::remote::ServerId;
use crate::{Fault, Micros};

pub(super) struct ServerState {
    pub(super) id: ServerId,
    /// Summary of `machine`, which decisions read without a lock.
    summary: AtomicU64,
    machine: Mutex<Machine>,
    /// Read-locked during a decision without the server, and write-locked while the phase changes.
    pub(super) local_decisions: RwLock<()>,
    clock_offset: Mutex<ClockOffset>,
    pub(super) membership: Mutex<Membership>,
    /// Wakes the recovery task before its wait is over.
    pub(super) task_wake: Notify,
    pub(super) written_back: AtomicU64,
    pub(super) excess: AtomicU64,
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
    /// Permits by which the write-back raised the usage of keys above their limit: permits that were admitted twice.
    pub excess: u64,
    /// Reason of the last failure.
    pub fault: Option<Fault>,
}

/// Phase, failing flag and epoch of a [`Machine`] in one word.
#[derive(Clone, Copy)]
struct Summary(u64);

impl Summary {
    const PHASE: u64 = 3;
    const FAILING: u64 = 4;
    const EPOCH_SHIFT: u32 = 3;

    fn new(machine: &Machine) -> Self {
        let phase = machine.phase() as u64;
        let failing = if machine.failing { Self::FAILING } else { 0 };
        Summary(machine.epoch << Self::EPOCH_SHIFT | failing | phase)
    }

    #[inline]
    fn phase(self) -> Phase {
        match self.0 & Self::PHASE {
            0 => Phase::Direct,
            1 => Phase::Away,
            _ => Phase::Joining,
        }
    }

    #[inline]
    fn is_failing(self) -> bool {
        self.0 & Self::FAILING != 0
    }

    #[inline]
    fn epoch(self) -> u64 {
        self.0 >> Self::EPOCH_SHIFT
    }
}

impl ServerState {
    /// Creates the state of a server. If it replaces `template`, it starts with the clock and the nodes of that
    /// server.
    pub(super) fn new(id: ServerId, node: &Node, template: Option<&ServerState>) -> Self {
        let membership = template.map(|template| template.membership.lock().clone());
        let machine = Machine::default();
        ServerState {
            id,
            summary: AtomicU64::new(Summary::new(&machine).0),
            machine: Mutex::new(machine),
            local_decisions: RwLock::default(),
            clock_offset: Mutex::new(
                template.map(|template| *template.clock_offset.lock()).unwrap_or_default(),
            ),
            membership: Mutex::new(
                membership.unwrap_or_else(|| Membership::new(&node.name, node.options.nodes)),
            ),
            task_wake: Notify::new(),
            written_back: AtomicU64::new(0),
            excess: AtomicU64::new(0),
        }
    }

    #[inline]
    fn summary(&self) -> Summary {
        Summary(self.summary.load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn phase(&self) -> Phase {
        self.summary().phase()
    }

    /// Returns the epoch of the server that has all admissions of this node; 0 if the server was never identified.
    #[inline]
    pub(super) fn epoch(&self) -> u64 {
        self.summary().epoch()
    }

    #[inline]
    pub(super) fn is_identified(&self) -> bool {
        self.epoch() != 0
    }

    /// Returns a copy of the state machine.
    pub(super) fn machine(&self) -> Machine {
        *self.machine.lock()
    }

    /// Applies an event to the state machine.
    pub(super) fn apply(&self, node: &Node, event: Event) {
        self.apply_with(node, event, |_| {});
    }

    /// Applies an event, and carries out the effect before the new state can be seen. A change of the phase waits for the
    /// decisions in progress without the server, and lets none begin meanwhile.
    pub(super) fn apply_with(&self, node: &Node, event: Event, carry_out: impl FnOnce(Effect)) {
        let (now, random) = (node.clock.now(), node.random());
        let mut machine = self.machine.lock();
        let (mut next, mut effect) = machine.next(event, &node.options, now, random);
        let mut no_local_decisions = None;
        if next.phase() != machine.phase() {
            // Local decisions lock `local_decisions` before `machine`, so this function takes the locks in the same
            // order.
            drop(machine);
            no_local_decisions = Some(self.local_decisions.write());
            machine = self.machine.lock();
            (next, effect) = machine.next(event, &node.options, now, random);
        }
        if let Some(effect) = effect {
            carry_out(effect);
        }
        *machine = next;
        self.summary.store(Summary::new(&next).0, Ordering::Release);
        drop(machine);
        drop(no_local_decisions);
        if effect == Some(Effect::WakeTask) {
            self.task_wake.notify_one();
        }
    }

    /// Records an answer of the server.
    pub(super) fn record_answer(&self, node: &Node, sent: Micros, received: Micros, at: Micros) {
        self.record_server_time(sent, received, at);
        let summary = self.summary();
        if summary.is_failing() && summary.phase() != Phase::Away {
            self.apply(node, Event::Answered);
        }
    }

    /// Records a failure that affected this number of decisions.
    #[cold]
    pub(super) fn record_failure(&self, node: &Node, fault: Fault, decisions: usize) {
        let decisions = u32::try_from(decisions).unwrap_or(u32::MAX);
        let (outage, server_time) = (node.outages.fetch_add(1, Ordering::Relaxed) + 1, self.latest_now(node));
        self.apply(node, Event::Failed { fault, decisions, outage, server_time });
    }

    /// Returns the current outage, for a decision that is made now.
    pub(super) fn current_outage(&self, node: &Node) -> Outage {
        let clock_offset = *self.clock_offset.lock();
        let (nodes, rank) = self.membership.lock().share;
        let (number, since) = self.machine().outage();
        Outage {
            number,
            since,
            now: clock_offset.latest(node.clock.now()),
            clock_uncertainty: clock_offset.uncertainty(),
            nodes,
            rank,
        }
    }

    /// Returns the earliest possible time on the server.
    pub(super) fn earliest_now(&self, node: &Node) -> Micros {
        let clock_offset = *self.clock_offset.lock();
        clock_offset.latest(node.clock.now()).since(clock_offset.uncertainty())
    }

    /// Records a timestamp of the server.
    pub(super) fn record_server_time(&self, sent: Micros, received: Micros, at: Micros) {
        self.clock_offset.lock().record(sent, received, at);
    }

    /// Returns the latest possible time on the server.
    pub(super) fn latest_now(&self, node: &Node) -> Micros {
        self.clock_offset.lock().latest(node.clock.now())
    }

    /// Returns the time until the next probe.
    pub(super) fn until_probe(&self, node: &Node) -> Micros {
        self.machine().until_probe(node.clock.now())
    }

    pub(super) fn stats(&self, node: &Node, address: String) -> ServerStats {
        let (nodes, _) = self.membership.lock().share;
        let machine = self.machine();
        ServerStats {
            address,
            breaker: machine.breaker(),
            direct: machine.phase() == Phase::Direct,
            nodes,
            outages: machine.outages,
            away: machine.total_away(node.clock.now()),
            written_back: self.written_back.load(Ordering::Relaxed),
            excess: self.excess.load(Ordering::Relaxed),
            fault: machine.fault,
        }
    }
}
