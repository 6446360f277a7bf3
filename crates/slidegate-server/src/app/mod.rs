//! State that all protocols share, and the tasks that run beside them.

pub(crate) mod adaptive_task;
pub mod auth;
pub(crate) mod decision_body;
pub(crate) mod explain;
pub(crate) mod live_feed;
pub(crate) mod monitor;
pub(crate) mod request_budget;
pub(crate) mod reservation_keys;
pub mod rule_manager;
pub mod state;
