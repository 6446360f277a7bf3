//! Span of every decision and of every call that follows one, for logs at `debug` and for OpenTelemetry.
//!
//! If neither is enabled, the cost is one load of a number that is never written: see [`enabled`].

#[cfg(feature = "otel")]
mod export;
mod trace_context;

use slidegate::{Decision, Error, Key, Micros};
use tracing::Span;
use tracing::field::Empty;
use tracing::level_filters::LevelFilter;

#[cfg(feature = "otel")]
pub(crate) use self::export::{ExportArgs, ExportHandle};
pub(crate) use self::trace_context::TraceContext;
use super::log;
use crate::common::protocol::Protocol;

/// Target of the decision spans.
const TARGET: &str = "slidegate::decision";

/// Returns true if decision spans are logged or exported.
#[inline]
pub(crate) fn enabled() -> bool {
    LevelFilter::current() >= LevelFilter::DEBUG
}

/// Span of a decision in progress. It ends on drop.
pub(crate) struct DecisionSpan {
    span: Span,
    /// True if keys are recorded in plain text.
    plain: bool,
    ended: bool,
}

impl DecisionSpan {
    /// Starts a span. `kind` is the name of the operation, such as `acquire`.
    pub(crate) fn start(protocol: Protocol, kind: &'static str, caller: TraceContext, plain: bool) -> Self {
        let span = tracing::debug_span!(
            target: TARGET, parent: None, "decision",
            otel.kind = "server", otel.status_code = Empty,
            protocol = protocol.as_str(), kind, requests = Empty, permits = Empty, allowed = Empty, denied_by = Empty,
            source = Empty, outcome = Empty, error = Empty, keys = Empty, took_us = Empty,
        );
        caller.adopt(&span);
        DecisionSpan { span, plain, ended: false }
    }

    /// Ends the span with the result of one request.
    pub(crate) fn end(self, took: Micros, answer: &Result<Decision, Error>) {
        self.end_together(took, answer.as_ref().map(std::slice::from_ref));
    }

    /// Ends the span with the result of requests that were decided together.
    pub(crate) fn end_together(mut self, took: Micros, answer: Result<&[Decision], &Error>) {
        self.ended = true;
        match answer {
            Ok(decisions) => self.record_decisions(decisions),
            Err(error) => self.record_failure(failure(error)),
        }
        self.span.record("took_us", took.get());
    }

    /// Ends the span with the outcome of a call that follows a decision about these keys.
    pub(crate) fn end_follow_up<'k>(
        mut self,
        took: Micros,
        outcome: Result<&'static str, &Error>,
        keys: impl Iterator<Item = &'k Key>,
    ) {
        self.ended = true;
        match outcome {
            Ok(outcome) => {
                self.span.record("outcome", outcome);
            }
            Err(error) => self.record_failure(failure(error)),
        }
        self.record_keys(keys);
        self.span.record("took_us", took.get());
    }

    fn record_decisions(&self, decisions: &[Decision]) {
        let Some(first) = decisions.first() else { return };
        if decisions.len() > 1 {
            self.span.record("requests", decisions.len() as u64);
        }
        if let Some(limit) = first.limits().next() {
            self.span.record("permits", limit.cost());
        }
        let denied = decisions.iter().find(|decision| !decision.allowed());
        self.span.record("allowed", denied.is_none());
        if let Some(rule) = denied.and_then(Decision::denied_by) {
            self.span.record("denied_by", rule);
        }
        self.span.record("source", denied.unwrap_or(first).source().as_str());
        self.record_keys(decisions.iter().flat_map(Decision::limits).map(|limit| limit.key()));
    }

    fn record_keys<'k>(&self, keys: impl Iterator<Item = &'k Key>) {
        let keys: Vec<_> = keys.map(|key| log::display_key(key, self.plain)).collect();
        if !keys.is_empty() {
            // Keys contain no spaces, so a space can separate them.
            self.span.record("keys", keys.join(" "));
        }
    }

    fn record_failure(&self, reason: &str) {
        self.span.record("error", reason);
        self.span.record("otel.status_code", "ERROR");
    }
}

impl Drop for DecisionSpan {
    fn drop(&mut self) {
        if !self.ended {
            // The caller has disconnected, or its deadline has passed.
            self.record_failure("given-up");
        }
    }
}

/// Returns the kind of an error. The message is not recorded, because it may contain input of the caller.
fn failure(error: &Error) -> &'static str {
    match error.fault() {
        Some(fault) => fault.as_str(),
        None if error.is_too_costly() => "permits_exceed_limit",
        None => "invalid_request",
    }
}
