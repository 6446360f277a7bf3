//! All metrics: type, name, unit, labels and help. The page is written from this table, and a test compares it with
//! `docs/reference/metrics.md`.

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// Metric with `N` labels.
pub(super) struct Metric<const N: usize> {
    pub(super) kind: MetricType,
    /// Name without the prefix `slidegate_` and without the unit.
    pub(super) name: &'static str,
    pub(super) unit: Option<Unit>,
    pub(super) labels: [&'static str; N],
    pub(super) help: &'static str,
}

/// Declares a constant for each metric, and `rows` with the lines of the table in `docs/reference/metrics.md`.
macro_rules! metrics {
    (@unit) => { None };
    (@unit $unit:ident) => { Some(Unit::$unit) };
    ($($constant:ident: $kind:ident $name:literal $(in $unit:ident)? [$($label:literal),*] $help:literal;)+) => {
        $(pub(super) const $constant: Metric<{ let labels: &[&str] = &[$($label),*]; labels.len() }> = Metric {
            kind: MetricType::$kind,
            name: $name,
            unit: metrics!(@unit $($unit)?),
            labels: [$($label),*],
            help: $help,
        };)+

        #[cfg(test)]
        fn rows() -> Vec<String> {
            vec![$($constant.row()),+]
        }
    };
}

#[rustfmt::skip]
metrics! {
    DECISIONS: Counter "decisions" ["rule", "verdict", "source"] "Decisions by rule, verdict and source";
    SHADOW_CHANGES: Counter "shadow_changes" ["rule", "change"] "Requests that would be decided otherwise if shadow rules were enforced";
    REQUESTS: Counter "requests" ["protocol", "verdict", "source"] "Requests by protocol, verdict and source";
    DECISION_DURATION_SECONDS: Histogram "decision_duration" in Seconds ["protocol", "source"] "Duration of decisions";
    FAILURES: Counter "failures" ["protocol", "kind"] "Requests that could not be decided";
    UNMATCHED_REQUESTS: Counter "unmatched_requests" ["protocol"] "Requests that no rule matches";
    FOLLOW_UPS: Counter "follow_ups" ["protocol", "operation", "outcome"] "Calls that follow a decision, by outcome";
    FOLLOW_UP_DURATION_SECONDS: Histogram "follow_up_duration" in Seconds ["protocol", "operation"] "Duration of calls that follow a decision";
    RULE_LIMIT: Gauge "rule_limit" ["rule"] "Configured limit of each rule";
    RULE_EFFECTIVE_LIMIT: Gauge "rule_effective_limit" ["rule"] "Limit in force now: after warm-up and adaptive changes";
    RULE_FACTOR: Gauge "rule_factor" ["rule"] "Factor by which an adaptive rule multiplies its limit";
    RULES_VERSION: Gauge "rules_version" [] "Version of the rules in force";
    RULES_COUNT: Gauge "rules_count" [] "Number of rules in force";
    RULES_CHANGES: Counter "rules_changes" [] "Changes of the rules in force";
    RULES_FAILURES: Counter "rules_failures" [] "Invalid rules that were found and not used";
    RULES_INVALID: Gauge "rules_invalid" [] "1 while the newest rules are invalid and therefore not in force";
    RULES: Info "rules" ["hash"] "Hash of the rules in force; equal on nodes with equal rules";
    CONNECTIONS: Gauge "connections" ["protocol"] "Open connections";
    CONNECTIONS_SHED: Counter "connections_shed" ["protocol", "reason"] "Connections closed because clients held too many or sent nothing";
    UNFINISHED_REQUESTS_BYTES: Gauge "unfinished_requests" in Bytes [] "Bytes of large requests that are still arriving";
    RECORDINGS: Gauge "recordings" [] "Recordings in progress";
    RECORDED_REQUESTS: Counter "recorded_requests" [] "Requests that were recorded";
    RECORDING_DROPS: Counter "recording_drops" [] "Requests missing from recordings because the reader was too slow";
    BUILD: Info "build" ["version"] "Version of this server";
    MEMORY_STORE_KEYS: Gauge "memory_store_keys" [] "Keys in the memory store";
    MEMORY_STORE_EVENTS: Gauge "memory_store_events" [] "Admissions stored one by one in the memory store";
    MEMORY_STORE_BYTES: Gauge "memory_store" in Bytes [] "Bytes of the memory store";
    MEMORY_STORE_EVICTIONS: Counter "memory_store_evictions" [] "Keys evicted while they still counted something";
    MEMORY_STORE_SWEPT: Counter "memory_store_swept" [] "Expired keys removed";
    MEMORY_STORE_SHARED_COUNTERS: Gauge "memory_store_shared_counters" [] "Counters shared by keys because the memory store is full";
    MEMORY_STORE_SHARED_DECISIONS: Counter "memory_store_shared_decisions" [] "Decisions by a shared counter";
    MEMORY_STORE_DENIED_FULL: Counter "memory_store_denied_full" [] "Decisions denied because the memory store was full";
    MEMORY_STORE_NOTES_BYTES: Gauge "memory_store_notes" in Bytes [] "Bytes of request ids and settlements; part of memory_store_bytes";
    MEMORY_STORE_IDS_DROPPED: Counter "memory_store_ids_dropped" [] "Request ids not stored because memory.max-note-bytes was used up";
    MEMORY_STORE_SETTLEMENTS_DROPPED: Counter "memory_store_settlements_dropped" [] "Settlements not applied because memory.max-note-bytes was used up";
    BREAKER_STATE: Gauge "breaker_state" ["server"] "Circuit breaker of the Redis server: 0 closed, 1 half-open, 2 open";
    REDIS_DIRECT: Gauge "redis_direct" ["server"] "1 while Redis decides, 0 while this node decides by its share";
    NODES: Gauge "nodes" ["server"] "Nodes that count on the Redis server, by their heartbeats";
    OUTAGES: Counter "outages" ["server"] "Outages of the Redis server seen by this node";
    FALLBACK_SECONDS: Counter "fallback_seconds" ["server"] "Seconds in which this node decided without the Redis server";
    WRITTEN_BACK_PERMITS: Counter "written_back_permits" ["server"] "Permits written back to the Redis server";
    EXCESS_PERMITS: Counter "excess_permits" ["server"] "Permits by which write-back raised keys above their limit";
    STORE_IN_FLIGHT: Gauge "store_in_flight" [] "Redis calls in flight";
    STORE_LATE: Counter "store_late" [] "Redis replies that arrived after their deadline";
    STORE_OVERLOADED: Counter "store_overloaded" [] "Decisions without Redis because too many calls were in flight";
    JOURNAL_KEYS: Gauge "journal_keys" [] "Keys in the journal of this node's admissions";
    JOURNAL_BYTES: Gauge "journal" in Bytes [] "Bytes of the journal";
    STORE_CALLS: Counter "store_calls" [] "Redis calls that decide or settle";
    STORE_REQUESTS: Counter "store_requests" [] "Requests decided by Redis calls";
    STORE_ERRORS: Counter "store_errors" ["kind"] "Failed Redis calls by kind";
    STORE_CALL_DURATION_SECONDS: Histogram "store_call_duration" in Seconds [] "Duration of Redis calls";
    STORE_BATCH_SIZE: Histogram "store_batch_size" [] "Requests per Redis call";
    DENY_CACHE_HITS: Counter "deny_cache_hits" [] "Denials answered from the deny cache";
    COALESCED_CALLS: Counter "coalesced_calls" [] "Redis calls sent by the coalescer";
    COALESCED_REQUESTS: Counter "coalesced_requests" [] "Requests in those calls";
    LEASE_DECISIONS: Counter "lease_decisions" [] "Decisions from leased permits";
    LEASE_KEYS: Gauge "lease_keys" [] "Keys with leased permits";
    LEASE_IDLE_PERMITS: Gauge "lease_idle_permits" [] "Leased permits not used yet";
    ACCURACY_RATIO: Gauge "accuracy_ratio" [] "Share of recently audited keys whose count was correct";
    ACCURACY_CHECKED_KEYS: Counter "accuracy_checked_keys" [] "Keys audited";
    ACCURACY_WRONG_KEYS: Counter "accuracy_wrong_keys" [] "Audited keys with a wrong count";
    ACCURACY_REPAIRED_KEYS: Counter "accuracy_repaired_keys" [] "Audited keys that were repaired";
    ACCURACY_FAILURES: Counter "accuracy_failures" [] "Audit rounds that failed";
    ACCURACY_DISCREPANCIES: Counter "accuracy_discrepancies" ["cause"] "Discrepancies found by audits, by cause";
    REDIS_MEMORY_USED_BYTES: Gauge "redis_memory_used" in Bytes ["server"] "Memory used by the Redis server";
    REDIS_MEMORY_MAX_BYTES: Gauge "redis_memory_max" in Bytes ["server"] "`maxmemory` of the Redis server; 0 if unlimited";
    REDIS_MEMORY_SHORT: Gauge "redis_memory_short" [] "1 while Redis memory is above `monitor.memory.threshold`";
    REDIS_KEYS: Gauge "redis_keys" ["server"] "Keys in the Redis database, including foreign keys";
    REDIS_OWN_KEYS: Gauge "redis_own_keys" [] "Slidegate keys in Redis, estimated from a sample";
    REDIS_OWN_BYTES: Gauge "redis_own" in Bytes [] "Bytes of Slidegate keys in Redis, estimated from a sample";
    GC_RUNS: Counter "gc_runs" [] "Garbage collection runs";
    GC_DROPPED_KEYS: Counter "gc_dropped_keys" [] "Keys removed by garbage collection";
    GC_TRIMMED_ENTRIES: Counter "gc_trimmed_entries" [] "Expired entries removed by garbage collection";
    GC_FREED_BYTES: Counter "gc_freed_bytes" [] "Bytes freed by garbage collection";
}

#[cfg(test)]
mod tests {
    use super::*;

    impl<const N: usize> Metric<N> {
        pub(super) fn row(&self) -> String {
            let unit = self.unit.as_ref().map(|unit| format!("_{}", unit.as_str())).unwrap_or_default();
            let labels = self.labels.map(|label| format!("`{label}`")).join(", ");
            let Metric { kind, name, help, .. } = self;
            format!("| `slidegate_{name}{unit}` | {} | {labels} | {help} |", kind.as_str())
        }
    }

    #[test]
    fn metrics_are_documented_in_their_order() {
        let page = include_str!("../../../../../../docs/reference/metrics.md");
        let documented: Vec<&str> = page.lines().filter(|line| line.starts_with("| `slidegate_")).collect();
        assert_eq!(documented, rows(), "docs/reference/metrics.md has one row for each metric");
    }
}
