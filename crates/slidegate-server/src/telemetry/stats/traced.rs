//! Tracing and recording of the decisions in [`Instrumented`].

use std::slice;

use slidegate::{Decision, Error, Request};

use super::Instrumented;
use crate::common::protocol::Protocol;
use crate::telemetry::trace::{self, DecisionSpan};

impl Instrumented<'_> {
    pub(super) fn span(&self, kind: &'static str) -> Option<DecisionSpan> {
        trace::enabled().then(|| DecisionSpan::start(self.protocol, kind, self.caller, self.log_keys))
    }

    /// Records the requests and their results, if a recording is active.
    pub(super) fn record(&self, requests: &[Request<'_>], answers: &[Result<Decision, Error>]) {
        // The gRPC server retries such a request once: see `grpc::rate_limit`.
        let again = |answer: &Result<_, Error>| answer.as_ref().is_err_and(Error::is_too_costly);
        if self.stats.recorder.is_active() && !(self.protocol == Protocol::Grpc && answers.iter().any(again))
        {
            self.stats.recorder.write(self.stats.now(), requests, answers);
        }
    }

    /// Variant of [`Instrumented::acquire`] for decisions that are traced or recorded.
    pub(super) async fn traced_acquire(&self, request: &Request<'_>) -> Result<Decision, Error> {
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
        let took = instrumented.stats.now().since(since);
        instrumented.stats.count(instrumented.protocol, took, std::iter::once(&answer));
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
