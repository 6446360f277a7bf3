//! State that all protocols share, and the tasks that run beside them.

pub(crate) mod adaptive_task;
pub(crate) mod auth;
pub(crate) mod decision_body;
pub(crate) mod explain;
pub(crate) mod fleet;
pub(crate) mod live_feed;
pub(crate) mod monitor;
pub(crate) mod readiness;
pub(crate) mod request_budget;
pub(crate) mod reservation_keys;
pub(crate) mod rule_manager;
pub(crate) mod state;
