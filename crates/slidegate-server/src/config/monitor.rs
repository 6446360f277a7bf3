//! The `monitor` section of the file: background checks of the counts, and of Redis's memory.

use std::time::Duration;

use slidegate::Micros;
use slidegate::section::{Shown, WholePercent};

slidegate::section! {
    /// Background checks of the counts and of the memory of Redis.
    pub struct MonitorConfig("Monitor") {
        /// If true, the server counts its decisions for the metrics and the dashboard.
        decisions: bool = true,
        /// Check of the counts. In each round, the server counts some recently used keys again and compares the
        /// results.
        accuracy: AccuracyConfig,
        /// Check of the memory of Redis. If memory runs short, the server removes entries that no longer count.
        memory: MemoryConfig,
    }
}

slidegate::section! {
    /// Settings of the check of counts.
    pub struct AccuracyConfig("MonitorAccuracy") {
        /// Interval between two rounds, or `off`.
        every: Option<Duration> as Interval = Some(Duration::from_secs(60)),
        /// Upper bound on the keys that one round checks.
        keys: usize { between(1, 1_000) } = 100,
        /// If true, the server repairs a wrong total or a wrong expiry.
        repair: bool = true,
    }
}

slidegate::section! {
    /// Settings of the check of the memory of Redis.
    pub struct MemoryConfig("MonitorMemory") {
        /// Interval between two rounds, or `off`.
        every: Option<Duration> as Interval = Some(Duration::from_secs(60)),
        /// Share of the memory of Redis. If more is in use, the server removes entries that no longer count.
        threshold: u32 as WholePercent { between(1, 100) } = 80,
        /// Memory size, in bytes, that is 100 % for `threshold`. Default: `maxmemory` of Redis.
        max_bytes: Option<u64> { between(1, u64::MAX).example("1073741824") },
    }
}

/// Shortest interval between two rounds.
const MIN_INTERVAL: Micros = Micros::from_millis(100);

/// Time between two rounds, or `off`.
struct Interval;

slidegate::field_type! {
    Interval => Option<Duration>,
    kind: |terms| Duration::kind(terms),
    read: |node, reader, what, _| {
        if node.is_word("off") {
            return Some(None);
        }
        let every = reader.duration(node, what)?;
        if every < MIN_INTERVAL {
            reader.problem(node, format!("{what} must be at least {MIN_INTERVAL}, or `off`"));
            return None;
        }
        Some(Some(every.into()))
    },
    shown: |value| value.as_ref().map_or(Shown::Text("off".to_owned()), Duration::shown),
}
