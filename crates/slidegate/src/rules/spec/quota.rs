//! Quota of a rule: the fields `limit`, `window`, `algorithm`, `burst`, `slices` and `count`.

use super::rule::RuleFile;
use crate::common::section::Given;
use crate::common::yaml::Reader;
use crate::quota::{MAX_WINDOW, check_slices};
use crate::rules::rule::check_held;
use crate::words::Words;
use crate::{Algorithm, Count, Quota};

/// Name of an algorithm. Its parameter is another field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlgorithmName(&'static str);

impl Words for AlgorithmName {
    const NAME: &'static str = "Algorithm";
    const DOC: &'static str = " The counting algorithm. Its parameter is another field.";
    const WORDS: &'static [(&'static str, Self, &'static str)] = &{
        let all = Algorithm::all(1);
        let mut words = [("", AlgorithmName(""), ""); Algorithm::all(1).len()];
        let mut i = 0;
        while i < all.len() {
            words[i] = (all[i].as_str(), AlgorithmName(all[i].as_str()), all[i].summary());
            i += 1;
        }
        words
    };
}

impl From<Algorithm> for AlgorithmName {
    fn from(algorithm: Algorithm) -> Self {
        AlgorithmName(algorithm.as_str())
    }
}

/// Reads the quota of a limited rule. `what` names the rule in messages.
pub(super) fn read_quota(given: &Given<'_, RuleFile>, reader: &mut Reader, what: &str) -> Option<Quota> {
    let file = &given.value;
    for name in ["limit", "window"] {
        given.fields.required(reader, name, what);
    }
    let named = given.or("algorithm", file.algorithm, Algorithm::default().into());
    let defaults = Algorithm::all(file.limit.unwrap_or(1));
    let algorithm = named.and_then(|named| defaults.into_iter().find(|known| named == (*known).into()));
    for name in ["slices", "burst"] {
        let has_parameter = |known: &Algorithm| match name {
            "slices" => known.slices().is_some(),
            _ => known.burst().is_some(),
        };
        if let (Some(node), Some(algorithm)) = (given.fields.get(name), algorithm)
            && !has_parameter(&algorithm)
        {
            let owner = defaults.iter().find(|known| has_parameter(known)).map_or("", |known| known.as_str());
            reader.problem(node, format!("`{name}` needs algorithm: {owner}"));
        }
    }
    let slices = given.fields.get("slices").map(|node| {
        let slices = file.slices?;
        reader.accept(node, check_slices(slices, file.window.unwrap_or(MAX_WINDOW)))?;
        Some(slices)
    });
    let (limit, window, mut algorithm) = (file.limit?, file.window?, algorithm?);
    if let Some(slices) = slices.filter(|_| algorithm.slices().is_some()) {
        algorithm = algorithm.with_slices(slices?);
    }
    if given.fields.get("burst").is_some() && algorithm.burst().is_some() {
        algorithm = algorithm.with_burst(file.burst?);
    }
    let quota = Quota::new(limit, window.into()).and_then(|quota| quota.with_algorithm(algorithm));
    let count = given.or("count", file.count, Count::Admitted);
    let quota = reader.accept(given.node("burst"), quota)?.with_count(count?);
    reader.accept(given.node("count"), check_held(&quota))?;
    Some(quota)
}
