//! The `hot-keys` section of the file: protection of Redis against overload by hot keys.

use slidegate::redis::StackOptions;

slidegate::section! {
    /// Protection of Redis against overload by hot keys. These settings do not change decisions.
    pub(super) struct HotKeys("HotKeys", base: StackOptions::default(), check: StackOptions::check) for StackOptions {
        /// If true, requests that arrive during a call to Redis share the next call.
        coalesce: bool,
        /// Upper bound on the requests that wait for the next call to one server. Further requests are sent in calls
        /// of their own.
        max_waiting: usize { between(1, 1_000_000) },
        /// Number of denials in the cache. A denial stays there until the same request could be allowed. With 0 the
        /// cache is off.
        deny_cache: usize { between(0, 10_000_000) },
    }
}
