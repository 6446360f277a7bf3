//! The same decisions with a span around each, when somebody looks at those: boxed, so that the others need no room for it.

use std::future::Future;
use std::pin::Pin;

use slidegate::{Decision, Error, Request};

use super::Deciding;
use crate::trace::{DecisionSpan, Kind};

type Traced<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

impl Deciding<'_> {
    fn span(&self, kind: Kind) -> DecisionSpan {
        DecisionSpan::start(self.door, kind, self.caller, self.log_keys)
    }

    pub(super) fn traced_acquire<'a, 'r: 'a>(&'a self, request: Request<'r>) -> Traced<'a, Decision> {
        Box::pin(async move {
            let (span, since) = (self.span(Kind::Acquire), self.record.now());
            let answer = self.limiter.acquire(request).await;
            let took = self.record.now().since(since);
            self.record.count(self.door, took, std::iter::once(&answer));
            span.end(took, &answer);
            answer
        })
    }

    pub(super) fn traced_peek<'a, 'r: 'a>(&'a self, request: Request<'r>) -> Traced<'a, Decision> {
        Box::pin(async move {
            let (span, since) = (self.span(Kind::Peek), self.record.now());
            let answer = self.limiter.peek(request).await;
            span.end(self.record.now().since(since), &answer);
            answer
        })
    }

    /// A span for each: what came together was asked apart.
    pub(super) fn traced_acquire_many<'a, 'r: 'a>(
        &'a self,
        requests: &'a [Request<'r>],
    ) -> Traced<'a, Vec<Result<Decision, Error>>> {
        Box::pin(async move {
            let spans: Vec<_> = requests.iter().map(|_| self.span(Kind::Acquire)).collect();
            let since = self.record.now();
            let answers = self.limiter.acquire_many(requests).await;
            let took = self.record.now().since(since);
            self.count_many(took, requests, &answers);
            match &answers {
                Ok(answers) => {
                    spans.into_iter().zip(answers).for_each(|(span, answer)| span.end(took, answer))
                }
                Err(error) => spans.into_iter().for_each(|span| span.end_together(took, Err(error))),
            }
            answers
        })
    }

    /// One span: they are allowed or refused as one.
    pub(super) fn traced_acquire_together<'a, 'r: 'a>(
        &'a self,
        requests: &'a [Request<'r>],
    ) -> Traced<'a, Vec<Decision>> {
        Box::pin(async move {
            let (span, since) = (self.span(Kind::Acquire), self.record.now());
            let answers = self.limiter.acquire_together(requests).await;
            let took = self.record.now().since(since);
            let answers = self.count_together(took, answers);
            span.end_together(took, answers.as_deref());
            answers
        })
    }
}

#[cfg(test)]
mod tests {
    use slidegate::{MemoryStore, Rules};

    use super::*;
    use crate::gate::Gate;
    use crate::store::AnyStore;
    use crate::tls::Protocol;
    use crate::trace;

    async fn untraced(deciding: &Deciding<'_>, request: Request<'_>) -> Result<Decision, Error> {
        if !deciding.record.on {
            return deciding.limiter.acquire(request).await;
        }
        let since = deciding.record.now();
        let answer = deciding.limiter.acquire(request).await;
        deciding.record.took(deciding.door, since, &answer);
        answer
    }

    #[test]
    fn who_does_not_look_pays_nothing() {
        assert!(!trace::wanted());
        let gate = Gate::new(AnyStore::Memory(MemoryStore::new()), Rules::new([]).unwrap(), "");
        let deciding = gate.deciding(Protocol::Http);
        let (with, without) = (deciding.acquire(Request::new([])), untraced(&deciding, Request::new([])));
        assert_eq!(size_of_val(&with), size_of_val(&without));
    }
}
