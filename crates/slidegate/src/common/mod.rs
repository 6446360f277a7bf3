//! Utilities without rate-limiting logic: clock, microseconds, YAML, path spelling, counters.

pub(crate) mod clock;
pub(crate) mod micros;
#[cfg(feature = "http")]
pub(crate) mod path_spelling;
pub(crate) mod percent;
#[cfg(feature = "yaml")]
pub mod section;
pub(crate) mod striped_counter;
pub mod words;
#[cfg(feature = "yaml")]
pub mod yaml;
