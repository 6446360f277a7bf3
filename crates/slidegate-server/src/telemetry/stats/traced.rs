//! Traced and recorded variants of the decisions in [`Instrumented`].
//!
//! The futures are boxed, so that the plain variants stay small.

use std::future::Future;
use std::pin::Pin;
use std::slice;

use slidegate::{Decision, Error, Request};

use super::Instrumented;
use crate::common::protocol::Protocol;
use crate::telemetry::trace::{self, DecisionSpan};

type TracedDecision<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

impl Instrumented<'_> {
    pub(super) fn span(&self, kind: &'static str) -> Option<DecisionSpan> {
        trace::enabled().then(|| DecisionSpan::start(self.protocol, kind, self.caller, self.log_keys))
    }

    /// Records the requests and their results, if a recording is active.
    fn record(&self, requests: &[Request<'_>], answers: &[Result<Decision, Error>]) {
        // The protocol retries such a request once: see `grpc::rate_limit`.
        let again = |answer: &Result<_, Error>| answer.as_ref().is_err_and(Error::is_too_costly);
        if self.stats.recorder.is_active() && !(self.protocol == Protocol::Grpc && answers.iter().any(again))
        {
            self.stats.recorder.write(self.stats.now(), requests, answers);
        }
    }

    pub(super) fn traced_acquire<'a>(&'a self, request: &'a Request<'_>) -> TracedDecision<'a, Decision> {
        Box::pin(async move {
            let (span, since) = (self.span("acquire"), self.stats.now());
            let answer = self.limiter.acquire(request).await;
            let took = self.stats.now().since(since);
            self.record(slice::from_ref(request), slice::from_ref(&answer));
            self.stats.count(self.protocol, took, std::iter::once(&answer));
            self.note_unmatched(request, &answer);
            if let Some(span) = span {
                span.end(took, &answer);
            }
            answer
        })
    }

    pub(super) fn traced_peek<'a>(&'a self, request: &'a Request<'_>) -> TracedDecision<'a, Decision> {
        Box::pin(async move {
            let (span, since) = (self.span("peek"), self.stats.now());
            let answer = self.limiter.peek(request).await;
            if let Some(span) = span {
                span.end(self.stats.now().since(since), &answer);
            }
            answer
        })
    }

    /// Each request has its own span: the requests of a batch are independent.
    pub(super) fn traced_acquire_many<'a, 'r: 'a>(
        &'a self,
        requests: &'a [Request<'r>],
    ) -> TracedDecision<'a, Vec<Result<Decision, Error>>> {
        Box::pin(async move {
            let spans: Vec<_> = requests.iter().filter_map(|_| self.span("acquire")).collect();
            let since = self.stats.now();
            let answers = self.limiter.acquire_many(requests).await;
            let took = self.stats.now().since(since);
            self.count_many(took, requests, &answers);
            match &answers {
                Ok(answers) => {
                    self.record(requests, answers);
                    spans.into_iter().zip(answers).for_each(|(span, answer)| span.end(took, answer))
                }
                Err(error) => spans.into_iter().for_each(|span| span.end_together(took, Err(error))),
            }
            answers
        })
    }

    /// All requests share one span: they are allowed or denied together.
    pub(super) fn traced_acquire_together<'a, 'r: 'a>(
        &'a self,
        requests: &'a [Request<'r>],
    ) -> TracedDecision<'a, Vec<Decision>> {
        Box::pin(async move {
            let (span, since) = (self.span("acquire"), self.stats.now());
            let answers = self.limiter.acquire_together(requests).await;
            let took = self.stats.now().since(since);
            if let Ok(decisions) = &answers {
                self.stats.recorder.write_together(self.stats.now(), requests, decisions);
            }
            let answers = self.count_together(took, requests, answers);
            if let Some(span) = span {
                span.end_together(took, answers.as_deref());
            }
            answers
        })
    }
}

#[cfg(test)]
mod tests {
    use slidegate::{MemoryStore, Rules};

    use super::*;
    use crate::app::state::AppState;
    use crate::store::AnyStore;

    async fn untraced(instrumented: &Instrumented<'_>, request: &Request<'_>) -> Result<Decision, Error> {
        if !instrumented.stats.enabled {
            let answer = instrumented.limiter.acquire(request).await;
            instrumented.note_unmatched(request, &answer);
            return answer;
        }
        let since = instrumented.stats.now();
        let answer = instrumented.limiter.acquire(request).await;
        instrumented.stats.count_since(instrumented.protocol, since, &answer);
        instrumented.note_unmatched(request, &answer);
        answer
    }

    #[test]
    fn tracing_does_not_enlarge_plain_decisions() {
        assert!(!trace::enabled());
        let app = AppState::new(AnyStore::Memory(MemoryStore::new()), Rules::new([]).unwrap(), "");
        let instrumented = app.instrumented(Protocol::Http);
        let request = Request::new([]);
        let (with, without) = (instrumented.acquire(&request), untraced(&instrumented, &request));
        assert_eq!(size_of_val(&with), size_of_val(&without));
    }
}
