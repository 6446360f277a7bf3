//! Counting of batches of decisions: consecutive equal decisions are added to the counters at once.

use std::sync::Arc;

use slidegate::{Decision, Error, Limit, Micros, Mode, Source, store::Outcome};

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

impl<'t> VerdictRun<'t> {
    fn new(row: &'t RuleRow, verdict: RuleVerdict, source: Source, charged: bool, limit: &Limit<'_>) -> Self {
        VerdictRun { row, verdict, source, charged, times: 1, used: limit.used(), limit: limit.limit() }
    }

    /// Adds a verdict to the run and returns true, if it equals the verdicts of the run.
    #[inline]
    fn try_add(
        &mut self,
        row: &RuleRow,
        verdict: RuleVerdict,
        source: Source,
        charged: bool,
        limit: &Limit<'_>,
    ) -> bool {
        let alike = std::ptr::eq(self.row, row)
            && (self.verdict, self.source, self.charged) == (verdict, source, charged);
        if alike {
            self.times += 1;
            if limit.used() > self.used {
                (self.used, self.limit) = (limit.used(), limit.limit());
            }
        }
        alike
    }

    fn count(self, shard: usize, took: Micros) {
        // Plus one, to distinguish no decision from a usage of zero.
        let usage = 1 + self.used.saturating_mul(1_000) / self.limit.max(1);
        let verdict = (self.verdict, self.source);
        let counters = &self.row.counters[shard];
        counters.count(verdict, self.times, took, usage, self.limit);
        if self.verdict == RuleVerdict::Allowed && !self.charged {
            counters.count_not_charged(self.times);
        }
    }
}

impl DecisionStats {
    #[inline]
    pub(super) fn count_since(&self, protocol: Protocol, since: Micros, answer: &Result<Decision, Error>) {
        self.count(protocol, self.now().since(since), std::iter::once(answer));
    }

    /// Counts the results of a batch that took `took` in all.
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
                    counters.count_failure(
                        protocol,
                        if unavailable { Failure::Unavailable } else { Failure::Invalid },
                    );
                    continue;
                }
            };
            let (source, current) = (decision.source(), Arc::ptr_eq(&table.rules, decision.rules()));
            let allowed = decision.allowed();
            for limit in decision.limits() {
                let Some(row) = table.row(current, &limit) else { continue };
                let verdict = rule_verdict(&limit);
                let charged = allowed || limit.outcome() == Outcome::Charged;
                if !rule.as_mut().is_some_and(|run| run.try_add(row, verdict, source, charged, &limit))
                    && let Some(run) = rule.replace(VerdictRun::new(row, verdict, source, charged, &limit))
                {
                    run.count(shard, took);
                }
                if limit.mode() == Mode::Shadow
                    && let Some(change) = decision.shadow_change(&limit)
                {
                    row.counters[shard].change(change);
                }
                if let Some(weight) = weight {
                    row.top.lock().add(limit.key(), verdict != RuleVerdict::Allowed, weight);
                    self.recent.add(limit.key());
                }
            }
            if decision.unmatched().is_some() {
                counters.add_unmatched(protocol);
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

    /// Counts a request that was denied without a rule, because it brought a limit of 0.
    pub(crate) fn count_denied(&self, protocol: Protocol) {
        if self.enabled {
            let shard = shard() & (self.shards.len() - 1);
            self.shards[shard].count_decisions(protocol, false, Source::Blocked, 1, Micros::ZERO);
        }
    }
}
