//! Field `adaptive` of a rule.

use crate::common::percent::percent;
use crate::common::section::{FieldType, Hundredths, Kind, Percent, Section, Shown, Terms, Vocabulary};
use crate::common::yaml::{Node, Reader};
use crate::dynamic::adaptive::{Latencies, Thresholds};
use crate::dynamic::adaptive::{MAX_FACTOR, MAX_SMOOTH, MIN_SMOOTH, WHOLE};
use crate::{Adaptive, Error, Micros};

crate::section! {
    /// Settings of a limit that follows the load.
    pub(super) struct AdaptiveFile("Adaptive", dotted: true, base: Adaptive::default()) for Adaptive {
        /// Thresholds of the CPU use: below `low` the host has spare capacity, at `high` and above it is overloaded.
        /// Or `off`.
        cpu: CpuUse,
        /// Thresholds of the memory use: below `low` the host has spare capacity, at `high` and above it is
        /// overloaded. Or `off`.
        memory: MemoryUse,
        /// Thresholds of the reported latencies: below `low` there is spare capacity, at `high` and above there is
        /// overload. Or a `tolerance`, or `gradient`, or `off`.
        latency: ReportedLatency,
        /// Lower bound of the factor by which the limit is multiplied.
        min: Percent { between(WHOLE as u64 / 100, WHOLE as u64) },
        /// Upper bound of the factor by which the limit is multiplied.
        max: Percent { between(WHOLE as u64, MAX_FACTOR as u64) },
        /// Weight of the changes that `below` and `above` cause. `0.5` applies half of each change.
        sensitivity: Hundredths { between(1, 1_000) },
        /// Time in which a falling limit covers about two thirds of the distance to its new value. A rising limit
        /// takes three times as long.
        smooth: Micros { lasting(MIN_SMOOTH, MAX_SMOOTH) },
    }
}

crate::section! {
    /// Thresholds of spare capacity and of overload, as shares of the CPU or of the memory.
    struct ShareThresholds("ShareThresholds", dotted: true, base: CpuUse::DEFAULT) for Thresholds {
        /// Below this value there is spare capacity.
        low: Share { by_default("").example("50%") },
        /// At this value and above, there is overload.
        high: Share { by_default("").example("80%") },
        /// Factor by which the limit is multiplied while there is spare capacity.
        below: Percent { by_default("").example("120%") },
        /// Factor by which the limit is multiplied during overload.
        above: Percent { by_default("").example("70%") },
    }
}

crate::section! {
    /// Thresholds of spare capacity and of overload, as latencies.
    struct LatencyThresholds("LatencyThresholds", dotted: true, base: Thresholds::LATENCY) for Thresholds {
        /// Below this value there is spare capacity.
        low: Latency,
        /// At this value and above, there is overload.
        high: Latency,
        /// Factor by which the limit is multiplied while there is spare capacity.
        below: Percent,
        /// Factor by which the limit is multiplied during overload.
        above: Percent,
    }
}

crate::section! {
    /// Tolerance for latencies, relative to their floor (the lowest latency over a long time).
    struct Tolerance("Tolerance", dotted: true) {
        /// Latency that is still tolerated, as a share of the floor: from `110%` to `10000%`.
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
                let off = words("Off", &[("off", "The limit does not depend on this value.")]);
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
            &[("gradient", "The same as `tolerance: 200%`: latencies of up to twice the floor are tolerated."), ("off", "The limit does not depend on latencies.")],
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
