//! Collector of the metrics: reads the statistics of the server when a page is written.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use slidegate::{
    Mode, ShadowChange, Source,
    algorithm::Discrepancy,
    redis::{BATCH_BOUNDS, BreakerState, CALL_BOUNDS, ServerMemory, ServerStats},
    store::MemoryStats,
};

use super::page::{Histogram, Metric, Page};
use crate::common::protocol::Protocol;
use crate::protocol::http::Shared;
use crate::store::RedisStats;
use crate::telemetry::stats::{BOUNDS, Durations, Failure, FollowUp, FollowUpOutcome, RuleVerdict, Shed};

/// Writes metrics: type, name, unit, labels and help of each, and its values. A metric without labels has one value, or none
/// if the value is unknown. A test compares the metrics with `docs/reference/metrics.md`.
macro_rules! metrics {
    (@unit) => { None };
    (@unit $unit:ident) => { Some(Unit::$unit) };
    (@values $value:expr;) => { $value.map(|value| ([], value)) };
    (@values $values:expr; $($label:literal),+) => { $values };
    ($page:expr; $($kind:ident $name:literal $(in $unit:ident)? $([$($label:literal),+])? $help:literal = $values:expr;)+) => {
        $($page.write(
            &Metric {
                kind: MetricType::$kind,
                name: $name,
                unit: metrics!(@unit $($unit)?),
                labels: [$($($label),+)?],
                help: $help,
            },
            metrics!(@values $values; $($($label),+)?),
        )?;)+
    };
}

/// Collector of all metrics. Statistics that need a blocking thread are gathered before the collector is
/// created.
pub(super) struct MetricsCollector {
    pub(super) app: Shared,
    pub(super) memory: Option<MemoryStats>,
    pub(super) redis: Option<RedisStats>,
}

impl std::fmt::Debug for MetricsCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MetricsCollector")
    }
}

impl Collector for MetricsCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut page = Page { encoder };
        self.decisions(&mut page)?;
        self.follow_ups(&mut page)?;
        self.rules(&mut page)?;
        self.listeners(&mut page)?;
        self.memory(&mut page)?;
        self.redis(&mut page)?;
        self.monitors(&mut page)
    }
}

impl MetricsCollector {
    fn decisions(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let stats = &self.app.stats;
        let (rules, rows) = stats.rows();
        let mut decisions = Vec::new();
        for row in &rows {
            for verdict in RuleVerdict::ALL {
                for source in Source::ALL {
                    let count = row.verdicts(verdict, source);
                    if count > 0 || (source == Source::Store && verdict != RuleVerdict::WouldDeny) {
                        decisions.push(([&*row.name, verdict.as_str(), source.as_str()], count));
                    }
                }
            }
        }
        let shadow_rules = rules.iter().zip(&rows).filter(|(rule, _)| rule.in_mode() == Mode::Shadow);
        let changes = shadow_rules.flat_map(|(_, row)| {
            ShadowChange::ALL.map(|change| ([row.name.as_str(), change.as_str()], row.changes(change)))
        });
        let (mut requests, mut durations) = (Vec::new(), Vec::new());
        for protocol in Protocol::ALL {
            for source in Source::ALL {
                let mut source_durations = Durations::default();
                for (allowed, verdict) in [(true, "allowed"), (false, "denied")] {
                    let verdict_durations = stats.durations(protocol, allowed, source);
                    if verdict_durations.count() > 0 || source == Source::Store {
                        let labels = [protocol.as_str(), verdict, source.as_str()];
                        requests.push((labels, verdict_durations.count()));
                    }
                    source_durations.add(&verdict_durations);
                }
                if source_durations.count() > 0 || source == Source::Store {
                    durations.push(([protocol.as_str(), source.as_str()], source_durations));
                }
            }
        }
        let failures = Protocol::ALL.into_iter().flat_map(|protocol| {
            Failure::ALL.map(|kind| ([protocol.as_str(), kind.as_str()], stats.failures(protocol, kind)))
        });
        let unmatched = Protocol::ALL.map(|protocol| ([protocol.as_str()], stats.unmatched(protocol)));
        metrics! { page;
            Counter "decisions" ["rule", "verdict", "source"] "Decisions by rule, verdict and source" = decisions;
            Counter "shadow_changes" ["rule", "change"] "Requests that would be decided differently if shadow rules were enforced" = changes;
            Counter "requests" ["protocol", "verdict", "source"] "Requests by protocol, verdict and source" = requests;
            Histogram "decision_duration" in Seconds ["protocol", "source"] "Duration of decisions" = histograms(&durations);
            Counter "failures" ["protocol", "kind"] "Requests that could not be decided" = failures;
            Counter "unmatched_requests" ["protocol"] "Requests that no rule matches" = unmatched;
        }
        Ok(())
    }

    fn follow_ups(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let stats = &self.app.stats;
        let (mut calls, mut durations) = (Vec::new(), Vec::new());
        for protocol in Protocol::ALL {
            for kind in FollowUp::ALL {
                let (outcomes, took) = stats.follow_ups(protocol, kind);
                for (outcome, count) in FollowUpOutcome::ALL.into_iter().zip(outcomes) {
                    if count > 0 || (protocol == Protocol::Http && outcome == FollowUpOutcome::Done) {
                        calls.push(([protocol.as_str(), kind.as_str(), outcome.as_str()], count));
                    }
                }
                if took.count() > 0 || protocol == Protocol::Http {
                    durations.push(([protocol.as_str(), kind.as_str()], took));
                }
            }
        }
        metrics! { page;
            Counter "follow_ups" ["protocol", "operation", "outcome"] "Calls of settle, release, extend and report, by outcome" = calls;
            Histogram "follow_up_duration" in Seconds ["protocol", "operation"] "Duration of the calls of settle, release, extend and report" = histograms(&durations);
        }
        Ok(())
    }

    fn rules(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let (manager, (rules, rows)) = (&self.app.rules, self.app.stats.rows());
        let edition = manager.current();
        let limits = rules.iter().map(|rule| ([rule.name()], rule.quota().limit()));
        let effective = rules.iter().zip(&rows).map(|(rule, row)| ([rule.name()], row.effective_limit(rule)));
        let factors =
            rules.iter().filter_map(|rule| Some(([rule.name()], f64::from(rule.factor()?) / 10_000.0)));
        metrics! { page;
            Gauge "rule_limit" ["rule"] "Configured limit of each rule" = limits;
            Gauge "rule_effective_limit" ["rule"] "Limit of each rule now, after warm-up and adaptive changes" = effective;
            Gauge "rule_factor" ["rule"] "Factor by which an adaptive rule multiplies its limit" = factors;
            Gauge "rules_version" "Number of the edition of the rules in force" = Some(edition.version);
            Gauge "rules_count" "Number of rules in force" = Some(edition.rules.iter().count());
            Counter "rules_changes" "Times that new rules came into force" = Some(manager.changes());
            Counter "rules_failures" "Times that new rules were rejected because they were invalid" = Some(manager.failures());
            Gauge "rules_invalid" "1 while the newest rules are invalid and therefore not in force" = Some(u64::from(manager.failure().is_some()));
            Info "rules" ["hash"] "Hash of the rules in force; nodes with equal rules have equal hashes" = [([edition.hash.as_str()], 1u64)];
        }
        Ok(())
    }

    fn listeners(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let stats = &self.app.stats;
        let connections = Protocol::ALL.map(|protocol| ([protocol.as_str()], stats.connections(protocol)));
        let shed = Protocol::ALL.into_iter().flat_map(|protocol| {
            Shed::ALL.map(|reason| ([protocol.as_str(), reason.as_str()], stats.shed_count(protocol, reason)))
        });
        let (recordings, lines, dropped) = stats.recorder.stats();
        metrics! { page;
            Gauge "connections" ["protocol"] "Open connections" = connections;
            Counter "connections_shed" ["protocol", "reason"] "Connections that the server closed because clients opened too many or sent nothing" = shed;
            Gauge "unfinished_requests" in Bytes "Bytes of large requests that are still arriving" = Some(self.app.unfinished.bytes());
            Gauge "recordings" "Recordings in progress" = Some(recordings);
            Counter "recorded_requests" "Requests that were recorded" = Some(lines);
            Counter "recording_drops" "Requests missing from recordings because their readers were too slow" = Some(dropped);
            Info "build" ["version"] "Version of this server" = [([env!("CARGO_PKG_VERSION")], 1u64)];
        }
        Ok(())
    }

    fn memory(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let stats = self.memory.as_ref();
        metrics! { page;
            Gauge "memory_store_keys" "Keys in the memory store" = stats.map(|stats| stats.keys);
            Gauge "memory_store_events" "Admissions that the memory store stores individually" = stats.map(|stats| stats.events);
            Gauge "memory_store" in Bytes "Bytes of the memory store" = stats.map(|stats| stats.bytes);
            Counter "memory_store_evictions" "Keys evicted while their count was above zero" = stats.map(|stats| stats.evicted);
            Counter "memory_store_swept" "Expired keys removed" = stats.map(|stats| stats.swept);
            Gauge "memory_store_shared_counters" "Counters that keys share because the memory store is full" = stats.map(|stats| stats.shared_counters);
            Counter "memory_store_shared_decisions" "Decisions by shared counters" = stats.map(|stats| stats.shared);
            Counter "memory_store_denied_full" "Decisions denied because the memory store was full" = stats.map(|stats| stats.denied_full);
            Gauge "memory_store_notes" in Bytes "Bytes of request ids and settlements, which are also part of slidegate_memory_store_bytes" = stats.map(|stats| stats.note_bytes);
            Counter "memory_store_ids_dropped" "Request ids not stored because memory.max-note-bytes was used up" = stats.map(|stats| stats.ids_dropped);
            Counter "memory_store_settlements_dropped" "Settlements not applied because memory.max-note-bytes was used up" = stats.map(|stats| stats.settlements_dropped);
        }
        Ok(())
    }

    fn redis(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let stats = self.redis.as_ref();
        let failover = stats.map(|stats| &stats.failover);
        let journal = failover.map(|failover| failover.journal);
        let servers = failover.map(|failover| failover.servers.as_slice()).unwrap_or_default();
        let each = |value: fn(&ServerStats) -> u64| {
            servers.iter().map(move |server| ([server.address.as_str()], value(server)))
        };
        let breaker_state = each(|server| match server.breaker {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            _ => 2,
        });
        let seconds =
            servers.iter().map(|server| ([server.address.as_str()], server.away.get() as f64 / 1e6));
        let calls = stats.map(|stats| &stats.calls);
        let errors = calls.into_iter().flat_map(|calls| &calls.errors);
        let errors = errors.map(|(fault, count)| ([fault.as_str()], *count));
        let durations = calls.map(|calls| Histogram {
            bounds: &CALL_BOUNDS,
            counts: &calls.durations,
            sum: calls.time.get(),
        });
        let batches =
            calls.map(|calls| Histogram { bounds: &BATCH_BOUNDS, counts: &calls.batches, sum: calls.tried });
        metrics! { page;
            Gauge "breaker_state" ["server"] "Circuit breaker of the Redis server: 0 closed, 1 half-open, 2 open" = breaker_state;
            Gauge "redis_direct" ["server"] "1 while the Redis server alone decides, 0 while the share of this node limits the decisions" = each(|server| server.direct.into());
            Gauge "nodes" ["server"] "Nodes that use the Redis server, by their heartbeats" = each(|server| server.nodes);
            Counter "outages" ["server"] "Outages of the Redis server seen by this node" = each(|server| server.outages);
            Counter "fallback_seconds" ["server"] "Time during which this node decided without the Redis server, in seconds" = seconds;
            Counter "written_back_permits" ["server"] "Permits written back to the Redis server" = each(|server| server.written_back);
            Counter "excess_permits" ["server"] "Permits above the limits of their keys, caused by writing back" = each(|server| server.excess);
            Gauge "store_in_flight" "Redis calls in flight" = failover.map(|failover| failover.in_flight);
            Counter "store_late" "Redis replies that arrived after their deadline" = failover.map(|failover| failover.late);
            Counter "store_overloaded" "Decisions without Redis because too many calls were in flight" = failover.map(|failover| failover.overloaded);
            Gauge "journal_keys" "Keys in the journal of this node's admissions" = journal.map(|journal| journal.keys);
            Gauge "journal" in Bytes "Bytes of the journal" = journal.map(|journal| journal.bytes);
            Counter "store_calls" "Redis calls that decide or settle" = calls.map(|calls| calls.calls);
            Counter "store_requests" "Requests decided by Redis calls" = calls.map(|calls| calls.requests);
            Counter "store_errors" ["kind"] "Failed Redis calls, by kind of fault" = errors;
            Histogram "store_call_duration" in Seconds "Duration of Redis calls" = durations;
            Histogram "store_batch_size" "Number of requests in each Redis call" = batches;
            Counter "deny_cache_hits" "Denials answered from the deny cache" = stats.map(|stats| stats.deny_cache.hits);
            Counter "coalesced_calls" "Redis calls sent by the coalescer" = stats.map(|stats| stats.coalesce.calls);
            Counter "coalesced_requests" "Requests in the Redis calls sent by the coalescer" = stats.map(|stats| stats.coalesce.requests);
            Counter "lease_decisions" "Decisions from leased permits" = stats.map(|stats| stats.lease.answered);
            Gauge "lease_keys" "Keys with leased permits" = stats.map(|stats| stats.lease.keys);
            Gauge "lease_idle_permits" "Leased permits not used yet" = stats.map(|stats| stats.lease.idle);
        }
        Ok(())
    }

    fn monitors(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let accuracy = self.app.monitor.accuracy.findings();
        let causes = Discrepancy::CAUSES
            .map(|cause| ([cause], accuracy.causes.get(cause).copied().unwrap_or_default()));
        let memory = self.app.monitor.memory.findings();
        let each = |value: fn(&ServerMemory) -> u64| {
            memory.servers.iter().map(move |server| ([server.address.as_str()], value(server)))
        };
        let short = (!memory.servers.is_empty()).then_some(u64::from(memory.short));
        let usage = memory.usage.as_ref();
        metrics! { page;
            Gauge "accuracy_ratio" "Share of the keys in the last audit round whose count was correct" = accuracy.last.map(|(ratio, _)| ratio);
            Counter "accuracy_checked_keys" "Keys audited" = Some(accuracy.checked);
            Counter "accuracy_wrong_keys" "Audited keys with a wrong count" = Some(accuracy.wrong);
            Counter "accuracy_repaired_keys" "Audited keys that were repaired" = Some(accuracy.repaired);
            Counter "accuracy_failures" "Audit rounds that failed" = Some(accuracy.failed);
            Counter "accuracy_discrepancies" ["cause"] "Discrepancies found by audits, by cause" = causes;
            Gauge "redis_memory_used" in Bytes ["server"] "Memory used by the Redis server" = each(|server| server.used);
            Gauge "redis_memory_max" in Bytes ["server"] "`maxmemory` of the Redis server; 0 if unlimited" = each(|server| server.max);
            Gauge "redis_memory_short" "1 while Redis memory is above `monitor.memory.threshold`" = short;
            Gauge "redis_keys" ["server"] "Keys in the Redis database, including keys of other programs" = each(|server| server.keys);
            Gauge "redis_own_keys" "Slidegate keys in Redis, estimated from a sample" = usage.map(|usage| usage.keys);
            Gauge "redis_own" in Bytes "Bytes of Slidegate keys in Redis, estimated from a sample" = usage.map(|usage| usage.bytes);
            Counter "gc_runs" "Garbage collection runs" = Some(memory.cleanups);
            Counter "gc_dropped_keys" "Keys removed by garbage collection" = Some(memory.dropped);
            Counter "gc_trimmed_entries" "Expired entries removed by garbage collection" = Some(memory.trimmed);
            Counter "gc_freed_bytes" "Bytes freed by garbage collection" = Some(memory.freed);
        }
        Ok(())
    }
}

fn histograms<'h, const N: usize>(
    durations: &'h [([&'static str; N], Durations)],
) -> impl Iterator<Item = ([&'h str; N], Histogram<'h>)> {
    durations.iter().map(|(labels, durations)| {
        (*labels, Histogram { bounds: &BOUNDS, counts: &durations.buckets, sum: durations.sum })
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;
    use slidegate::{MemoryStore, Rules};

    use super::*;
    use crate::{AnyStore, AppState};

    thread_local! {
        /// Rows of `docs/reference/metrics.md` for the metrics that this thread has written.
        pub(in crate::protocol::http::metrics) static ROWS: RefCell<Vec<String>> = RefCell::default();
    }

    impl<const N: usize> Metric<N> {
        pub(in crate::protocol::http::metrics) fn row(&self) -> String {
            let unit = self.unit.as_ref().map(|unit| format!("_{}", unit.as_str())).unwrap_or_default();
            let labels = self.labels.map(|label| format!("`{label}`")).join(", ");
            let Metric { kind, name, help, .. } = self;
            let suffix = match kind {
                MetricType::Counter => "_total",
                MetricType::Info => "_info",
                _ => "",
            };
            format!("| `slidegate_{name}{unit}{suffix}` | {} | {labels} | {help} |", kind.as_str())
        }
    }

    #[test]
    fn metrics_are_documented_in_their_order() {
        let store = AnyStore::Memory(MemoryStore::new());
        let app = Arc::new(AppState::new(store, Rules::new([]).unwrap(), "a test"));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(MetricsCollector { app, memory: None, redis: None }));
        text::encode(&mut String::new(), &registry).unwrap();
        let page = include_str!("../../../../../../docs/reference/metrics.md");
        let documented: Vec<&str> = page.lines().filter(|line| line.starts_with("| `slidegate_")).collect();
        assert_eq!(documented, ROWS.take(), "docs/reference/metrics.md has one row for each metric");
    }
}
