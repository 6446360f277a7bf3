//! Limits that change while they are in use: warm-up after a cold start, and adaptive limits.

pub(crate) mod adaptive;
pub(crate) mod warm_up;
