//! Quota of a rule: the fields `limit`, `window`, `algorithm`, `burst`, `slices` and `count`.

use super::rule::RuleFile;
use crate::common::section::Given;
use crate::common::yaml::Reader;
use crate::quota::{MAX_WINDOW, check_slices};
use crate::rules::rule::check_held;
use crate::{Algorithm, Count, Quota};

const DEFAULT_SLICES: u32 = 10;

crate::words! {
    /// The counting algorithm. Its parameter is another field.
    pub enum AlgorithmName default SlidingWindow {
        /// Exact: never more than the limit in any interval of the window's length.
        SlidingWindow = "sliding-window",
        /// The count restarts at every multiple of the window.
        FixedWindow = "fixed-window",
        /// The window moves in steps of one slice; never over the limit, in constant memory.
        TimeSlice = "time-slice",
        /// Refills steadily, and allows a burst.
        TokenBucket = "token-bucket",
        /// A number of permits at once: each is held until it is released, or for the window.
        Concurrency = "concurrency",
    }
}

impl From<Algorithm> for AlgorithmName {
    fn from(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::SlidingWindow => AlgorithmName::SlidingWindow,
            Algorithm::FixedWindow => AlgorithmName::FixedWindow,
            Algorithm::TimeSlice { .. } => AlgorithmName::TimeSlice,
            Algorithm::TokenBucket { .. } => AlgorithmName::TokenBucket,
            Algorithm::Concurrency => AlgorithmName::Concurrency,
        }
    }
}

/// Reads the quota of a limited rule. `what` names the rule in messages.
pub(super) fn read_quota(given: &Given<'_, RuleFile>, reader: &mut Reader, what: &str) -> Option<Quota> {
    let file = &given.value;
    for name in ["limit", "window"] {
        given.fields.required(reader, name, what);
    }
    let algorithm = given.or("algorithm", file.algorithm, AlgorithmName::SlidingWindow);
    for (name, owner) in [("slices", AlgorithmName::TimeSlice), ("burst", AlgorithmName::TokenBucket)] {
        if let (Some(node), Some(algorithm)) = (given.fields.get(name), algorithm)
            && algorithm != owner
        {
            reader.problem(node, format!("`{name}` belongs to algorithm: {}", owner.as_str()));
        }
    }
    let slices = given.or("slices", file.slices, DEFAULT_SLICES).and_then(|slices| {
        let node = given.fields.get("slices");
        let checked =
            node.map(|node| reader.accept(node, check_slices(slices, file.window.unwrap_or(MAX_WINDOW))));
        (checked != Some(None)).then_some(slices)
    });
    let (limit, window) = (file.limit?, file.window?);
    let algorithm = match algorithm? {
        AlgorithmName::SlidingWindow => Algorithm::SlidingWindow,
        AlgorithmName::FixedWindow => Algorithm::FixedWindow,
        AlgorithmName::TimeSlice => Algorithm::TimeSlice { slices: slices? },
        AlgorithmName::TokenBucket => Algorithm::TokenBucket { burst: given.or("burst", file.burst, limit)? },
        AlgorithmName::Concurrency => Algorithm::Concurrency,
    };
    let quota = Quota::new(limit, window.into()).and_then(|quota| quota.with_algorithm(algorithm));
    let count = given.or("count", file.count, Count::Admitted);
    let quota = reader.accept(given.node("burst"), quota)?.with_count(count?);
    reader.accept(given.node("count"), check_held(&quota))?;
    Some(quota)
}

/// Returns the burst of a token bucket.
pub(super) fn burst(quota: Quota) -> Option<u64> {
    match quota.algorithm() {
        Algorithm::TokenBucket { burst } => Some(burst),
        _ => None,
    }
}
