//! Warnings about requests that no rule matches.

use std::sync::atomic::{AtomicU64, Ordering};

use slidegate::{Decision, Micros, Request, Unmatched};

/// Shortest time between two warnings.
const MIN_INTERVAL: Micros = Micros::from_secs(60);

/// Upper bound on attribute names in a warning.
const MAX_NAMES: usize = 8;

/// Number of requests that no rule matches, since the last warning about them.
#[derive(Default)]
pub(crate) struct UnmatchedLog {
    requests: AtomicU64,
    /// Time from which the next warning may be logged, in microseconds.
    next: AtomicU64,
}

impl UnmatchedLog {
    /// Logs a warning if this request matches no rule, `unmatched` is not `allow`, and the last warning is old enough.
    #[inline]
    pub(super) fn note(&self, now: impl Fn() -> Micros, request: &Request<'_>, decision: &Decision) {
        if let Some(policy @ (Unmatched::Warn | Unmatched::Deny)) = decision.unmatched() {
            self.warn(now(), request, policy);
        }
    }

    #[cold]
    fn warn(&self, now: Micros, request: &Request<'_>, policy: Unmatched) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let next = self.next.load(Ordering::Relaxed);
        let due = now.get() >= next;
        let after = now.get().saturating_add(MIN_INTERVAL.get());
        // If several threads find that a warning is due, only one of them logs it.
        if !due || self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let requests = self.requests.swap(0, Ordering::Relaxed);
        tracing::warn!("{}", message(requests, request, policy));
    }
}

/// Returns the warning. It contains attribute names but no values, which are private to clients. Names were validated:
/// at most 64 letters and digits.
fn message(requests: u64, request: &Request<'_>, policy: Unmatched) -> String {
    let attributes = request.attributes().unwrap_or_default();
    let names: Vec<&str> = attributes.iter().take(MAX_NAMES).map(|(name, _)| *name).collect();
    let more = match attributes.len().saturating_sub(MAX_NAMES) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let outcome = if policy == Unmatched::Deny { "denied" } else { "allowed" };
    let policy = policy.as_str();
    format!(
        "no rule matches {requests} requests since the last warning; they were {outcome} (`unmatched: {policy}`); the last \
         one has the attributes [{}]{more}: `slidegate explain` says why no rule matches",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_has_names_but_no_values() {
        let names: Vec<String> = (0..10).map(|n| format!("a{n}")).collect();
        let request = Request::new(names.iter().map(|name| (name.as_str(), "secret")));
        assert_eq!(
            message(7, &request, Unmatched::Warn),
            "no rule matches 7 requests since the last warning; they were allowed (`unmatched: warn`); the last one has \
             the attributes [a0, a1, a2, a3, a4, a5, a6, a7] and 2 more: `slidegate explain` says why no rule matches"
        );
    }
}
