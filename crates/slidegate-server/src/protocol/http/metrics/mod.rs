//! `GET /metrics`, for Prometheus. `docs/metrics.md` lists them all; a test sees to it.
//!
//! Labels are doors, rules, servers and words of ours: nothing that a caller sends becomes one.

mod page;

use std::convert::Infallible;
use std::fmt::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::{Registry, Unit};
use slidegate::{
    BATCH_BOUNDS, BreakerState, CALL_BOUNDS, CallStats, Discrepancy, MemoryStats, Mode, ServerMemory,
    ServerStats, Source,
};
use tokio::sync::OwnedSemaphorePermit;

use self::page::{Histogram, Labelled, Page};
use super::Shared;
use super::error::{ApiError, Code};
use super::operation::{Call, METRICS, Who};
use super::route::Route;
use crate::common::protocol::Protocol;
use crate::store::RedisStats;
use crate::telemetry::stats::{Change, Durations, Failure, RuleVerdict, Shed};

pub(super) fn route() -> Route {
    let call = Call::new(Who::Asking, "metrics", "For Prometheus: OpenMetrics")
        .answers_metrics("200", "The metrics")
        .fails(&[Code::Unavailable]);
    Route::new("/metrics").get(metrics, call)
}

async fn metrics(State(gate): State<Shared>) -> Result<Response, ApiError> {
    let Ok(place) = Arc::clone(&gate.export.metrics_pages).try_acquire_owned() else {
        return Err(ApiError::new(
            Code::Unavailable,
            "as many pages of metrics are sent as may be: try again",
        ));
    };
    let mut registry = Registry::with_prefix("slidegate");
    let (memory, redis) = (gate.memory_stats().await, gate.redis_stats().await);
    registry.register_collector(Box::new(Everything { gate, memory, redis }));
    let mut body = String::new();
    text::encode(&mut body, &registry)
        .map_err(|_| ApiError::new(Code::Unavailable, "the metrics cannot be written"))?;
    let sent = Sent { rest: Bytes::from(body), _place: place };
    Ok(([(header::CONTENT_TYPE, METRICS)], Body::new(sent)).into_response())
}

/// Bytes of a page that are handed over at once. The rest stays here until the client has taken those.
const PIECE: usize = 16 << 10;

/// A page on its way, and its place until most of it was sent.
struct Sent {
    rest: Bytes,
    _place: OwnedSemaphorePermit,
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(length);
        Poll::Ready((!piece.is_empty()).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// Collector of all metrics. Statistics that are gathered on a blocking thread are gathered before.
struct Everything {
    gate: Shared,
    memory: Option<MemoryStats>,
    redis: Option<RedisStats>,
}

impl std::fmt::Debug for Everything {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Everything")
    }
}

impl Collector for Everything {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut page = Page { encoder };
        self.decisions(&mut page)?;
        self.rules(&mut page)?;
        self.doors(&mut page)?;
        self.memory(&mut page)?;
        self.redis(&mut page)?;
        self.monitors(&mut page)
    }
}

impl Everything {
    fn decisions(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let stats = &self.gate.stats;
        let (rules, rows) = stats.rows();
        let mut said = Vec::new();
        for row in &rows {
            for word in RuleVerdict::ALL {
                for source in Source::ALL {
                    let count = row.verdicts(word, source);
                    if count > 0 || (source == Source::Store && word != RuleVerdict::WouldDeny) {
                        said.push((
                            [("rule", &*row.name), ("verdict", word.as_str()), ("source", source.as_str())],
                            count,
                        ));
                    }
                }
            }
        }
        page.counters("decisions", "What each rule said of requests, and who knew", &said)?;
        let watching = rules.iter().zip(&rows).filter(|(rule, _)| rule.in_mode() == Mode::Shadow);
        let changes = watching.flat_map(|(_, row)| {
            Change::ALL.map(|change| {
                ([("rule", row.name.as_str()), ("change", change.as_str())], row.changes(change))
            })
        });
        let help = "Requests that would be decided otherwise if shadows were enforced";
        page.counters("shadow_changes", help, &changes.collect::<Vec<_>>())?;
        let (mut requests, mut durations) = (Vec::new(), Vec::new());
        for door in Protocol::ALL {
            for source in Source::ALL {
                let mut all = Durations::default();
                for (allowed, verdict) in [(true, "allowed"), (false, "denied")] {
                    let some = stats.durations(door, allowed, source);
                    if some.count() > 0 || source == Source::Store {
                        let labels =
                            [("door", door.as_str()), ("verdict", verdict), ("source", source.as_str())];
                        requests.push((labels, some.count()));
                    }
                    all.add(&some);
                }
                if all.count() > 0 || source == Source::Store {
                    durations.push(([("door", door.as_str()), ("source", source.as_str())], all));
                }
            }
        }
        page.counters("requests", "Requests that were decided, and who decided", &requests)?;
        page.durations("decision_duration", "How long decisions took", &durations)?;
        let failures = Protocol::ALL.into_iter().flat_map(|door| {
            Failure::ALL
                .map(|kind| ([("door", door.as_str()), ("kind", kind.as_str())], stats.failures(door, kind)))
        });
        page.counters("failures", "Requests that could not be decided", &failures.collect::<Vec<_>>())?;
        let unmatched = Protocol::ALL.map(|door| ([("door", door.as_str())], stats.unmatched(door)));
        page.counters("unmatched_requests", "Requests that no rule matches", &unmatched)?;
        let limits: Vec<_> =
            rules.iter().map(|rule| ([("rule", rule.name())], rule.quota().limit() as i64)).collect();
        page.gauges("rule_limit", "What each rule allows in its window", None, &limits)?;
        let limits = rules.iter().zip(&rows);
        let limits = limits.map(|(rule, row)| ([("rule", rule.name())], row.effective_limit(rule) as i64));
        let help = "What it allows now, by the load or while it climbs";
        page.gauges("rule_effective_limit", help, None, &limits.collect::<Vec<_>>())?;
        let factors = rules
            .iter()
            .filter_map(|rule| Some(([("rule", rule.name())], f64::from(rule.factor()?) / 10_000.0)));
        let help = "What its limit is multiplied by now, if it follows the load";
        page.gauges("rule_factor", help, None, &factors.collect::<Vec<_>>())
    }

    fn rules(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let book = &self.gate.rules;
        let edition = book.current();
        page.gauge("rules_version", "The edition of the rules in force", edition.version as i64)?;
        let n = edition.rules.iter().count();
        page.gauge("rules_count", "How many rules are in force", n as i64)?;
        page.counter("rules_changes", "How often other rules were put in force", book.changes())?;
        page.counter("rules_failures", "How often rules were found that are not right", book.failures())?;
        let wrong = i64::from(book.failure().is_some());
        page.gauge("rules_wrong", "1 while the newest rules are not right, and not in force", wrong)?;
        let hash = [("hash", edition.hash.as_str())];
        page.info("rules", "The rules in force: the same on every node that has the same", &hash)
    }

    fn doors(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let connections =
            Protocol::ALL.map(|door| ([("door", door.as_str())], self.gate.stats.connections(door) as i64));
        page.gauges("connections", "Connections that are open", None, &connections)?;
        let shed = Protocol::ALL.into_iter().flat_map(|door| {
            Shed::ALL.map(|reason| {
                (
                    [("door", door.as_str()), ("reason", reason.as_str())],
                    self.gate.stats.shed_count(door, reason),
                )
            })
        });
        let help = "Connections that were closed because clients held too many, or sent nothing";
        page.counters("connections_shed", help, &shed.collect::<Vec<_>>())?;
        let unfinished = self.gate.unfinished.bytes() as u64;
        page.bytes("unfinished_requests", "Large requests that have not arrived whole", Some(unfinished))?;
        let recorded = self.gate.stats.recorder.stats();
        page.gauge("recordings", "Recordings of requests under way", recorded.recordings as i64)?;
        page.counter("recorded_requests", "Requests that were recorded", recorded.lines)?;
        let help = "Requests that were not, because what was recorded was not taken fast enough";
        page.counter("recording_drops", help, recorded.dropped)?;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        page.info("build", "The version of this server", &version)
    }

    fn memory(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let stats = self.memory.as_ref();
        page.size("memory_store_keys", "Keys held by the memory store", stats.map(|stats| stats.keys))?;
        let events = stats.map(|stats| stats.events);
        page.size("memory_store_events", "Admissions that it remembers one by one", events)?;
        page.bytes("memory_store", "What it takes", stats.map(|stats| stats.bytes as u64))?;
        let evicted = stats.map(|stats| stats.evicted);
        page.total(
            "memory_store_evictions",
            "Keys that still counted something and had to make room",
            evicted,
        )?;
        page.total(
            "memory_store_swept",
            "Keys that had nothing left to remember",
            stats.map(|stats| stats.swept),
        )?;
        let help = "Counters that keys share because the memory store is full";
        page.size("memory_store_shared_counters", help, stats.map(|stats| stats.shared_counters))?;
        let help = "Decisions about a key that were made by a shared counter";
        page.total("memory_store_shared_decisions", help, stats.map(|stats| stats.shared))?;
        let help = "Decisions about a key that were denied because the memory store was full";
        page.total("memory_store_denied_full", help, stats.map(|stats| stats.denied_full))?;
        let help = "Request ids and settlements; part of memory_store_bytes";
        page.bytes("memory_store_notes", help, stats.map(|stats| stats.note_bytes as u64))?;
        let help = "Request ids that were not remembered, because memory.max-note-bytes was used up";
        page.total("memory_store_ids_dropped", help, stats.map(|stats| stats.ids_dropped))?;
        let help = "Settlements that were not carried out, because memory.max-note-bytes was used up";
        page.total("memory_store_settlements_dropped", help, stats.map(|stats| stats.settlements_dropped))
    }

    fn redis(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let stats = self.redis.as_ref();
        self.servers(page, stats.map(|stats| stats.failover.servers.as_slice()).unwrap_or_default())?;
        let guard = stats.map(|stats| &stats.failover);
        page.size(
            "store_in_flight",
            "Calls to Redis that have not ended",
            guard.map(|guard| guard.in_flight),
        )?;
        page.total(
            "store_late",
            "Answers of Redis that came after their deadline",
            guard.map(|guard| guard.late),
        )?;
        let overloaded = guard.map(|guard| guard.overloaded);
        page.total(
            "store_overloaded",
            "Decisions without Redis, because too many calls were in flight",
            overloaded,
        )?;
        let mirror = guard.map(|guard| guard.mirror);
        page.size(
            "mirror_keys",
            "Keys whose admissions by this node are remembered",
            mirror.map(|mirror| mirror.keys),
        )?;
        page.bytes("mirror", "What that takes", mirror.map(|mirror| mirror.bytes as u64))?;
        self.calls(page, stats.map(|stats| &stats.calls))?;
        let hits = stats.map(|stats| stats.deny_cache.hits);
        page.total("deny_cache_hits", "Denials that were known already, without asking Redis", hits)?;
        let coalesce = stats.map(|stats| &stats.coalesce);
        page.total(
            "coalesced_calls",
            "Calls to Redis that requests could share",
            coalesce.map(|coalesce| coalesce.calls),
        )?;
        page.total("coalesced_asks", "Requests in them", coalesce.map(|coalesce| coalesce.asks))?;
        let lease = stats.map(|stats| &stats.lease);
        page.total(
            "lease_decisions",
            "Decisions out of permits taken in advance",
            lease.map(|lease| lease.answered),
        )?;
        page.size(
            "lease_keys",
            "Keys of which permits were taken in advance",
            lease.map(|lease| lease.keys),
        )?;
        let idle = lease.map(|lease| lease.idle as usize);
        page.size("lease_idle_permits", "Permits taken in advance and not used yet", idle)
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
            "Whether the server is asked: 0 yes, 1 it is tried, 2 no",
            None,
            &state,
        )?;
        let direct = each(servers, |server| i64::from(server.direct));
        let help = "1 while the server decides alone, 0 while this node decides by its share";
        page.gauges("redis_direct", help, None, &direct)?;
        let nodes = each(servers, |server| server.nodes as i64);
        page.gauges("nodes", "Processes that count on the server, as far as is known", None, &nodes)?;
        let outages = each(servers, |server| server.outages);
        page.counters("outages", "Times that the server was given up", &outages)?;
        let away = each(servers, |server| server.away.get() as f64 / 1e6);
        page.counters("fallback_seconds", "How long this node decided without the server", &away)?;
        let written = each(servers, |server| server.written_back);
        page.counters("written_back_permits", "Permits that were written back to the server", &written)?;
        let excess = each(servers, |server| server.excess);
        page.counters("excess_permits", "Permits by which writing back took keys above their limit", &excess)
    }

    fn calls(&self, page: &mut Page<'_>, calls: Option<&CallStats>) -> Result<(), Error> {
        page.total("store_calls", "Calls to Redis that decided or settled", calls.map(|calls| calls.calls))?;
        page.total("store_asks", "Requests that were decided in them", calls.map(|calls| calls.asks))?;
        let errors = calls.map(|calls| calls.errors.as_slice()).unwrap_or_default();
        let errors: Vec<_> =
            errors.iter().map(|(fault, count)| ([("kind", fault.as_str())], *count)).collect();
        page.counters("store_errors", "Calls to Redis that failed", &errors)?;
        let durations = calls.map(|calls| Histogram {
            bounds: CALL_BOUNDS.iter().map(|micros| *micros as f64 / 1e6).collect(),
            counts: calls.durations.clone(),
            sum: calls.time.get() as f64 / 1e6,
        });
        page.histogram(
            "store_call_duration",
            "How long calls to Redis took",
            Some(Unit::Seconds),
            durations,
        )?;
        let batches = calls.map(|calls| Histogram {
            bounds: BATCH_BOUNDS.iter().map(|asks| *asks as f64).collect(),
            counts: calls.batches.clone(),
            sum: calls.tried as f64,
        });
        page.histogram("store_batch_size", "Requests that were decided in one call to Redis", None, batches)
    }

    fn monitors(&self, page: &mut Page<'_>) -> Result<(), Error> {
        let accuracy = self.gate.monitor.accuracy.findings();
        let ratio: Vec<Labelled<0, f64>> = accuracy.last.map(|(ratio, _)| ([], ratio)).into_iter().collect();
        let help = "The share of the keys that were counted again lately that was right";
        page.gauges("accuracy_ratio", help, None, &ratio)?;
        page.counter("accuracy_checked_keys", "Keys that were counted again", accuracy.checked)?;
        page.counter("accuracy_wrong_keys", "Those of them that were not right", accuracy.wrong)?;
        page.counter("accuracy_repaired_keys", "Those of them that were put right", accuracy.repaired)?;
        page.counter("accuracy_failures", "Rounds that the store could not answer", accuracy.failed)?;
        let causes = Discrepancy::CAUSES.map(|cause| {
            let known = accuracy.causes.iter().find(|(known, _)| *known == cause);
            ([("cause", cause)], known.map_or(0, |(_, count)| *count))
        });
        page.counters("accuracy_discrepancies", "What was not right", &causes)?;
        let memory = self.gate.monitor.memory.findings();
        let each = |number: &dyn Fn(&ServerMemory) -> u64| -> Vec<Labelled<1, i64, &str>> {
            let servers = memory.servers.iter();
            servers.map(|server| ([("server", server.address.as_str())], number(server) as i64)).collect()
        };
        let bytes = Some(Unit::Bytes);
        page.gauges(
            "redis_memory_used",
            "What Redis has in use",
            bytes.clone(),
            &each(&|server| server.used),
        )?;
        page.gauges("redis_memory_max", "Its `maxmemory`; 0 is none", bytes, &each(&|server| server.max))?;
        let short = (!memory.servers.is_empty()).then_some(usize::from(memory.short));
        page.size("redis_memory_short", "1 while it is above `monitor.memory.threshold`", short)?;
        page.gauges(
            "redis_keys",
            "Keys in its database, ours and others",
            None,
            &each(&|server| server.keys),
        )?;
        let weight = memory.usage.as_ref();
        let keys = weight.map(|weight| weight.keys as usize);
        page.size("redis_own_keys", "Keys of ours, by a sample", keys)?;
        page.bytes("redis_own", "What they take, by a sample", weight.map(|weight| weight.bytes))?;
        page.counter("cleanups", "How often what no longer counts was cleaned up", memory.cleanups)?;
        page.counter("cleanup_dropped_keys", "Keys that were dropped", memory.dropped)?;
        page.counter("cleanup_trimmed_entries", "Entries that were trimmed", memory.trimmed)?;
        page.counter("cleanup_freed_bytes", "What that freed", memory.freed)
    }
}
