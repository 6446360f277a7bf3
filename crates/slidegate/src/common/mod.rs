//! Utilities without rate-limiting logic: clock, microseconds, YAML, path spelling, retries, counters.

pub(crate) mod clock;
pub(crate) mod micros;
#[cfg(feature = "http")]
pub(crate) mod path_spelling;
#[cfg(any(feature = "redis", feature = "tower"))]
pub(crate) mod retry;
pub(crate) mod striped_counter;
#[cfg(feature = "yaml")]
pub mod yaml;
