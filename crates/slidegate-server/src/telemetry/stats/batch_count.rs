//! Counting of batches of decisions: consecutive equal decisions are added to the counters at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use slidegate::{Decision, Error, Micros, Mode, Source, store::Outcome};

use super::counters::{CoreCounters, Failure, RuleVerdict};
use super::rule_stats::{RuleRow, RuleTable, rule_verdict};
use super::{DecisionStats, shard};
use crate::common::protocol::Protocol;

/// Consecutive equal verdicts of one rule.
struct VerdictRun<'t> {
    row: &'t RuleRow,
    verdict: RuleVerdict,
    source: Source,
    /// False if another rule denied the requests, so that they were not charged.
    charged: bool,
    times: u64,
    /// Usage of the limit with the most permits in use.
    used: u64,
    limit: u64,
}

impl VerdictRun<'_> {
    /// Adds a run to this one and returns true, if it has equal verdicts.
    #[inline]
    fn try_add(&mut self, other: &VerdictRun<'_>) -> bool {
        let alike = std::ptr::eq(self.row, other.row)
            && (self.verdict, self.source, self.charged) == (other.verdict, other.source, other.charged);
        if alike {
            self.times += other.times;
            if other.used > self.used {
                (self.used, self.limit) = (other.used, other.limit);
            }
        }
        alike
    }

    fn count(self, shard: usize, took: Micros) {
        // The value is increased by one, to distinguish a usage of zero from no decision.
        let usage = 1 + self.used.saturating_mul(1_000) / self.limit.max(1);
        let verdict = (self.verdict, self.source);
        let counters = &self.row.counters[shard];
        counters.count(verdict, self.times, took, usage, self.limit);
        if self.verdict == RuleVerdict::Allowed && !self.charged {
            counters.not_charged.fetch_add(self.times, Ordering::Relaxed);
        }
    }
}

impl DecisionStats {
    /// Counts the results of a batch that took the time `took` in total.
    pub(super) fn count<'a>(
        &self,
        protocol: Protocol,
        took: Micros,
        answers: impl ExactSizeIterator<Item = &'a Result<Decision, Error>>,
    ) {
        if !self.enabled {
            return;
        }
        let shard = shard() & (self.shards.len() - 1);
        let counters: &CoreCounters = &self.shards[shard];
        let table = self.table.load();
        let table: &RuleTable = &table;
        let mut sample = counters.sample(answers.len() as u64);
        let mut requests: Option<(bool, Source, u64)> = None;
        let mut rule: Option<VerdictRun<'_>> = None;
        for answer in answers {
            let weight = sample.next();
            let decision = match answer {
                Ok(decision) => decision,
                // The protocol denies such a request: see `grpc::rate_limit`.
                Err(error) if protocol == Protocol::Grpc && error.is_too_costly() => continue,
                Err(error) => {
                    let unavailable = error.is_unavailable();
                    let failure = if unavailable { Failure::Unavailable } else { Failure::Invalid };
                    counters.failures[protocol as usize][failure as usize].fetch_add(1, Ordering::Relaxed);
                    continue;
                }
            };
            let (source, current) = (decision.source(), Arc::ptr_eq(&table.rules, decision.rules()));
            let allowed = decision.allowed();
            for limit in decision.limits() {
                let Some(row) = table.row(current, &limit) else { continue };
                let verdict = rule_verdict(&limit);
                let charged = allowed || limit.outcome() == Outcome::Charged;
                let (used, max) = (limit.used(), limit.limit());
                let run = VerdictRun { row, verdict, source, charged, times: 1, used, limit: max };
                if !rule.as_mut().is_some_and(|last| last.try_add(&run))
                    && let Some(run) = rule.replace(run)
                {
                    run.count(shard, took);
                }
                if limit.mode() == Mode::Shadow
                    && let Some(change) = decision.shadow_change(&limit)
                {
                    row.counters[shard].changes[change as usize].fetch_add(1, Ordering::Relaxed);
                }
                if let Some(weight) = weight {
                    row.top.lock().add(limit.key(), verdict != RuleVerdict::Allowed, weight);
                    self.recent.add(limit.key());
                }
            }
            if decision.unmatched().is_some() {
                counters.unmatched[protocol as usize].fetch_add(1, Ordering::Relaxed);
            }
            match &mut requests {
                Some((a, s, times)) if (*a, *s) == (allowed, source) => *times += 1,
                _ => {
                    if let Some((allowed, source, times)) = requests.replace((allowed, source, 1)) {
                        counters.count_decisions(protocol, allowed, source, times, took);
                    }
                }
            }
        }
        if let Some(run) = rule {
            run.count(shard, took);
        }
        if let Some((allowed, source, times)) = requests {
            counters.count_decisions(protocol, allowed, source, times, took);
        }
    }

    /// Counts a request that was denied without a rule, because it carried a limit of 0.
    pub(crate) fn count_denied(&self, protocol: Protocol) {
        if self.enabled {
            let shard = shard() & (self.shards.len() - 1);
            self.shards[shard].count_decisions(protocol, false, Source::Blocked, 1, Micros::ZERO);
        }
    }
}
