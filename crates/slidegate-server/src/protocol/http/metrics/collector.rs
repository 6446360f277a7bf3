//! Collector of the metrics: reads the statistics of the server when a page is written.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use slidegate::{
    Mode, ShadowChange, Source,
    algorithm::Discrepancy,
    redis::{BATCH_BOUNDS, BreakerState, CALL_BOUNDS, CallStats, ServerStats},
    store::MemoryStats,
};

use super::catalog;
use super::page::{Histogram, Page};
use crate::common::protocol::Protocol;
use crate::protocol::http::Shared;
use crate::store::RedisStats;
use crate::telemetry::stats::{
    BOUNDS, Durations, Failure, FollowUp, FollowUpOutcome, FollowUpTotals, RuleVerdict, Shed,
};

/// Microseconds in a second, the unit of durations on the page.
const MICROS: f64 = 1e6;

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
        page.series(&catalog::DECISIONS, decisions)?;
        let shadow_rules = rules.iter().zip(&rows).filter(|(rule, _)| rule.in_mode() == Mode::Shadow);
        let changes = shadow_rules.flat_map(|(_, row)| {
            ShadowChange::ALL.map(|change| ([row.name.as_str(), change.as_str()], row.changes(change)))
        });
        page.series(&catalog::SHADOW_CHANGES, changes)?;
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
        page.series(&catalog::REQUESTS, requests)?;
        page.histograms(&catalog::DECISION_DURATION_SECONDS, MICROS, histograms(&durations))?;
        let failures = Protocol::ALL.into_iter().flat_map(|protocol| {
            Failure::ALL.map(|kind| ([protocol.as_str(), kind.as_str()], stats.failures(protocol, kind)))
        });
        page.series(&catalog::FAILURES, failures)?;
        let unmatched = Protocol::ALL.map(|protocol| ([protocol.as_str()], stats.unmatched(protocol)));
        page.series(&catalog::UNMATCHED_REQUESTS, unmatched)?;
        self.follow_ups(page)?;
        let limits = rules.iter().map(|rule| ([rule.name()], rule.quota().limit()));
        page.series(&catalog::RULE_LIMIT, limits)?;
        let limits = rules.iter().zip(&rows).map(|(rule, row)| ([rule.name()], row.effective_limit(rule)));
        page.series(&catalog::RULE_EFFECTIVE_LIMIT, limits)?;
        let factors =
            rules.iter().filter_map(|rule| Some(([rule.name()], f64::from(rule.factor()?) / 10_000.0)));
        page.series(&catalog::RULE_FACTOR, factors)
    }

    fn follow_ups(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let stats = &self.app.stats;
        let (mut calls, mut durations) = (Vec::new(), Vec::new());
        for protocol in Protocol::ALL {
            for kind in FollowUp::ALL {
                let FollowUpTotals { outcomes, durations: took } = stats.follow_ups(protocol, kind);
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
        page.series(&catalog::FOLLOW_UPS, calls)?;
        page.histograms(&catalog::FOLLOW_UP_DURATION_SECONDS, MICROS, histograms(&durations))
    }

    fn rules(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let manager = &self.app.rules;
        let edition = manager.current();
        page.value(&catalog::RULES_VERSION, Some(edition.version))?;
        page.value(&catalog::RULES_COUNT, Some(edition.rules.iter().count()))?;
        page.value(&catalog::RULES_CHANGES, Some(manager.changes()))?;
        page.value(&catalog::RULES_FAILURES, Some(manager.failures()))?;
        page.value(&catalog::RULES_INVALID, Some(u64::from(manager.failure().is_some())))?;
        page.info(&catalog::RULES, [&edition.hash])
    }

    fn listeners(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let stats = &self.app.stats;
        let connections = Protocol::ALL.map(|protocol| ([protocol.as_str()], stats.connections(protocol)));
        page.series(&catalog::CONNECTIONS, connections)?;
        let shed = Protocol::ALL.into_iter().flat_map(|protocol| {
            Shed::ALL.map(|reason| ([protocol.as_str(), reason.as_str()], stats.shed_count(protocol, reason)))
        });
        page.series(&catalog::CONNECTIONS_SHED, shed)?;
        page.value(&catalog::UNFINISHED_REQUESTS_BYTES, Some(self.app.unfinished.bytes()))?;
        let recorded = stats.recorder.stats();
        page.value(&catalog::RECORDINGS, Some(recorded.recordings))?;
        page.value(&catalog::RECORDED_REQUESTS, Some(recorded.lines))?;
        page.value(&catalog::RECORDING_DROPS, Some(recorded.dropped))?;
        page.info(&catalog::BUILD, [env!("CARGO_PKG_VERSION")])
    }

    fn memory(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let stats = self.memory.as_ref();
        page.value(&catalog::MEMORY_STORE_KEYS, stats.map(|stats| stats.keys))?;
        page.value(&catalog::MEMORY_STORE_EVENTS, stats.map(|stats| stats.events))?;
        page.value(&catalog::MEMORY_STORE_BYTES, stats.map(|stats| stats.bytes))?;
        page.value(&catalog::MEMORY_STORE_EVICTIONS, stats.map(|stats| stats.evicted))?;
        page.value(&catalog::MEMORY_STORE_SWEPT, stats.map(|stats| stats.swept))?;
        page.value(&catalog::MEMORY_STORE_SHARED_COUNTERS, stats.map(|stats| stats.shared_counters))?;
        page.value(&catalog::MEMORY_STORE_SHARED_DECISIONS, stats.map(|stats| stats.shared))?;
        page.value(&catalog::MEMORY_STORE_DENIED_FULL, stats.map(|stats| stats.denied_full))?;
        page.value(&catalog::MEMORY_STORE_NOTES_BYTES, stats.map(|stats| stats.note_bytes))?;
        page.value(&catalog::MEMORY_STORE_IDS_DROPPED, stats.map(|stats| stats.ids_dropped))?;
        page.value(&catalog::MEMORY_STORE_SETTLEMENTS_DROPPED, stats.map(|stats| stats.settlements_dropped))
    }

    fn redis(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let stats = self.redis.as_ref();
        let failover = stats.map(|stats| &stats.failover);
        servers(page, failover.map(|failover| failover.servers.as_slice()).unwrap_or_default())?;
        page.value(&catalog::STORE_IN_FLIGHT, failover.map(|failover| failover.in_flight))?;
        page.value(&catalog::STORE_LATE, failover.map(|failover| failover.late))?;
        page.value(&catalog::STORE_OVERLOADED, failover.map(|failover| failover.overloaded))?;
        let journal = failover.map(|failover| failover.journal);
        page.value(&catalog::JOURNAL_KEYS, journal.map(|journal| journal.keys))?;
        page.value(&catalog::JOURNAL_BYTES, journal.map(|journal| journal.bytes))?;
        calls(page, stats.map(|stats| &stats.calls))?;
        page.value(&catalog::DENY_CACHE_HITS, stats.map(|stats| stats.deny_cache.hits))?;
        page.value(&catalog::COALESCED_CALLS, stats.map(|stats| stats.coalesce.calls))?;
        page.value(&catalog::COALESCED_REQUESTS, stats.map(|stats| stats.coalesce.requests))?;
        page.value(&catalog::LEASE_DECISIONS, stats.map(|stats| stats.lease.answered))?;
        page.value(&catalog::LEASE_KEYS, stats.map(|stats| stats.lease.keys))?;
        page.value(&catalog::LEASE_IDLE_PERMITS, stats.map(|stats| stats.lease.idle))
    }

    fn monitors(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let accuracy = self.app.monitor.accuracy.findings();
        page.value(&catalog::ACCURACY_RATIO, accuracy.last.map(|(ratio, _)| ratio))?;
        page.value(&catalog::ACCURACY_CHECKED_KEYS, Some(accuracy.checked))?;
        page.value(&catalog::ACCURACY_WRONG_KEYS, Some(accuracy.wrong))?;
        page.value(&catalog::ACCURACY_REPAIRED_KEYS, Some(accuracy.repaired))?;
        page.value(&catalog::ACCURACY_FAILURES, Some(accuracy.failed))?;
        let causes = Discrepancy::CAUSES.map(|cause| {
            let known = accuracy.causes.iter().find(|(known, _)| *known == cause);
            ([cause], known.map_or(0, |(_, count)| *count))
        });
        page.series(&catalog::ACCURACY_DISCREPANCIES, causes)?;
        let memory = self.app.monitor.memory.findings();
        let servers = || memory.servers.iter().map(|server| ([server.address.as_str()], server));
        let used = servers().map(|(labels, server)| (labels, server.used));
        page.series(&catalog::REDIS_MEMORY_USED_BYTES, used)?;
        page.series(
            &catalog::REDIS_MEMORY_MAX_BYTES,
            servers().map(|(labels, server)| (labels, server.max)),
        )?;
        let short = (!memory.servers.is_empty()).then_some(u64::from(memory.short));
        page.value(&catalog::REDIS_MEMORY_SHORT, short)?;
        page.series(&catalog::REDIS_KEYS, servers().map(|(labels, server)| (labels, server.keys)))?;
        let usage = memory.usage.as_ref();
        page.value(&catalog::REDIS_OWN_KEYS, usage.map(|usage| usage.keys))?;
        page.value(&catalog::REDIS_OWN_BYTES, usage.map(|usage| usage.bytes))?;
        page.value(&catalog::GC_RUNS, Some(memory.cleanups))?;
        page.value(&catalog::GC_DROPPED_KEYS, Some(memory.dropped))?;
        page.value(&catalog::GC_TRIMMED_ENTRIES, Some(memory.trimmed))?;
        page.value(&catalog::GC_FREED_BYTES, Some(memory.freed))
    }
}

fn servers(page: &mut Page<'_>, servers: &[ServerStats]) -> Result<(), Error> {
    let each = || servers.iter().map(|server| ([server.address.as_str()], server));
    let state = each().map(|(labels, server)| {
        let state = match server.breaker {
            BreakerState::Closed => 0u64,
            BreakerState::HalfOpen => 1,
            _ => 2,
        };
        (labels, state)
    });
    page.series(&catalog::BREAKER_STATE, state)?;
    page.series(&catalog::REDIS_DIRECT, each().map(|(labels, server)| (labels, u64::from(server.direct))))?;
    page.series(&catalog::NODES, each().map(|(labels, server)| (labels, server.nodes)))?;
    page.series(&catalog::OUTAGES, each().map(|(labels, server)| (labels, server.outages)))?;
    let away = each().map(|(labels, server)| (labels, server.away.get() as f64 / MICROS));
    page.series(&catalog::FALLBACK_SECONDS, away)?;
    page.series(
        &catalog::WRITTEN_BACK_PERMITS,
        each().map(|(labels, server)| (labels, server.written_back)),
    )?;
    page.series(&catalog::EXCESS_PERMITS, each().map(|(labels, server)| (labels, server.excess)))
}

fn calls(page: &mut Page<'_>, calls: Option<&CallStats>) -> Result<(), Error> {
    page.value(&catalog::STORE_CALLS, calls.map(|calls| calls.calls))?;
    page.value(&catalog::STORE_REQUESTS, calls.map(|calls| calls.requests))?;
    let errors = calls.into_iter().flat_map(|calls| &calls.errors);
    page.series(&catalog::STORE_ERRORS, errors.map(|(fault, count)| ([fault.as_str()], *count)))?;
    let durations = calls.map(|calls| Histogram {
        bounds: &CALL_BOUNDS,
        counts: &calls.durations,
        sum: calls.time.get(),
    });
    page.histograms(
        &catalog::STORE_CALL_DURATION_SECONDS,
        MICROS,
        durations.map(|durations| ([], durations)),
    )?;
    let batches =
        calls.map(|calls| Histogram { bounds: &BATCH_BOUNDS, counts: &calls.batches, sum: calls.tried });
    page.histograms(&catalog::STORE_BATCH_SIZE, 1.0, batches.map(|batches| ([], batches)))
}

fn histograms<'h, const N: usize>(
    durations: &'h [([&'static str; N], Durations)],
) -> impl Iterator<Item = ([&'h str; N], Histogram<'h>)> {
    durations.iter().map(|(labels, durations)| {
        (*labels, Histogram { bounds: &BOUNDS, counts: &durations.buckets, sum: durations.sum })
    })
}
