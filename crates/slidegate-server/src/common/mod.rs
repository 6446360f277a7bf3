//! Utilities without rate-limiting logic.

pub(crate) mod console;
pub(crate) mod file_watch;
pub(crate) mod protocol;
pub(crate) mod secret_file;
pub(crate) mod service_manager;
pub(crate) mod signals;
pub(crate) mod timeout;
pub(crate) mod ttl_cache;
