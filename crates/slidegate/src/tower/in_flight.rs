//! A request that was admitted: reports, settles and releases when it ends.

use std::sync::Arc;

use bytes::BytesMut;
use http::Response;

use super::ResponseBody;
use super::background::{Ending, Runtime, end};
use super::permit_guard::Hold;
use super::shared::{Shared, failed};
use crate::http::headers;
use crate::{Decision, Micros, Store};

pub(super) struct Served<S: Store + 'static> {
    gate: Arc<Shared<S>>,
    decision: Arc<Decision>,
    hold: Option<Hold>,
    since: Micros,
    /// True while the service runs. If the value is dropped meanwhile, the service has panicked.
    running: bool,
}

impl<S: Store + 'static> Served<S> {
    pub(super) fn new(gate: Arc<Shared<S>>, decision: Arc<Decision>) -> Self {
        let hold = if decision.holds() { hold(&gate, &decision) } else { None };
        let since = gate.limiter.clock().now();
        Served { gate, decision, hold, since, running: true }
    }

    /// Sets the running flag, which is true at the start.
    pub(super) fn set_running(&mut self, running: bool) {
        self.running = running;
    }

    /// Handles the head of a response. Held permits move to its body.
    pub(super) fn respond<B>(mut self, response: Response<B>) -> Response<ResponseBody<B>> {
        let (mut head, body) = response.into_parts();
        self.report(!failed(&head));
        if let Some(cost) = self.gate.cost(&head) {
            self.settle(cost);
        }
        if self.gate.options.tells_allowed {
            let mut text = BytesMut::with_capacity(128);
            headers::add(&self.decision, self.gate.options.older_headers, &mut text, &mut head.headers);
        }
        Response::from_parts(head, ResponseBody::served(body, self.hold.take()))
    }

    /// Handles an error of the service.
    pub(super) fn fail(self) {
        self.failed();
    }

    fn failed(&self) {
        self.report(false);
        if self.gate.options.refunds_failures {
            self.settle(0);
        }
    }

    fn report(&self, ok: bool) {
        let latency = self.gate.limiter.clock().now().since(self.since);
        self.decision.report(latency.into(), ok);
    }

    fn settle(&self, cost: u64) {
        let Some((_, Some(counted))) = self.decision.reservation().map(|all| all.apart()) else { return };
        Runtime::here().carry(end(Arc::clone(&self.gate.limiter), counted, Ending::Cost(cost)));
    }
}

/// Treats a panic of the service as a failure. If the client disconnects, the result is unknown: nothing is reported or
/// refunded, because otherwise disconnecting in time would evade a limit.
impl<S: Store + 'static> Drop for Served<S> {
    fn drop(&mut self) {
        if self.running {
            self.failed();
        }
    }
}

fn hold<S: Store + 'static>(gate: &Shared<S>, decision: &Decision) -> Option<Hold> {
    let (held, _) = decision.reservation()?.apart();
    let windows = decision.limits().filter(|limit| limit.quota().is_held());
    let window = windows.map(|limit| limit.quota().window()).min()?;
    Some(gate.holds.hold(held?, window, Runtime::here()))
}
