//! State machine of one server: who decides, when a probe is due, and which epoch has all admissions of this node.
//!
//! It is pure: [`Machine::next`] maps a state, an event, the time and a random number to the next state and an effect.
//! `server_state` applies it under a lock, and `recovery_task` carries out the effects. ARCHITECTURE.md shows the diagram.
//!
//! | state | event | next state | effect |
//! |---|---|---|---|
//! | `Direct`, `Joining`, `WritingBack` | `Failed`, fewer than `failures` in a row | the same, with more failures | |
//! | `Direct`, `Joining` | `Failed`, `failures` in a row, or with the fault `Restarted` | `Open` | wake the task |
//! | `WritingBack` | `Failed`, `failures` in a row, or with the fault `Restarted`; `WriteBackFailed` | `Open` | |
//! | `Direct`, `Joining` | `Answered` | the same, no failures | |
//! | `Open`, `HalfOpen` | `ProbeFailed` | `Open`, for twice as long | |
//! | `Open`, `HalfOpen` | `ProbeAnswered`, fewer than `probes` in a row | `HalfOpen` | |
//! | `Open`, `HalfOpen` | `ProbeAnswered`, `probes` in a row | `WritingBack` | |
//! | `WritingBack` | `WrittenBack` | `Joining`, in the new epoch | acknowledge the epoch |
//! | `Open`, `HalfOpen` | `WrittenBack` | the same, in the new epoch | acknowledge the epoch |
//! | `Joining` | `JoinPolled`, all nodes have written back or the time for it is over | `Direct` | |
//! | any | `Identified`, with the known epoch | the same | |
//! | any, no epoch known | `Identified`, with `initial` | the same, in this epoch | acknowledge the epoch |
//! | any | `Identified`, with any other epoch | the same | reject the server |
//!
//! All other events leave the state as it is.

use super::FailoverOptions;
use crate::{Fault, Micros};

/// Component that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The server decides.
    Direct,
    /// This node decides; the server is not called.
    Away,
    /// Both decide: this node has written everything back, and other nodes may not have.
    Joining,
}

crate::words! {
    /// State of a circuit breaker, without its counters.
    #[non_exhaustive]
    pub enum BreakerState {
        /// Decisions call the server.
        Closed = "closed",
        /// Decisions do not call the server.
        Open = "open",
        /// Probes test the server.
        HalfOpen = "half-open",
    }
}

/// State of one server. `failures` counts failed calls in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The server decides.
    Direct { failures: u32 },
    /// This node decides. The next probe is due at `until`.
    Open { until: Micros, pause: Micros },
    /// This node decides. The server has answered some probes in a row; the next one is due at once.
    HalfOpen { answered: u32, pause: Micros },
    /// This node decides. The server answers, and the task writes back the missing admissions.
    WritingBack { failures: u32 },
    /// Both decide, until the other nodes have written back too.
    Joining { failures: u32, started: Micros },
}

/// Input of the state machine.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The server answered a call.
    Answered,
    /// A call failed. The failure affected this number of decisions.
    Failed {
        fault: Fault,
        decisions: u32,
        /// Number of the outage, if this failure begins one.
        outage: u64,
        /// Latest possible time on the server.
        server_time: Micros,
    },
    /// The server has this epoch. A server is `initial` if it was known when the topology was first discovered, so that
    /// it has lost no admission of this node.
    Identified { epoch: u64, initial: bool },
    /// The server answered a probe.
    ProbeAnswered,
    /// A probe failed.
    ProbeFailed,
    /// This epoch of the server has all admissions of this node.
    WrittenBack { epoch: u64 },
    /// The missing admissions could not be written.
    WriteBackFailed { fault: Fault },
    /// The messages of the other nodes were read.
    JoinPolled { all_written_back: bool },
}

/// Action that a transition requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The server may decide in this epoch. The store must know before the new state is published.
    Acknowledge(u64),
    /// The server may lack admissions of this node, because its epoch is not the known one.
    Reject,
    /// The recovery task has something to do.
    WakeTask,
}

/// State of one server, and the facts about its current or last outage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Machine {
    state: State,
    /// Epoch of the server that has all admissions of this node; 0 if the server was never identified. The store holds
    /// decisions in any other epoch.
    pub(super) epoch: u64,
    /// True from a failed call to the next answered call, or to the end of the outage.
    pub(super) failing: bool,
    /// Number of the current or last outage.
    outage: u64,
    /// Start of the current or last outage, by the server's clock.
    outage_since: Micros,
    /// Time, by this node's clock, at which the server first answered again.
    pub(super) answering_since: Option<Micros>,
    pub(super) fault: Option<Fault>,
    /// Number of times that the phase changed to [`Phase::Away`].
    pub(super) outages: u64,
    /// Total time of earlier outages, before `away_since`.
    away_before: Micros,
    /// Time, by this node's clock, since which the server is away; `None` if it is not away.
    away_since: Option<Micros>,
}

impl Default for State {
    fn default() -> Self {
        State::Direct { failures: 0 }
    }
}

impl Machine {
    /// Returns the next state and the effect of the transition.
    pub(super) fn next(
        mut self,
        event: Event,
        options: &FailoverOptions,
        now: Micros,
        random: u64,
    ) -> (Machine, Option<Effect>) {
        let before = self.phase();
        let effect = match event {
            Event::Answered => {
                if before != Phase::Away {
                    self.failing = false;
                    self.state.failures().into_iter().for_each(|failures| *failures = 0);
                }
                None
            }
            Event::Failed { fault, decisions, outage, server_time } => {
                self.begin_outage(fault, outage, server_time);
                self.fail(fault, decisions, options, now, random)
            }
            Event::Identified { epoch, .. } if self.epoch == epoch => None,
            Event::Identified { epoch, initial: true } if self.epoch == 0 => {
                self.epoch = epoch;
                Some(Effect::Acknowledge(epoch))
            }
            Event::Identified { .. } => Some(Effect::Reject),
            Event::ProbeAnswered => {
                self.answering_since.get_or_insert(now);
                self.state = self.state.after_probe(options.probes);
                None
            }
            Event::ProbeFailed => {
                if let State::Open { pause, .. } | State::HalfOpen { pause, .. } = self.state {
                    let pause = pause.plus(pause).min(options.longest_pause.into());
                    self.state = State::open(pause, now, random);
                }
                None
            }
            Event::WrittenBack { epoch } => {
                self.epoch = epoch;
                // If calls that were still in flight have failed meanwhile, the state is `Open` or `HalfOpen`, and does
                // not change.
                if let State::WritingBack { .. } = self.state {
                    self.state = State::Joining { failures: 0, started: now };
                }
                Some(Effect::Acknowledge(epoch))
            }
            Event::WriteBackFailed { fault } => {
                self.fault = Some(fault);
                if let State::WritingBack { .. } = self.state {
                    self.state = State::open(options.first_pause.into(), now, random);
                }
                None
            }
            Event::JoinPolled { all_written_back } => {
                if let State::Joining { started, .. } = self.state
                    && (all_written_back || now.since(started) >= options.write_back.into())
                {
                    self.state = State::Direct { failures: 0 };
                }
                None
            }
        };
        self.record_phase(before, now);
        (self, effect)
    }

    /// Records the fault. The first failure after an answer begins an outage.
    fn begin_outage(&mut self, fault: Fault, outage: u64, server_time: Micros) {
        self.fault = Some(fault);
        if !self.failing {
            self.failing = true;
            (self.outage, self.outage_since, self.answering_since) = (outage, server_time, None);
        }
    }

    fn fail(
        &mut self,
        fault: Fault,
        decisions: u32,
        options: &FailoverOptions,
        now: Micros,
        random: u64,
    ) -> Option<Effect> {
        let failures = match fault {
            // A fault of one call or one key does not mean that the server is unavailable.
            Fault::Overloaded | Fault::WrongType | Fault::Conflict | Fault::Trimming => return None,
            // The server has lost its data, so it must not decide before the data is written back.
            Fault::Restarted => options.failures,
            _ => self.state.failures()?.saturating_add(decisions),
        };
        if failures < options.failures {
            self.state.failures().into_iter().for_each(|counted| *counted = failures);
            return None;
        }
        let calls_server = self.phase() != Phase::Away;
        if self.state.failures().is_some() {
            self.state = State::open(options.first_pause.into(), now, random);
        }
        calls_server.then_some(Effect::WakeTask)
    }

    /// Keeps account of the time away, and ends the outage when the server decides again.
    fn record_phase(&mut self, before: Phase, now: Micros) {
        let phase = self.phase();
        if phase == before {
            return;
        }
        self.away_before = self.total_away(now);
        self.away_since = (phase == Phase::Away).then_some(now);
        if phase == Phase::Away {
            self.outages += 1;
        } else {
            self.failing = false;
        }
    }

    pub(super) fn phase(&self) -> Phase {
        match self.state {
            State::Direct { .. } => Phase::Direct,
            State::Joining { .. } => Phase::Joining,
            State::Open { .. } | State::HalfOpen { .. } | State::WritingBack { .. } => Phase::Away,
        }
    }

    pub(super) fn breaker(&self) -> BreakerState {
        match self.state {
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
            State::Direct { .. } | State::WritingBack { .. } | State::Joining { .. } => BreakerState::Closed,
        }
    }

    pub(super) fn is_writing_back(&self) -> bool {
        matches!(self.state, State::WritingBack { .. })
    }

    /// Returns the number of the current or last outage, and its start by the server's clock.
    pub(super) fn outage(&self) -> (u64, Micros) {
        (self.outage, self.outage_since)
    }

    /// Returns the total time away.
    pub(super) fn total_away(&self, now: Micros) -> Micros {
        self.away_before.plus(self.away_since.map_or(Micros::ZERO, |since| now.since(since)))
    }

    /// Returns the time until a probe is due.
    pub(super) fn until_probe(&self, now: Micros) -> Micros {
        if let State::Open { until, .. } = self.state { until.since(now) } else { Micros::ZERO }
    }
}

impl State {
    /// Returns an open state. Its pause is between half of `pause` and all of it, so that the nodes of a deployment do not
    /// return to the server at the same time.
    fn open(pause: Micros, now: Micros, random: u64) -> Self {
        let half = pause.get() / 2;
        State::Open { until: now.plus(Micros::new(half + random % (half + 1))), pause }
    }

    fn after_probe(self, probes_needed: u32) -> Self {
        let (answered, pause) = match self {
            State::Open { pause, .. } => (1, pause),
            State::HalfOpen { answered, pause } => (answered + 1, pause),
            state => return state,
        };
        if answered < probes_needed {
            State::HalfOpen { answered, pause }
        } else {
            State::WritingBack { failures: 0 }
        }
    }

    /// Returns the number of failed calls in a row; `None` in `Open` and `HalfOpen`, where failed calls are not
    /// counted.
    fn failures(&mut self) -> Option<&mut u32> {
        match self {
            State::Direct { failures }
            | State::WritingBack { failures }
            | State::Joining { failures, .. } => Some(failures),
            State::Open { .. } | State::HalfOpen { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: fn(u64) -> Micros = Micros::from_millis;

    fn options() -> FailoverOptions {
        FailoverOptions { failures: 3, probes: 2, ..FailoverOptions::default() }
    }

    /// A machine in virtual time.
    struct Run {
        machine: Machine,
        now: Micros,
        random: u64,
    }

    impl Run {
        fn new() -> Self {
            Run { machine: Machine::default(), now: MS(1_000), random: 0 }
        }

        fn after(mut self, wait: Micros, event: Event) -> (Self, Option<Effect>) {
            self.now = self.now.plus(wait);
            let (machine, effect) = self.machine.next(event, &options(), self.now, self.random);
            (Run { machine, ..self }, effect)
        }

        /// Applies an event, ten milliseconds later, that must have this effect.
        fn then(self, event: Event, expected: Option<Effect>) -> Self {
            let (run, effect) = self.after(MS(10), event);
            assert_eq!(effect, expected, "{event:?}");
            run
        }

        fn on(self, event: Event) -> Self {
            self.then(event, None)
        }

        fn direct() -> Self {
            Run::new()
                .then(Event::Identified { epoch: 7, initial: true }, Some(Effect::Acknowledge(7)))
                .on(Event::Answered)
        }

        fn open() -> Self {
            Run::direct().then(restarted(1), Some(Effect::WakeTask))
        }

        fn half_open() -> Self {
            Run::open().on(Event::ProbeAnswered)
        }

        fn writing_back() -> Self {
            Run::half_open().on(Event::ProbeAnswered)
        }

        fn joining() -> Self {
            Run::writing_back().then(Event::WrittenBack { epoch: 8 }, Some(Effect::Acknowledge(8)))
        }

        fn assert(self, state: State, phase: Phase, breaker: BreakerState) -> Self {
            let Run { machine, .. } = &self;
            assert_eq!((machine.state, machine.phase(), machine.breaker()), (state, phase, breaker));
            self
        }
    }

    fn failed(fault: Fault, decisions: u32, outage: u64) -> Event {
        Event::Failed { fault, decisions, outage, server_time: MS(50_000) }
    }

    fn timeout(outage: u64) -> Event {
        failed(Fault::Timeout, 1, outage)
    }

    fn restarted(outage: u64) -> Event {
        failed(Fault::Restarted, 1, outage)
    }

    /// Events that must not change `State`, for any recorded outage.
    fn assert_ignores(run: fn() -> Run, events: &[Event]) {
        for event in events {
            let before = run();
            let state = before.machine.state;
            assert_eq!(before.after(MS(10), *event).0.machine.state, state, "{event:?}");
        }
    }

    #[test]
    fn direct_opens_after_consecutive_failures() {
        let mut run = Run::direct();
        for _ in 0..5 {
            run = run.on(timeout(1)).on(timeout(2)).on(Event::Answered);
        }
        let run = run.on(timeout(3)).on(timeout(4));
        let run = run.assert(State::Direct { failures: 2 }, Phase::Direct, BreakerState::Closed);
        let run = run.then(timeout(5), Some(Effect::WakeTask));
        let until = run.now.plus(MS(25));
        run.assert(State::Open { until, pause: MS(50) }, Phase::Away, BreakerState::Open);
    }

    #[test]
    fn call_that_failed_for_many_decisions_counts_for_each() {
        let run = Run::direct().then(failed(Fault::Lost, 3, 1), Some(Effect::WakeTask));
        assert_eq!(run.machine.phase(), Phase::Away);
        let run = Run::direct().then(failed(Fault::Lost, u32::MAX, 1), Some(Effect::WakeTask));
        assert_eq!(run.machine.phase(), Phase::Away);
    }

    #[test]
    fn restarted_server_is_given_up_at_once() {
        assert_eq!(Run::open().machine.phase(), Phase::Away);
        let run = Run::joining().then(restarted(2), Some(Effect::WakeTask));
        assert_eq!(run.machine.breaker(), BreakerState::Open);
    }

    #[test]
    fn fault_of_one_call_begins_an_outage_but_opens_nothing() {
        for fault in [Fault::Overloaded, Fault::WrongType, Fault::Conflict, Fault::Trimming] {
            let run = Run::direct().on(failed(fault, 100, 4));
            let run = run.assert(State::Direct { failures: 0 }, Phase::Direct, BreakerState::Closed);
            assert_eq!((run.machine.outage(), run.machine.failing), ((4, MS(50_000)), true));
            assert_eq!(run.machine.fault, Some(fault));
        }
    }

    #[test]
    fn outage_begins_with_the_first_failure_after_an_answer() {
        let run = Run::direct().on(timeout(1)).on(timeout(2));
        assert_eq!(run.machine.outage().0, 1);
        let run = run.on(Event::Answered).on(timeout(3));
        assert_eq!(run.machine.outage().0, 3);
        let run =
            run.on(timeout(4)).then(timeout(5), Some(Effect::WakeTask)).on(Event::Answered).on(timeout(6));
        assert_eq!(run.machine.outage().0, 3, "an answer to a call in flight does not end an outage");
        let run = run.on(Event::ProbeAnswered).on(Event::ProbeAnswered);
        let run = run.then(Event::WrittenBack { epoch: 7 }, Some(Effect::Acknowledge(7)));
        assert_eq!((run.machine.outage().0, run.machine.failing), (3, false));
        assert_eq!(run.on(timeout(7)).machine.outage().0, 7);
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_are_jittered() {
        let (mut run, mut pauses) = (Run::open(), Vec::new());
        for _ in 0..6 {
            pauses.push(run.machine.until_probe(run.now).get() / 1_000);
            run = run.on(Event::ProbeFailed);
        }
        assert_eq!(pauses, [25, 50, 100, 200, 250, 250]);
        for random in 0..1_000 {
            run.random = random * 7_919;
            run = run.on(Event::ProbeFailed);
            assert!((MS(250)..=MS(500)).contains(&run.machine.until_probe(run.now)));
        }
        assert_eq!(Run::half_open().machine.until_probe(MS(0)), Micros::ZERO, "the next probe is due");
    }

    #[test]
    fn consecutive_answered_probes_start_the_write_back() {
        let run = Run::half_open();
        let run =
            run.assert(State::HalfOpen { answered: 1, pause: MS(50) }, Phase::Away, BreakerState::HalfOpen);
        let since = run.now;
        let run = run.on(Event::ProbeFailed);
        assert_eq!(run.machine.breaker(), BreakerState::Open);
        let run = run.on(Event::ProbeAnswered).on(Event::ProbeAnswered);
        let run = run.assert(State::WritingBack { failures: 0 }, Phase::Away, BreakerState::Closed);
        assert_eq!(run.machine.answering_since, Some(since), "the first answer of the outage");
    }

    #[test]
    fn written_back_epoch_is_acknowledged_and_joined() {
        let run = Run::joining();
        let started = run.now;
        let run = run.assert(State::Joining { failures: 0, started }, Phase::Joining, BreakerState::Closed);
        assert_eq!(run.machine.epoch, 8);
    }

    #[test]
    fn failed_write_back_opens_again() {
        let run = Run::writing_back().on(Event::WriteBackFailed { fault: Fault::Lost });
        assert_eq!((run.machine.breaker(), run.machine.fault), (BreakerState::Open, Some(Fault::Lost)));
        let run = Run::writing_back().on(timeout(1)).on(timeout(1)).on(timeout(1));
        assert_eq!(run.machine.breaker(), BreakerState::Open, "calls in flight failed meanwhile");
        let run = run.then(Event::WrittenBack { epoch: 8 }, Some(Effect::Acknowledge(8)));
        assert_eq!((run.machine.phase(), run.machine.epoch), (Phase::Away, 8));
    }

    #[test]
    fn joining_ends_when_all_have_written_back_or_the_time_is_over() {
        let polled = |all_written_back| Event::JoinPolled { all_written_back };
        let run = Run::joining().on(polled(false)).on(timeout(9));
        assert_eq!(run.machine.phase(), Phase::Joining);
        let run = run.on(polled(true));
        let run = run.assert(State::Direct { failures: 0 }, Phase::Direct, BreakerState::Closed);
        assert!(!run.machine.failing);
        let write_back = Micros::from(options().write_back);
        let (run, _) = Run::joining().after(write_back.since(MS(1)), polled(false));
        assert_eq!(run.machine.phase(), Phase::Joining);
        let (run, _) = run.after(MS(1), polled(false));
        assert_eq!(run.machine.phase(), Phase::Direct);
    }

    #[test]
    fn joining_opens_after_consecutive_failures() {
        let run = Run::joining().on(timeout(1)).on(Event::Answered).on(timeout(2)).on(timeout(2));
        let run = run.then(timeout(2), Some(Effect::WakeTask));
        assert_eq!((run.machine.breaker(), run.machine.outages), (BreakerState::Open, 2));
    }

    #[test]
    fn only_the_first_epoch_of_an_initial_server_is_taken_unseen() {
        let identified = |epoch, initial| Event::Identified { epoch, initial };
        let run = Run::new().then(identified(3, false), Some(Effect::Reject));
        assert_eq!(run.machine.epoch, 0);
        let run = run.then(identified(3, true), Some(Effect::Acknowledge(3)));
        let run = run.on(identified(3, true)).on(identified(3, false));
        let run = run.then(identified(4, true), Some(Effect::Reject));
        assert_eq!(run.machine.epoch, 3);
    }

    #[test]
    fn other_events_leave_the_state() {
        let probes = [Event::ProbeAnswered, Event::ProbeFailed];
        let polled = Event::JoinPolled { all_written_back: true };
        let write_back = [Event::WrittenBack { epoch: 9 }, Event::WriteBackFailed { fault: Fault::Lost }];
        assert_ignores(Run::direct, &[probes.as_slice(), &write_back, &[polled]].concat());
        assert_ignores(Run::joining, &[probes.as_slice(), &write_back].concat());
        assert_ignores(Run::writing_back, &[probes.as_slice(), &[polled, Event::Answered]].concat());
        let calls = [Event::Answered, timeout(9), restarted(9), polled];
        assert_ignores(Run::open, &[calls.as_slice(), &write_back].concat());
        assert_ignores(Run::half_open, &[calls.as_slice(), &write_back].concat());
    }

    #[test]
    fn time_away_is_summed() {
        let run = Run::joining();
        assert_eq!(run.machine.total_away(run.now.plus(MS(500))), MS(30), "three steps of 10 ms");
        let (run, _) = run.after(MS(10), restarted(2));
        let later = run.now.plus(Duration::from_millis(5).into());
        assert_eq!((run.machine.total_away(later), run.machine.outages), (MS(35), 2));
    }
}
