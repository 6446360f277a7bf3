//! Calls that follow a decision: they are counted, timed and traced as decisions are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slidegate::{Error, Micros, Request, Reservation, Settled};

use super::counters::{DurationCounters, Durations};
use super::{DecisionStats, Instrumented};
use crate::common::protocol::Protocol;
use crate::telemetry::trace::DecisionSpan;

slidegate::words! {
    /// Call about an earlier decision.
    pub(crate) enum FollowUp {
        Settle = "settle",
        Release = "release",
        Extend = "extend",
        Report = "report",
    }
}

slidegate::words! {
    /// Result of a follow-up.
    pub(crate) enum FollowUpOutcome {
        /// The admission was corrected, or a rule uses the report.
        Done = "done",
        /// The admission was corrected before.
        Already = "already",
        /// The admission no longer counts.
        Gone = "gone",
        /// No adaptive rule uses the report.
        Ignored = "ignored",
        /// The call is invalid.
        Invalid = "invalid",
        /// The store could not be reached.
        Unavailable = "unavailable",
    }
}

impl From<Settled> for FollowUpOutcome {
    fn from(settled: Settled) -> Self {
        match settled {
            Settled::Done => FollowUpOutcome::Done,
            Settled::Already => FollowUpOutcome::Already,
            Settled::Gone => FollowUpOutcome::Gone,
        }
    }
}

/// Change to the admission that a reservation names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReservationChange {
    /// Sets the actual cost.
    Settle { permits: u64 },
    /// Gives held permits back.
    Release,
    /// Holds permits for another window.
    Extend,
}

impl ReservationChange {
    fn follow_up(self) -> FollowUp {
        match self {
            ReservationChange::Settle { .. } => FollowUp::Settle,
            ReservationChange::Release => FollowUp::Release,
            ReservationChange::Extend => FollowUp::Extend,
        }
    }
}

impl Instrumented<'_> {
    /// Changes the admission that the signed text `reservation` names.
    pub(crate) async fn change(
        &self,
        reservation: &str,
        change: ReservationChange,
    ) -> Result<Settled, Error> {
        let follow_up = change.follow_up();
        let (span, since) = (self.span(follow_up.as_str()), self.stats.now());
        let verified = self.limiter.verify(reservation);
        let answer = match (&verified, change) {
            (Err(error), _) => Err(error.clone()),
            (Ok(reservation), ReservationChange::Settle { permits }) => {
                self.limiter.settle(reservation, permits).await
            }
            (Ok(reservation), ReservationChange::Release) => self.limiter.release(reservation).await,
            (Ok(reservation), ReservationChange::Extend) => self.limiter.extend(reservation).await,
        };
        let outcome = answer.as_ref().map(|settled| FollowUpOutcome::from(*settled));
        self.finish(follow_up, since, span, outcome, verified.as_ref().ok());
        answer
    }

    /// Gives the latency and the success of an allowed request to its adaptive rules. Returns the number of those rules.
    pub(crate) fn report(&self, request: Request<'_>, latency: Duration, ok: bool) -> Result<usize, Error> {
        let (span, since) = (self.span(FollowUp::Report.as_str()), self.stats.now());
        let answer = self.limiter.report(request, latency, ok);
        let outcome = answer.as_ref().map(|rules| match rules {
            0 => FollowUpOutcome::Ignored,
            _ => FollowUpOutcome::Done,
        });
        self.finish(FollowUp::Report, since, span, outcome, None);
        answer
    }

    fn finish(
        &self,
        follow_up: FollowUp,
        since: Micros,
        span: Option<DecisionSpan>,
        outcome: Result<FollowUpOutcome, &Error>,
        reservation: Option<&Reservation>,
    ) {
        let took = self.stats.now().since(since);
        let counted = outcome.unwrap_or_else(|error| match error.is_unavailable() {
            true => FollowUpOutcome::Unavailable,
            false => FollowUpOutcome::Invalid,
        });
        self.stats.count_follow_up(self.protocol, follow_up, counted, took);
        if let Some(span) = span {
            let keys = reservation.into_iter().flat_map(Reservation::keys);
            span.end_follow_up(took, outcome.map(FollowUpOutcome::as_str), keys);
        }
    }
}

/// Counters of one core for one kind of follow-up.
#[derive(Default)]
pub(super) struct FollowUpCounters {
    outcomes: [AtomicU64; FollowUpOutcome::ALL.len()],
    durations: DurationCounters,
}

/// Numbers of follow-ups by outcome, in the order of [`FollowUpOutcome::ALL`], and their durations.
type FollowUpTotals = ([u64; FollowUpOutcome::ALL.len()], Durations);

impl DecisionStats {
    fn count_follow_up(&self, protocol: Protocol, kind: FollowUp, outcome: FollowUpOutcome, took: Micros) {
        if self.enabled {
            let counters = &self.shards[self.shard()].follow_ups[protocol as usize][kind as usize];
            counters.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
            counters.durations.add(1, took);
        }
    }

    /// Returns the follow-ups of one kind, summed over all cores.
    pub(crate) fn follow_ups(&self, protocol: Protocol, kind: FollowUp) -> FollowUpTotals {
        let (mut outcomes, mut durations) = FollowUpTotals::default();
        for shard in &self.shards {
            let counters = &shard.follow_ups[protocol as usize][kind as usize];
            counters.durations.add_to(&mut durations);
            for (all, outcome) in outcomes.iter_mut().zip(&counters.outcomes) {
                *all += outcome.load(Ordering::Relaxed);
            }
        }
        (outcomes, durations)
    }
}
