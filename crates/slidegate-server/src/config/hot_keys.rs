//! The `hot-keys` section of the file: protection of Redis against overload by hot keys.

use slidegate::redis::StackOptions;

slidegate::section! {
    /// Protection of Redis against overload by hot keys. None of it changes decisions.
    pub(super) struct HotKeys("HotKeys", base: StackOptions::default(), check: StackOptions::check) for StackOptions {
        /// If true, requests that arrive during a call to Redis share the next call.
        coalesce: bool,
        /// Upper bound on requests that wait for the next call to one server; others are sent alone.
        max_waiting: usize { between(1, 1_000_000) },
        /// Number of denials that are cached until they could be allowed; 0 caches none.
        deny_cache: usize { between(0, 10_000_000) },
    }
}
