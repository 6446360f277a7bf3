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

    /// Peeks are traced but not counted, because nothing is decided.
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
                // The protocol retries these requests in parts: see `resp::connection`.
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
