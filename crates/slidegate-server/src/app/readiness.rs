//! Readiness of a node: can it decide as configured?

use super::state::AppState;
use crate::store::Health;

/// Readiness of this node to decide as configured.
pub(crate) enum Readiness {
    Ready,
    /// The store does not answer, for this reason, and the node decides by `on-error`.
    Degraded(String),
    /// The node cannot decide, for this reason.
    NotReady(String),
}

impl AppState {
    /// Returns the readiness of this node. It is the same for `/readyz`, for the health service of gRPC and for `ready` at
    /// start.
    ///
    /// Before Redis has answered once, a node is ready if it can decide every request without Redis. If `on-error` is
    /// `closed` for any rule in force, the node is not ready: it would deny all requests that the rule limits, though
    /// another node may decide them. After the first answer of Redis, the node stays ready: taking every node out of
    /// service would turn an outage of Redis into an outage of everything.
    pub(crate) async fn readiness(&self) -> Readiness {
        let (rules, store) = (self.limiter.rules(), self.limiter.store());
        if self.is_draining() {
            return Readiness::NotReady("the server is stopping".to_owned());
        }
        if !rules.is_known() {
            return Readiness::NotReady("the rules are not known yet".to_owned());
        }
        match store.health().await {
            Health::Answers => Readiness::Ready,
            Health::Away(error) => Readiness::Degraded(error.to_string()),
            Health::NeverAnswered(error) => match store.denies_without_answer(&rules) {
                None => Readiness::Degraded(error.to_string()),
                Some(setting) => {
                    Readiness::NotReady(format!("{error}; {setting}, so this node waits for Redis"))
                }
            },
        }
    }
}
