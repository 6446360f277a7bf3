//! Statistics, logs, traces and captured decisions.

pub(crate) mod capture;
pub(crate) mod log;
pub(crate) mod stats;
pub(crate) mod trace;
