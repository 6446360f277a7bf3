//! Utilities without rate-limiting logic: clock, microseconds, spin lock, YAML, path spelling, retries, counters.

pub(crate) mod clock;
pub(crate) mod micros;
#[cfg(feature = "http")]
pub(crate) mod path_spelling;
pub(crate) mod percent;
#[cfg(any(feature = "redis", feature = "tower"))]
pub(crate) mod retry;
#[cfg(feature = "yaml")]
pub mod section;
pub(crate) mod spin_lock;
pub(crate) mod striped_counter;
#[cfg(feature = "yaml")]
pub mod yaml;
