//! Limiter wrapper that counts, traces and records every decision of a protocol. See `follow_up` for the calls after
//! a decision.

use slidegate::{Decision, Error, Limiter, Micros, Request};

use super::DecisionStats;
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
            return self.traced_acquire(request).await;
        }
        if !self.stats.enabled {
            let answer = self.limiter.acquire(request).await;
            self.note_unmatched(request, &answer);
            return answer;
        }
        let since = self.stats.now();
        let answer = self.limiter.acquire(request).await;
        self.stats.count_since(self.protocol, since, &answer);
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

    /// Peeks are traced but not counted, because nothing is decided.
    pub(crate) async fn peek(&self, request: &Request<'_>) -> Result<Decision, Error> {
        if trace::enabled() {
            return self.traced_peek(request).await;
        }
        self.limiter.peek(request).await
    }

    pub(crate) async fn acquire_many(
        &self,
        requests: &[Request<'_>],
    ) -> Result<Vec<Result<Decision, Error>>, Error> {
        if self.is_traced() {
            return self.traced_acquire_many(requests).await;
        }
        let since = self.stats.now();
        let answers = self.limiter.acquire_many(requests).await;
        self.count_many(self.stats.now().since(since), requests, &answers);
        answers
    }

    pub(super) fn count_many(
        &self,
        took: Micros,
        requests: &[Request<'_>],
        answers: &Result<Vec<Result<Decision, Error>>, Error>,
    ) {
        match answers {
            Ok(answers) => {
                self.stats.count(self.protocol, took, answers.iter());
                requests
                    .iter()
                    .zip(answers)
                    .for_each(|(request, answer)| self.note_unmatched(request, answer));
            }
            // The protocol retries these requests in parts: see `resp::connection`.
            Err(error) if self.protocol == Protocol::Resp && error.is_too_many_checks() => {}
            Err(error) => self.count_failures(took, requests.len(), error),
        }
    }

    fn count_failures(&self, took: Micros, times: usize, error: &Error) {
        self.stats.count(self.protocol, took, vec![Err(error.clone()); times].iter());
    }

    /// Each request counts as one decision.
    pub(crate) async fn acquire_together(&self, requests: &[Request<'_>]) -> Result<Vec<Decision>, Error> {
        if self.is_traced() {
            return self.traced_acquire_together(requests).await;
        }
        let since = self.stats.now();
        let answers = self.limiter.acquire_together(requests).await;
        self.count_together(self.stats.now().since(since), requests, answers)
    }

    pub(super) fn count_together(
        &self,
        took: Micros,
        requests: &[Request<'_>],
        answers: Result<Vec<Decision>, Error>,
    ) -> Result<Vec<Decision>, Error> {
        match answers {
            Ok(decisions) => {
                let answers: Vec<Result<Decision, Error>> = decisions.into_iter().map(Ok).collect();
                self.stats.count(self.protocol, took, answers.iter());
                requests
                    .iter()
                    .zip(&answers)
                    .for_each(|(request, answer)| self.note_unmatched(request, answer));
                answers.into_iter().collect()
            }
            Err(error) => {
                self.count_failures(took, 1, &error);
                Err(error)
            }
        }
    }
}
