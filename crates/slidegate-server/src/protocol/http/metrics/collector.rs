//! Collector of the metrics: reads the statistics of the server when a page is written.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;
use slidegate::{
    BATCH_BOUNDS, BreakerState, CALL_BOUNDS, CallStats, Discrepancy, MemoryStats, Mode, ServerMemory,
    ServerStats, ShadowChange, Source,
};

use super::page::{Histogram, Labelled, Page};
use crate::common::protocol::Protocol;
use crate::protocol::http::Shared;
use crate::store::RedisStats;
use crate::telemetry::stats::{Durations, Failure, RuleVerdict, Shed};

/// Collector of all metrics. Statistics that need a blocking thread are gathered before.
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
        self.rules(&mut page)?;
        self.listeners(&mut page)?;
        self.memory(&mut page)?;
        self.redis(&mut page)?;
        self.monitors(&mut page)
    }
}

impl MetricsCollector {
    fn decisions(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let record = &self.app.stats;
        let (rules, rows) = record.rows();
        let mut decisions = Vec::new();
        for row in &rows {
            for word in RuleVerdict::ALL {
                for source in Source::ALL {
                    let count = row.verdicts(word, source);
                    if count > 0 || (source == Source::Store && word != RuleVerdict::WouldDeny) {
                        decisions.push((
                            [("rule", &*row.name), ("verdict", word.as_str()), ("source", source.as_str())],
                            count,
                        ));
                    }
                }
            }
        }
        page.counters("decisions", "Decisions by rule, verdict and source", &decisions)?;
        let shadow_rules = rules.iter().zip(&rows).filter(|(rule, _)| rule.in_mode() == Mode::Shadow);
        let changes = shadow_rules.flat_map(|(_, row)| {
            ShadowChange::ALL.map(|change| {
                ([("rule", row.name.as_str()), ("change", change.as_str())], row.changes(change))
            })
        });
        let help = "Requests that would be decided otherwise if shadow rules were enforced";
        page.counters("shadow_changes", help, &changes.collect::<Vec<_>>())?;
        let (mut requests, mut durations) = (Vec::new(), Vec::new());
        for protocol in Protocol::ALL {
            for source in Source::ALL {
                let mut source_durations = Durations::default();
                for (allowed, verdict) in [(true, "allowed"), (false, "denied")] {
                    let verdict_durations = record.durations(protocol, allowed, source);
                    if verdict_durations.count() > 0 || source == Source::Store {
                        let labels = [
                            ("protocol", protocol.as_str()),
                            ("verdict", verdict),
                            ("source", source.as_str()),
                        ];
                        requests.push((labels, verdict_durations.count()));
                    }
                    source_durations.add(&verdict_durations);
                }
                if source_durations.count() > 0 || source == Source::Store {
                    durations.push((
                        [("protocol", protocol.as_str()), ("source", source.as_str())],
                        source_durations,
                    ));
                }
            }
        }
        page.counters("requests", "Requests by protocol, verdict and source", &requests)?;
        page.durations("decision_duration", "Duration of decisions", &durations)?;
        let failures = Protocol::ALL.into_iter().flat_map(|protocol| {
            Failure::ALL.map(|kind| {
                ([("protocol", protocol.as_str()), ("kind", kind.as_str())], record.failures(protocol, kind))
            })
        });
        page.counters("failures", "Requests that could not be decided", &failures.collect::<Vec<_>>())?;
        let unmatched =
            Protocol::ALL.map(|protocol| ([("protocol", protocol.as_str())], record.unmatched(protocol)));
        page.counters("unmatched_requests", "Requests that no rule matches", &unmatched)?;
        let limits: Vec<_> =
            rules.iter().map(|rule| ([("rule", rule.name())], rule.quota().limit() as i64)).collect();
        page.gauges("rule_limit", "Configured limit of each rule", None, &limits)?;
        let limits = rules.iter().zip(&rows);
        let limits = limits.map(|(rule, row)| ([("rule", rule.name())], row.effective_limit(rule) as i64));
        let help = "Limit in force now: after warm-up and adaptive changes";
        page.gauges("rule_effective_limit", help, None, &limits.collect::<Vec<_>>())?;
        let factors = rules
            .iter()
            .filter_map(|rule| Some(([("rule", rule.name())], f64::from(rule.factor()?) / 10_000.0)));
        let help = "Factor by which an adaptive rule multiplies its limit";
        page.gauges("rule_factor", help, None, &factors.collect::<Vec<_>>())
    }

    fn rules(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let manager = &self.app.rules;
        let edition = manager.current();
        page.gauge("rules_version", "Version of the rules in force", edition.version as i64)?;
        let n = edition.rules.iter().count();
        page.gauge("rules_count", "Number of rules in force", n as i64)?;
        page.counter("rules_changes", "Changes of the rules in force", manager.changes())?;
        page.counter("rules_failures", "Invalid rules that were found and not used", manager.failures())?;
        let invalid = i64::from(manager.failure().is_some());
        page.gauge(
            "rules_invalid",
            "1 while the newest rules are invalid and therefore not in force",
            invalid,
        )?;
        let hash = [("hash", edition.hash.as_str())];
        page.info("rules", "Hash of the rules in force; equal on nodes with equal rules", &hash)
    }

    fn listeners(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let connections = Protocol::ALL
            .map(|protocol| ([("protocol", protocol.as_str())], self.app.stats.connections(protocol) as i64));
        page.gauges("connections", "Open connections", None, &connections)?;
        let shed = Protocol::ALL.into_iter().flat_map(|protocol| {
            Shed::ALL.map(|reason| {
                (
                    [("protocol", protocol.as_str()), ("reason", reason.as_str())],
                    self.app.stats.shed_count(protocol, reason),
                )
            })
        });
        let help = "Connections closed because clients held too many or sent nothing";
        page.counters("connections_shed", help, &shed.collect::<Vec<_>>())?;
        let unfinished = self.app.unfinished.bytes() as u64;
        page.bytes(
            "unfinished_requests",
            "Bytes of large requests that are still arriving",
            Some(unfinished),
        )?;
        let recorded = self.app.stats.recorder.stats();
        page.gauge("recordings", "Recordings in progress", recorded.recordings as i64)?;
        page.counter("recorded_requests", "Requests that were recorded", recorded.lines)?;
        let help = "Requests missing from recordings because the reader was too slow";
        page.counter("recording_drops", help, recorded.dropped)?;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        page.info("build", "Version of this server", &version)
    }

    fn memory(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let stats = self.memory.as_ref();
        page.size("memory_store_keys", "Keys in the memory store", stats.map(|stats| stats.keys))?;
        let events = stats.map(|stats| stats.events);
        page.size("memory_store_events", "Admissions stored one by one in the memory store", events)?;
        page.bytes("memory_store", "Bytes of the memory store", stats.map(|stats| stats.bytes as u64))?;
        let evicted = stats.map(|stats| stats.evicted);
        page.total("memory_store_evictions", "Keys evicted while they still counted something", evicted)?;
        page.total("memory_store_swept", "Expired keys removed", stats.map(|stats| stats.swept))?;
        let help = "Counters shared by keys because the memory store is full";
        page.size("memory_store_shared_counters", help, stats.map(|stats| stats.shared_counters))?;
        let help = "Decisions by a shared counter";
        page.total("memory_store_shared_decisions", help, stats.map(|stats| stats.shared))?;
        let help = "Decisions denied because the memory store was full";
        page.total("memory_store_denied_full", help, stats.map(|stats| stats.denied_full))?;
        let help = "Bytes of request ids and settlements; part of memory_store_bytes";
        page.bytes("memory_store_notes", help, stats.map(|stats| stats.note_bytes as u64))?;
        let help = "Request ids not stored because memory.max-note-bytes was used up";
        page.total("memory_store_ids_dropped", help, stats.map(|stats| stats.ids_dropped))?;
        let help = "Settlements not applied because memory.max-note-bytes was used up";
        page.total("memory_store_settlements_dropped", help, stats.map(|stats| stats.settlements_dropped))
    }

    fn redis(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let stats = self.redis.as_ref();
        self.servers(page, stats.map(|stats| stats.failover.servers.as_slice()).unwrap_or_default())?;
        let failover = stats.map(|stats| &stats.failover);
        page.size("store_in_flight", "Redis calls in flight", failover.map(|failover| failover.in_flight))?;
        page.total(
            "store_late",
            "Redis replies that arrived after their deadline",
            failover.map(|failover| failover.late),
        )?;
        let overloaded = failover.map(|failover| failover.overloaded);
        page.total(
            "store_overloaded",
            "Decisions without Redis because too many calls were in flight",
            overloaded,
        )?;
        let journal = failover.map(|failover| failover.journal);
        page.size(
            "journal_keys",
            "Keys in the journal of this node's admissions",
            journal.map(|journal| journal.keys),
        )?;
        page.bytes("journal", "Bytes of the journal", journal.map(|journal| journal.bytes as u64))?;
        self.calls(page, stats.map(|stats| &stats.calls))?;
        let hits = stats.map(|stats| stats.deny_cache.hits);
        page.total("deny_cache_hits", "Denials answered from the deny cache", hits)?;
        let coalesce = stats.map(|stats| &stats.coalesce);
        page.total(
            "coalesced_calls",
            "Redis calls sent by the coalescer",
            coalesce.map(|coalesce| coalesce.calls),
        )?;
        page.total(
            "coalesced_requests",
            "Requests in those calls",
            coalesce.map(|coalesce| coalesce.requests),
        )?;
        let lease = stats.map(|stats| &stats.lease);
        page.total("lease_decisions", "Decisions from leased permits", lease.map(|lease| lease.answered))?;
        page.size("lease_keys", "Keys with leased permits", lease.map(|lease| lease.keys))?;
        let idle = lease.map(|lease| lease.idle as usize);
        page.size("lease_idle_permits", "Leased permits not used yet", idle)
    }

    fn servers(&self, page: &mut Page<'_>, servers: &[ServerStats]) -> Result<(), Error> {
        fn each<V>(servers: &[ServerStats], number: impl Fn(&ServerStats) -> V) -> Vec<Labelled<1, V, &str>> {
            servers.iter().map(|server| ([("server", server.address.as_str())], number(server))).collect()
        }
        let state = each(servers, |server| match server.breaker {
            BreakerState::Closed => 0i64,
            BreakerState::HalfOpen => 1,
            _ => 2,
        });
        page.gauges(
            "breaker_state",
            "Circuit breaker of the Redis server: 0 closed, 1 half-open, 2 open",
            None,
            &state,
        )?;
        let direct = each(servers, |server| i64::from(server.direct));
        let help = "1 while Redis decides, 0 while this node decides by its share";
        page.gauges("redis_direct", help, None, &direct)?;
        let nodes = each(servers, |server| server.nodes as i64);
        page.gauges("nodes", "Nodes that count on the Redis server, by their heartbeats", None, &nodes)?;
        let outages = each(servers, |server| server.outages);
        page.counters("outages", "Outages of the Redis server seen by this node", &outages)?;
        let away = each(servers, |server| server.away.get() as f64 / 1e6);
        page.counters(
            "fallback_seconds",
            "Seconds in which this node decided without the Redis server",
            &away,
        )?;
        let written = each(servers, |server| server.written_back);
        page.counters("written_back_permits", "Permits written back to the Redis server", &written)?;
        let excess = each(servers, |server| server.excess);
        page.counters("excess_permits", "Permits by which write-back raised keys above their limit", &excess)
    }

    fn calls(&self, page: &mut Page<'_>, calls: Option<&CallStats>) -> Result<(), Error> {
        page.total("store_calls", "Redis calls that decide or settle", calls.map(|calls| calls.calls))?;
        page.total("store_requests", "Requests decided by Redis calls", calls.map(|calls| calls.requests))?;
        let errors = calls.map(|calls| calls.errors.as_slice()).unwrap_or_default();
        let errors: Vec<_> =
            errors.iter().map(|(fault, count)| ([("kind", fault.as_str())], *count)).collect();
        page.counters("store_errors", "Failed Redis calls by kind", &errors)?;
        let durations = calls.map(|calls| Histogram {
            bounds: CALL_BOUNDS.iter().map(|micros| *micros as f64 / 1e6).collect(),
            counts: calls.durations.clone(),
            sum: calls.time.get() as f64 / 1e6,
        });
        page.histogram("store_call_duration", "Duration of Redis calls", Some(Unit::Seconds), durations)?;
        let batches = calls.map(|calls| Histogram {
            bounds: BATCH_BOUNDS.iter().map(|requests| *requests as f64).collect(),
            counts: calls.batches.clone(),
            sum: calls.tried as f64,
        });
        page.histogram("store_batch_size", "Requests per Redis call", None, batches)
    }

    fn monitors(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let accuracy = self.app.monitor.accuracy.findings();
        let ratio: Vec<Labelled<0, f64>> = accuracy.last.map(|(ratio, _)| ([], ratio)).into_iter().collect();
        let help = "Share of recently audited keys whose count was correct";
        page.gauges("accuracy_ratio", help, None, &ratio)?;
        page.counter("accuracy_checked_keys", "Keys audited", accuracy.checked)?;
        page.counter("accuracy_wrong_keys", "Audited keys with a wrong count", accuracy.wrong)?;
        page.counter("accuracy_repaired_keys", "Audited keys that were repaired", accuracy.repaired)?;
        page.counter("accuracy_failures", "Audit rounds that failed", accuracy.failed)?;
        let causes = Discrepancy::CAUSES.map(|cause| {
            let known = accuracy.causes.iter().find(|(known, _)| *known == cause);
            ([("cause", cause)], known.map_or(0, |(_, count)| *count))
        });
        page.counters("accuracy_discrepancies", "Discrepancies found by audits, by cause", &causes)?;
        let memory = self.app.monitor.memory.findings();
        let each = |number: &dyn Fn(&ServerMemory) -> u64| -> Vec<Labelled<1, i64, &str>> {
            let servers = memory.servers.iter();
            servers.map(|server| ([("server", server.address.as_str())], number(server) as i64)).collect()
        };
        let bytes = Some(Unit::Bytes);
        page.gauges(
            "redis_memory_used",
            "Memory used by the Redis server",
            bytes.clone(),
            &each(&|server| server.used),
        )?;
        page.gauges(
            "redis_memory_max",
            "`maxmemory` of the Redis server; 0 if unlimited",
            bytes,
            &each(&|server| server.max),
        )?;
        let short = (!memory.servers.is_empty()).then_some(usize::from(memory.short));
        page.size("redis_memory_short", "1 while Redis memory is above `monitor.memory.threshold`", short)?;
        page.gauges(
            "redis_keys",
            "Keys in the Redis database, including foreign keys",
            None,
            &each(&|server| server.keys),
        )?;
        let weight = memory.usage.as_ref();
        let keys = weight.map(|weight| weight.keys as usize);
        page.size("redis_own_keys", "Slidegate keys in Redis, estimated from a sample", keys)?;
        page.bytes(
            "redis_own",
            "Bytes of Slidegate keys in Redis, estimated from a sample",
            weight.map(|weight| weight.bytes),
        )?;
        page.counter("gc_runs", "Garbage collection runs", memory.cleanups)?;
        page.counter("gc_dropped_keys", "Keys removed by garbage collection", memory.dropped)?;
        page.counter("gc_trimmed_entries", "Expired entries removed by garbage collection", memory.trimmed)?;
        page.counter("gc_freed_bytes", "Bytes freed by garbage collection", memory.freed)
    }
}
