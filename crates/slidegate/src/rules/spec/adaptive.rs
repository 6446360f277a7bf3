//! Field `adaptive` of a rule.

use crate::common::percent::percent;
use crate::common::section::{FieldType, Hundredths, Kind, Percent, Section, Shown, Terms, Vocabulary};
use crate::common::yaml::{Node, Reader};
use crate::dynamic::adaptive::{Latencies, Thresholds};
use crate::dynamic::adaptive::{MAX_FACTOR, MAX_SMOOTH, MIN_SMOOTH, WHOLE};
use crate::{Adaptive, Error, Micros};

crate::section! {
    /// Settings by which a limit follows the load.
    pub(super) struct AdaptiveFile("Adaptive", dotted: true, base: Adaptive::default()) for Adaptive {
        /// CPU use: spare capacity below `low`, overload from `high` on. Or `off`.
        cpu: CpuUse,
        /// Memory use: spare capacity below `low`, overload from `high` on. Or `off`.
        memory: MemoryUse,
        /// Reported latencies: spare capacity below `low`, overload from `high` on. Or `gradient`, or `off`.
        latency: ReportedLatency,
        /// Lowest share of the limit.
        min: Percent { between(WHOLE as u64 / 100, WHOLE as u64) },
        /// Highest share of the limit.
        max: Percent { between(WHOLE as u64, MAX_FACTOR as u64) },
        /// Strength with which the thresholds act.
        sensitivity: Hundredths { between(1, 1_000) },
        /// Time constant of a fall: after this time the limit has covered two thirds of the distance. A rise takes three times
        /// as long.
        smooth: Micros { lasting(MIN_SMOOTH, MAX_SMOOTH) },
    }
}

crate::section! {
    /// Thresholds of spare capacity and of overload: shares of the CPU or the memory.
    struct ShareThresholds("ShareThresholds", dotted: true, base: CpuUse::DEFAULT) for Thresholds {
        /// Below this value there is spare capacity.
        low: Share { by_default("").example("50%") },
        /// From this value on the server is overloaded.
        high: Share { by_default("").example("80%") },
        /// Share of the limit with spare capacity.
        below: Percent { by_default("").example("120%") },
        /// Share of the limit under overload.
        above: Percent { by_default("").example("70%") },
    }
}

crate::section! {
    /// Thresholds of spare capacity and of overload: latencies.
    struct LatencyThresholds("LatencyThresholds", dotted: true, base: Thresholds::LATENCY) for Thresholds {
        /// Below this value there is spare capacity.
        low: Latency,
        /// From this value on the server is overloaded.
        high: Latency,
        /// Share of the limit with spare capacity.
        below: Percent,
        /// Share of the limit under overload.
        above: Percent,
    }
}

crate::section! {
    /// Tolerance of latencies relative to their long-run floor.
    struct Tolerance("Tolerance", dotted: true) {
        /// From `110%` to `10000%`.
        tolerance: u32 as Percent { required().example("200%") },
    }
}

/// Threshold of a share, in hundredths of a percent.
struct Share;

crate::field_type! {
    Share => u64,
    kind: |terms| Percent::kind(terms),
    read: |node, reader, what, terms| {
        let share = Percent::read(node, reader, what, terms)?;
        if share > WHOLE {
            return reader.reject(node, format!("{what} must be at most 100%"));
        }
        Some(share.into())
    },
    shown: |value| Shown::Text(percent(u32::try_from(*value).unwrap_or(u32::MAX))),
}

/// Threshold of a latency, in microseconds.
struct Latency;

crate::field_type! {
    Latency => u64,
    kind: |terms| Micros::kind(terms),
    read: |node, reader, what, terms| Micros::read(node, reader, what, terms).map(Micros::get),
    shown: |value| Micros::shown(&Micros::new(*value)),
}

/// Reads thresholds, with defaults for those that are not given.
fn read_thresholds<T: Section<Target = Thresholds>>(
    node: &Node,
    reader: &mut Reader,
    what: &str,
    defaults: Thresholds,
) -> Option<Thresholds> {
    let fields = reader.fields(node, what, &T::names())?;
    let given = T::given_from(defaults, fields, reader, what);
    if !given.valid {
        return None;
    }
    let checked = given.value.checked();
    checked.map_err(|error| reader.problem(node, format!("{what}: {error}"))).ok()
}

/// Words that stand for a whole field.
fn words(name: &'static str, words: &[(&'static str, &'static str)]) -> Kind {
    Kind::Words(Vocabulary { name, doc: "A word instead of thresholds.", words: words.to_vec() })
}

/// Thresholds of a share, or `off`.
macro_rules! host_use {
    ($($(#[doc = $doc:literal])* $name:ident = $defaults:expr;)*) => { $(
        $(#[doc = $doc])*
        struct $name;

        impl $name {
            const DEFAULT: Thresholds = $defaults;
        }

        impl FieldType for $name {
            type Value = Option<Thresholds>;

            fn kind(terms: &Terms) -> Kind {
                let off = words("Off", &[("off", "The input is ignored.")]);
                Kind::Union("Shares", vec![ShareThresholds::kind(terms), off])
            }

            fn read(node: &Node, reader: &mut Reader, what: &str, _: &Terms) -> Option<Option<Thresholds>> {
                if node.is_word("off") {
                    return Some(None);
                }
                read_thresholds::<ShareThresholds>(node, reader, what, $name::DEFAULT).map(Some)
            }

            fn shown(value: &Option<Thresholds>) -> Shown {
                value.as_ref().map_or(Shown::Text("off".to_owned()), ShareThresholds::show)
            }
        }
    )* };
}

host_use! {
    /// Thresholds of the CPU use, or `off`.
    CpuUse = Thresholds::CPU;
    /// Thresholds of the memory use, or `off`.
    MemoryUse = Thresholds::MEMORY;
}

/// Thresholds, or a tolerance above the floor, or `gradient` (a tolerance of 200 %), or `off`.
struct ReportedLatency;

crate::field_type! {
    ReportedLatency => Option<Latencies>,
    kind: |terms| {
        let words = words(
            "LatencyWord",
            &[("gradient", "Up to twice the floor."), ("off", "Latencies are ignored.")],
        );
        Kind::Union("Latencies", vec![LatencyThresholds::kind(terms), Tolerance::kind(terms), words])
    },
    read: |node, reader, what, _| {
        if node.is_word("off") {
            return Some(None);
        }
        if node.is_word("gradient") {
            return Some(Some(Latencies::Gradient(2 * WHOLE)));
        }
        if node.field("tolerance").is_some() {
            let fields = reader.fields(node, &format!("{what} with `tolerance`"), &Tolerance::names())?;
            let given = Tolerance::given_from(Tolerance::default(), fields, reader, what);
            let share = given.valid.then_some(given.value.tolerance)?;
            reader.accept(node, Adaptive::default().set_tolerance(share))?;
            return Some(Some(Latencies::Gradient(share)));
        }
        let thresholds = read_thresholds::<LatencyThresholds>(node, reader, what, Thresholds::LATENCY)?;
        Some(Some(Latencies::Thresholds(thresholds)))
    },
    shown: |value| {
        match value {
            Some(Latencies::Thresholds(thresholds)) => LatencyThresholds::show(thresholds),
            Some(Latencies::Gradient(tolerance)) => Tolerance::show(&Tolerance { tolerance: *tolerance }),
            None => Shown::Text("off".to_owned()),
        }
    },
}

/// Returns the settings, unless they ignore every input.
pub(super) fn checked(terms: &Adaptive) -> Result<Adaptive, Error> {
    let adapts = terms.cpu.is_some() || terms.memory.is_some() || terms.latency.is_some();
    ensure!(adapts, "adaptive needs at least one of cpu, memory and latency");
    Ok(terms.clone())
}
