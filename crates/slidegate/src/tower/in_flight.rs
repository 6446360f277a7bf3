//! A request that was admitted: reports, settles and releases when it ends.

use std::sync::Arc;

use bytes::BytesMut;
use http::Response;

use super::ResponseBody;
use super::background::{FinalCorrection, Runtime, settle_with_retries};
use super::permit_guard::PermitGuard;
use super::shared::{Shared, failed};
use crate::http::headers;
use crate::{Decision, Micros, Store};

pub(super) struct InFlight<S: Store + 'static> {
    shared: Arc<Shared<S>>,
    decision: Arc<Decision>,
    guard: Option<PermitGuard>,
    since: Micros,
    /// True while the service is being called or polled. If the value is dropped while this is true, the service has
    /// panicked.
    pub(super) running: bool,
}

impl<S: Store + 'static> InFlight<S> {
    pub(super) fn new(shared: Arc<Shared<S>>, decision: Arc<Decision>) -> Self {
        let guard = if decision.holds() { guard_permits(&shared, &decision) } else { None };
        let since = shared.limiter.clock().now();
        InFlight { shared, decision, guard, since, running: true }
    }

    /// Handles the head of a response. Held permits move to its body.
    pub(super) fn respond<B>(mut self, response: Response<B>) -> Response<ResponseBody<B>> {
        let (mut head, body) = response.into_parts();
        self.report(!failed(&head));
        if let Some(cost) = self.shared.cost(&head) {
            self.settle(cost);
        }
        if !self.shared.options.headers_on_denials_only {
            let mut text = BytesMut::with_capacity(128);
            headers::add(&self.decision, self.shared.options.older_headers, &mut text, &mut head.headers);
        }
        Response::from_parts(head, ResponseBody::from_service(body, self.guard.take()))
    }

    /// Handles an error of the service.
    pub(super) fn failed(&self) {
        self.report(false);
        if self.shared.options.refunds_failures {
            self.settle(0);
        }
    }

    fn report(&self, ok: bool) {
        let latency = self.shared.limiter.clock().now().since(self.since);
        self.decision.report(latency.into(), ok);
    }

    fn settle(&self, cost: u64) {
        let Some((_, Some(counted))) = self.decision.reservation().map(|all| all.split_held()) else {
            return;
        };
        Runtime::here().run_in_background(settle_with_retries(
            Arc::clone(&self.shared.limiter),
            counted,
            FinalCorrection::Cost(cost),
        ));
    }
}

/// Treats a panic of the service as a failure. If the client disconnects, the result is unknown: nothing is reported or
/// refunded, because otherwise disconnecting in time would evade a limit.
impl<S: Store + 'static> Drop for InFlight<S> {
    fn drop(&mut self) {
        if self.running {
            self.failed();
        }
    }
}

fn guard_permits<S: Store + 'static>(shared: &Shared<S>, decision: &Decision) -> Option<PermitGuard> {
    let (held, _) = decision.reservation()?.split_held();
    let windows = decision.limits().filter(|limit| limit.quota().is_held());
    let window = windows.map(|limit| limit.quota().window()).min()?;
    Some(shared.holds.hold(held?, window, Runtime::here()))
}
