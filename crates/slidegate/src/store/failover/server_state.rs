//! One server, as a guard sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use super::breaker::{Breaker, BreakerState};
use super::clock_offset::Clockwork;
use super::fallback::Outage;
use super::membership::Peers;
use super::{Inner, recovery_task};
use crate::store::redis::ServerId;
use crate::{Fault, Micros};

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// The server.
    Direct,
    /// This node: the server is not asked.
    Away,
    /// Both: this node has written everything back, and others may not have.
    Joining,
}

pub(super) struct ServerState {
    pub(super) id: ServerId,
    phase: AtomicU8,
    /// Held while something is decided without it.
    pub(super) deciding: RwLock<()>,
    /// Whether the last call failed.
    troubled: AtomicBool,
    trouble: Mutex<OutageState>,
    clockwork: Mutex<Clockwork>,
    pub(super) peers: Mutex<Peers>,
    /// Something changed that its keeper should look at.
    pub(super) changed: Notify,
    pub(super) written_back: AtomicU64,
    pub(super) excess: AtomicU64,
    /// Which of its lives has everything: 0 if it was never met.
    pub(super) life: AtomicU64,
    pub(super) outages: AtomicU64,
}

struct OutageState {
    breaker: Breaker,
    /// Which time without it this is, and since when by its own clock.
    outage: u64,
    since: Micros,
    /// When, by our clock, it first answered again.
    answered_again: Option<Micros>,
    fault: Option<Fault>,
    /// How long this node decided without it, before `away_since`.
    away: Micros,
    /// When, by our clock, this node began to; none if it does not.
    away_since: Option<Micros>,
}

/// One server, as a guard sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerStats {
    /// Where it is, without a password.
    pub address: String,
    /// Whether it is asked.
    pub breaker: BreakerState,
    /// Whether decisions are made by it alone, without this node's share.
    pub direct: bool,
    /// Processes that count on it, this one included, as far as is known.
    pub nodes: u64,
    /// Times that it was given up.
    pub outages: u64,
    /// How long it was given up, all times together: this node decided without it.
    pub away: Micros,
    /// Permits that were written back to it.
    pub written_back: u64,
    /// Permits by which that took keys above their limit: what was admitted twice.
    pub excess: u64,
    /// Why it last failed.
    pub fault: Option<Fault>,
}

impl OutageState {
    fn away_until(&self, now: Micros) -> Micros {
        self.away.plus(self.away_since.map_or(Micros::ZERO, |since| now.since(since)))
    }

    fn note_away(&mut self, away: bool, now: Micros) {
        self.away = self.away_until(now);
        self.away_since = away.then_some(now);
    }
}

impl ServerState {
    /// One that takes over from `another` has its clock and its nodes, for all we know.
    pub(super) fn new(id: ServerId, inner: &Inner, another: Option<&ServerState>) -> Self {
        let peers = another.map(|another| another.peers.lock().clone());
        ServerState {
            id,
            phase: AtomicU8::new(Phase::Direct as u8),
            deciding: RwLock::default(),
            troubled: AtomicBool::new(false),
            trouble: Mutex::new(OutageState {
                breaker: Breaker::new(&inner.options),
                outage: 0,
                since: Micros::ZERO,
                answered_again: None,
                fault: None,
                away: Micros::ZERO,
                away_since: None,
            }),
            clockwork: Mutex::new(another.map(|another| *another.clockwork.lock()).unwrap_or_default()),
            peers: Mutex::new(peers.unwrap_or_else(|| Peers::new(&inner.name, inner.options.nodes))),
            changed: Notify::new(),
            written_back: AtomicU64::new(0),
            excess: AtomicU64::new(0),
            life: AtomicU64::new(0),
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

    /// Waits for the decisions that are being made without it, and lets none begin meanwhile.
    pub(super) fn set_phase(&self, inner: &Inner, phase: Phase) {
        let _deciding = self.deciding.write();
        self.phase.store(phase as u8, Ordering::Release);
        self.trouble.lock().note_away(phase == Phase::Away, inner.clock.now());
        if phase != Phase::Away {
            self.troubled.store(false, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn is_met(&self) -> bool {
        self.life.load(Ordering::Relaxed) != 0
    }

    /// It answered.
    pub(super) fn answered(&self, sent: Micros, received: Micros, at: Micros) {
        self.clockwork.lock().answered(sent, received, at);
        if self.troubled.load(Ordering::Relaxed) && self.phase() != Phase::Away {
            let mut trouble = self.trouble.lock();
            trouble.breaker.succeeded();
            self.troubled.store(false, Ordering::Relaxed);
        }
    }

    /// It did not, and so many decisions had to do without.
    #[cold]
    pub(super) fn failed(&self, inner: &Inner, fault: Fault, decisions: usize) {
        let now = inner.clock.now();
        let latest = self.clockwork.lock().latest(now);
        let mut trouble = self.trouble.lock();
        trouble.fault = Some(fault);
        if !self.troubled.swap(true, Ordering::Relaxed) {
            trouble.outage = inner.outages.fetch_add(1, Ordering::Relaxed) + 1;
            trouble.since = latest;
            trouble.answered_again = None;
        }
        let opened = match fault {
            // What is wrong with one call or one key says nothing of the server.
            Fault::Overloaded | Fault::WrongType | Fault::Conflict | Fault::Trimming => false,
            // It has lost what it counted: nothing may be asked of it before that is written back.
            Fault::Restarted => {
                trouble.breaker.open(now, inner.chance());
                true
            }
            _ => (0..decisions).any(|_| trouble.breaker.failed(now, inner.chance())),
        };
        drop(trouble);
        if opened && self.phase() != Phase::Away {
            self.set_phase(inner, Phase::Away);
            self.outages.fetch_add(1, Ordering::Relaxed);
            self.changed.notify_one();
        }
    }

    /// The time without it, for a decision that is made now.
    pub(super) fn outage(&self, inner: &Inner) -> Outage {
        let clockwork = *self.clockwork.lock();
        let (nodes, rank) = self.peers.lock().share();
        let (number, since) = {
            let trouble = self.trouble.lock();
            (trouble.outage, trouble.since)
        };
        Outage {
            number,
            since,
            now: clockwork.latest(inner.clock.now()),
            spread: clockwork.spread(),
            nodes,
            rank,
        }
    }

    /// When, by our clock, it first answered again.
    pub(super) fn answered_again(&self, now: Micros) -> Micros {
        *self.trouble.lock().answered_again.get_or_insert(now)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.breaker_state() == BreakerState::Closed
    }

    /// What time it is there, at the earliest.
    pub(super) fn earliest(&self, inner: &Inner) -> Micros {
        let clockwork = *self.clockwork.lock();
        clockwork.latest(inner.clock.now()).since(clockwork.spread())
    }

    /// What time it said it was, outside of any decision.
    pub(super) fn told_time(&self, sent: Micros, received: Micros, at: Micros) {
        self.clockwork.lock().answered(sent, received, at);
    }

    /// What time it is there, at the latest.
    pub(super) fn now(&self, inner: &Inner) -> Micros {
        self.clockwork.lock().latest(inner.clock.now())
    }

    /// How long until it is tried again.
    pub(super) fn until_probe(&self, inner: &Inner) -> Micros {
        self.trouble.lock().breaker.until_probe(inner.clock.now()).unwrap_or_default()
    }

    pub(super) fn breaker_state(&self) -> BreakerState {
        self.trouble.lock().breaker.state()
    }

    /// A probe came to its end; whether the server may be asked again.
    pub(super) fn probed(&self, inner: &Inner, answered: bool) -> bool {
        let mut trouble = self.trouble.lock();
        trouble.breaker.probed(answered, inner.clock.now(), inner.chance())
    }

    pub(super) async fn leave(&self, inner: &Arc<Inner>) {
        // Who is not there cannot be told.
        let _ = recovery_task::leave(inner, self).await;
    }

    pub(super) fn stats(&self, inner: &Inner) -> ServerStats {
        // One lock at a time: a temporary in the expression below would be held to its end.
        let (nodes, _) = self.peers.lock().share();
        let (fault, away) = {
            let trouble = self.trouble.lock();
            (trouble.fault, trouble.away_until(inner.clock.now()))
        };
        ServerStats {
            address: inner.store.server_address(self.id),
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
