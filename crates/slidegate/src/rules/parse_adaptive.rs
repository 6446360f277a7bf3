//! Parsing of the field `adaptive`.

use super::rule::Rule;
use crate::common::yaml::{Fields, Node, Reader};
use crate::{Adaptive, Latencies, Thresholds};

const FIELDS: [&str; 7] = ["cpu", "memory", "latency", "min", "max", "sensitivity", "smooth"];

/// Returns false if the field is invalid. The combination with the quota is checked only if the quota is valid.
pub(super) fn read_adaptive(
    fields: &Fields<'_>,
    reader: &mut Reader,
    rule: &mut Rule,
    valid_quota: bool,
) -> bool {
    let Some(node) = fields.get("adaptive") else { return true };
    let Some(terms) = read_terms(node, reader) else { return false };
    if !valid_quota {
        return true;
    }
    match reader.accept(node, rule.clone().adaptive(terms)) {
        Some(adapting) => *rule = adapting,
        None => return false,
    }
    true
}

fn read_terms(node: &Node, reader: &mut Reader) -> Option<Adaptive> {
    let fields = reader.fields(node, "adaptive", &FIELDS)?;
    let defaults = Adaptive::default();
    let cpu = fields.get("cpu").map_or(Some(defaults.by_cpu()), |node| {
        read_thresholds(node, reader, "adaptive.cpu", defaults.by_cpu(), share)
    });
    let memory = fields.get("memory").map_or(Some(defaults.by_memory()), |node| {
        read_thresholds(node, reader, "adaptive.memory", defaults.by_memory(), share)
    });
    let latency =
        fields.get("latency").map_or(Some(defaults.by_latency()), |node| read_latency(node, reader));
    let (default_min, default_max) = defaults.bounds();
    let mut bound = |name: &str, default: u32| {
        fields.get(name).map_or(Some(default), |node| reader.percent(node, &format!("adaptive.{name}")))
    };
    let (min, max) = (bound("min", default_min), bound("max", default_max));
    let mut terms = defaults.cpu(cpu?).memory(memory?);
    match latency? {
        Some(Latencies::Thresholds(thresholds)) => terms = terms.latency(Some(thresholds)),
        Some(Latencies::Gradient(tolerance)) => {
            let node = fields.get("latency").unwrap_or(node);
            reader.accept(node, terms.set_tolerance(tolerance))?;
        }
        None => terms = terms.latency(None),
    }
    reader.accept(node, terms.set_bounds(min?, max?))?;
    if let Some(node) = fields.get("sensitivity") {
        let hundredths = reader.hundredths(node, "adaptive.sensitivity")?;
        terms = reader.accept(node, terms.sensitivity(hundredths))?;
    }
    if let Some(node) = fields.get("smooth") {
        let smooth = reader.duration(node, "adaptive.smooth")?;
        terms = reader.accept(node, terms.smooth(smooth.into()))?;
    }
    if terms.by_cpu().is_none() && terms.by_memory().is_none() && terms.by_latency().is_none() {
        reader.problem(node, "adaptive needs something to follow: cpu, memory or latency");
        return None;
    }
    Some(terms)
}

/// Reader of one threshold.
type ThresholdReader = fn(&mut Reader, &Node, &str) -> Option<u64>;

fn share(reader: &mut Reader, node: &Node, what: &str) -> Option<u64> {
    let share = reader.percent(node, what)?;
    if share > 10_000 {
        reader.problem(node, format!("{what} must be at most 100%"));
        return None;
    }
    Some(share.into())
}

/// Reads thresholds, with defaults for those that are not given; or `off`.
fn read_thresholds(
    node: &Node,
    reader: &mut Reader,
    what: &str,
    defaults: Option<Thresholds>,
    read_threshold: ThresholdReader,
) -> Option<Option<Thresholds>> {
    if node.is_word("off") {
        return Some(None);
    }
    let fields = reader.fields(node, what, &["low", "high", "below", "above"])?;
    let mut thresholds = defaults?;
    let mut valid = true;
    for (name, target) in [("low", &mut thresholds.low), ("high", &mut thresholds.high)] {
        if let Some(node) = fields.get(name) {
            let read = read_threshold(reader, node, &format!("{what}.{name}"));
            valid &= read.is_some();
            *target = read.unwrap_or(*target);
        }
    }
    for (name, target) in [("below", &mut thresholds.below), ("above", &mut thresholds.above)] {
        if let Some(node) = fields.get(name) {
            let read = reader.percent(node, &format!("{what}.{name}"));
            valid &= read.is_some();
            *target = read.unwrap_or(*target);
        }
    }
    if !valid {
        return None;
    }
    let checked = thresholds.checked().map_err(|error| reader.problem(node, format!("{what}: {error}")));
    checked.ok().map(Some)
}

/// Reads thresholds, or a tolerance above the floor, or `gradient` (a tolerance of 200 %), or `off`.
fn read_latency(node: &Node, reader: &mut Reader) -> Option<Option<Latencies>> {
    if node.is_word("gradient") {
        return Some(Some(Latencies::Gradient(20_000)));
    }
    if let Some(tolerance) = node.field("tolerance") {
        reader.fields(node, "adaptive.latency with `tolerance`", &["tolerance"])?;
        let share = reader.percent(tolerance, "adaptive.latency.tolerance")?;
        return Some(Some(Latencies::Gradient(share)));
    }
    let defaults = Adaptive::default().by_latency().and_then(|latencies| match latencies {
        Latencies::Thresholds(thresholds) => Some(thresholds),
        Latencies::Gradient(_) => None,
    });
    let read_threshold: ThresholdReader =
        |reader, node, what| reader.duration(node, what).map(|time| time.get());
    Some(
        read_thresholds(node, reader, "adaptive.latency", defaults, read_threshold)?
            .map(Latencies::Thresholds),
    )
}
