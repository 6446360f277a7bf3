//! Limiter wrapper that counts, traces and records every decision of a protocol. See `follow_up` for the calls after
//! a decision.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use slidegate::{Decision, Error, Limiter, Micros, Mode, Request, Source, store::Outcome};

use super::DecisionStats;
use super::counters::{CoreCounters, Failure, RuleVerdict};
use super::rule_stats::{RuleRow, RuleTable};
use crate::common::protocol::Protocol;
use crate::store::AnyStore;
use crate::telemetry::trace::{self, TraceContext};

/// Limiter of one protocol, with statistics.
#[derive(Clone, Copy)]
pub(crate) struct Instrumented<'g> {
    pub(crate) limiter: &'g Limiter<AnyStore>,
    pub(crate) stats: &'g DecisionStats,
    pub(crate) protocol: Protocol,
    pub(crate) log_keys: bool,
    /// Trace of the caller, which the decisions belong to.
    pub(crate) caller: TraceContext,
}

impl Instrumented<'_> {
    /// Returns true if single decisions are traced or recorded.
    #[inline]
    fn is_traced(&self) -> bool {
        trace::enabled() || self.stats.recorder.is_active()
    }

    /// Makes the decisions part of the caller's trace.
    pub(crate) fn called_by(self, caller: TraceContext) -> Self {
        Instrumented { caller, ..self }
    }

    pub(crate) async fn acquire(&self, request: &Request<'_>) -> Result<Decision, Error> {
        if self.is_traced() {
            // The future is boxed, so that the future of a plain decision stays small.
            return Box::pin(self.traced_acquire(request)).await;
        }
        if !self.stats.enabled {
            let answer = self.limiter.acquire(request).await;
            self.note_unmatched(request, &answer);
            return answer;
        }
        let since = self.stats.now();
        let answer = self.limiter.acquire(request).await;
        self.stats.count(self.protocol, self.stats.now().since(since), std::iter::once(&answer));
        self.note_unmatched(request, &answer);
        answer
    }

    /// Logs that no rule matches a request, at a bounded rate.
    #[inline]
    pub(super) fn note_unmatched(&self, request: &Request<'_>, answer: &Result<Decision, Error>) {
        if let Ok(decision) = answer {
            self.stats.unmatched.note(|| self.stats.now(), request, decision);
        }
    }

    /// Reads the state. A peek is traced but not counted, because nothing is decided.
    pub(crate) async fn peek(&self, request: &Request<'_>) -> Result<Decision, Error> {
        let Some(span) = self.span("peek") else { return self.limiter.peek(request).await };
        let since = self.stats.now();
        let answer = self.limiter.peek(request).await;
        span.end(self.stats.now().since(since), &answer);
        answer
    }

    /// Each request has its own span: the requests of a batch are independent.
    pub(crate) async fn acquire_many(
        &self,
        requests: &[Request<'_>],
    ) -> Result<Vec<Result<Decision, Error>>, Error> {
        let spans: Vec<_> = requests.iter().filter_map(|_| self.span("acquire")).collect();
        let since = self.stats.now();
        let answers = self.limiter.acquire_many(requests).await;
        let took = self.stats.now().since(since);
        match &answers {
            Ok(answers) => {
                self.count_all(took, requests, answers);
                self.record(requests, answers);
                spans.into_iter().zip(answers).for_each(|(span, answer)| span.end(took, answer));
            }
            Err(error) => {
                // The RESP server retries these requests in parts: see `resp::batch`.
                if self.protocol != Protocol::Resp || !error.is_too_many_checks() {
                    self.count_failures(took, requests.len(), error);
                }
                spans.into_iter().for_each(|span| span.end_together(took, Err(error)));
            }
        }
        answers
    }

    fn count_all(&self, took: Micros, requests: &[Request<'_>], answers: &[Result<Decision, Error>]) {
        self.stats.count(self.protocol, took, answers.iter());
        requests.iter().zip(answers).for_each(|(request, answer)| self.note_unmatched(request, answer));
    }

    fn count_failures(&self, took: Micros, times: usize, error: &Error) {
        self.stats.count(self.protocol, took, vec![Err(error.clone()); times].iter());
    }

    /// Each request counts as one decision. All requests share one span: they are allowed or denied together.
    pub(crate) async fn acquire_together(&self, requests: &[Request<'_>]) -> Result<Vec<Decision>, Error> {
        let (span, since) = (self.span("acquire"), self.stats.now());
        let decisions = self.limiter.acquire_together(requests).await;
        let took = self.stats.now().since(since);
        let decisions = match decisions {
            Ok(decisions) => {
                if self.is_traced() {
                    self.stats.recorder.write_together(self.stats.now(), requests, &decisions);
                }
                let answers: Vec<Result<Decision, Error>> = decisions.into_iter().map(Ok).collect();
                self.count_all(took, requests, &answers);
                answers.into_iter().collect()
            }
            Err(error) => {
                self.count_failures(took, 1, &error);
                Err(error)
            }
        };
        if let Some(span) = span {
            span.end_together(took, decisions.as_deref());
        }
        decisions
    }
}

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
    /// If `other` differs from this run only in number and usage, adds it to this run and returns true.
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
    /// Counts the results of a batch that took the time `took` in total. Consecutive equal decisions are added to the counters at once.
    pub(super) fn count<'a>(
        &self,
        protocol: Protocol,
        took: Micros,
        answers: impl ExactSizeIterator<Item = &'a Result<Decision, Error>>,
    ) {
        if !self.enabled {
            return;
        }
        let shard = self.shard();
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
                // The gRPC server denies such a request instead of failing it: see `grpc::rate_limit`.
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
                let verdict = match (limit.outcome().denies(), limit.mode()) {
                    (false, _) => RuleVerdict::Allowed,
                    (true, Mode::Enforce) => RuleVerdict::Denied,
                    (true, _) => RuleVerdict::WouldDeny,
                };
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
            self.shards[self.shard()].count_decisions(protocol, false, Source::Blocked, 1, Micros::ZERO);
        }
    }
}
