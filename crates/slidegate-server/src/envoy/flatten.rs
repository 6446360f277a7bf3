//! Flattens the descriptor tree of envoyproxy/ratelimit into an ordered list, in which the first match applies.
//!
//! The service of envoyproxy/ratelimit walks the entries of a request one by one. At each level the exact value beats a
//! wildcard, an earlier wildcard beats a later one, and any of them beats a key without a value. There is no
//! backtracking: if the chosen descriptor has nothing for the next entry, no limit applies, even if another branch had
//! one. In the list, such a case is a [`Path`] without a limit. It comes after the paths of its branch and before the
//! branches that it hides. If it would hide nothing, it is left out.

use super::file::{Descriptor, Domain, RateLimit, Value};

/// Requests with the same keys in the same order, and the descriptors that they match. Keys beyond the descriptors
/// match any value.
pub(super) struct Path<'t, 'n> {
    pub(super) descriptors: Vec<&'t Descriptor<'n>>,
    /// None if no limit applies.
    pub(super) limit: Option<&'t RateLimit<'n>>,
}

impl Path<'_, '_> {
    pub(super) fn value(&self, level: usize) -> &Value {
        self.descriptors.get(level).map_or(&Value::Any, |descriptor| &descriptor.value)
    }

    fn overlaps(&self, other: &Self) -> bool {
        let levels = self.descriptors.len().min(other.descriptors.len());
        (0..levels).all(|level| {
            let (here, there) = (self.value(level), other.value(level));
            // A text can match both only if one of them covers the other.
            covers(here, there) || covers(there, here)
        })
    }

    fn covers(&self, other: &Self) -> bool {
        (0..self.descriptors.len()).all(|level| covers(self.value(level), other.value(level)))
    }
}

/// Returns the keys of every descriptor with a limit, from the root, in the order of the file and without duplicates.
pub(super) fn key_lists<'t>(domain: &'t Domain<'_>) -> Vec<Vec<&'t str>> {
    let mut lists = Vec::new();
    let mut known = std::collections::HashSet::new();
    fn collect<'t>(
        siblings: &'t [Descriptor<'_>],
        keys: &mut Vec<&'t str>,
        found: &mut impl FnMut(&[&'t str]),
    ) {
        for descriptor in siblings {
            keys.push(&descriptor.key);
            if descriptor.limit.is_some() {
                found(keys);
            }
            collect(&descriptor.descriptors, keys, found);
            keys.pop();
        }
    }
    collect(&domain.descriptors, &mut Vec::new(), &mut |keys| {
        if known.insert(keys.to_vec()) {
            lists.push(keys.to_vec());
        }
    });
    lists
}

/// Returns the paths that may apply to requests with these keys, in the order in which they are tried.
pub(super) fn paths<'t, 'n>(domain: &'t Domain<'n>, keys: &[&str]) -> Vec<Path<'t, 'n>> {
    let mut all = Vec::new();
    visit(&domain.descriptors, keys, &mut Vec::new(), &mut all);
    let mut reachable: Vec<Path<'t, 'n>> = Vec::new();
    let mut rest = all.into_iter();
    while let Some(path) = rest.next() {
        let needed = || rest.as_slice().iter().any(|later| later.limit.is_some() && later.overlaps(&path));
        let covered = || reachable.iter().rev().any(|earlier| earlier.covers(&path));
        if path.limit.is_some() || (!covered() && needed()) {
            reachable.push(path);
        }
    }
    reachable
}

fn visit<'t, 'n>(
    siblings: &'t [Descriptor<'n>],
    keys: &[&str],
    ancestors: &mut Vec<&'t Descriptor<'n>>,
    all: &mut Vec<Path<'t, 'n>>,
) {
    let Some((key, below)) = keys.split_first() else { return };
    let mut chosen: Vec<&'t Descriptor<'n>> = siblings.iter().filter(|sibling| sibling.key == *key).collect();
    chosen.sort_by_key(|descriptor| match descriptor.value {
        Value::Is(_) => 0,
        Value::StartsWith(_) => 1,
        Value::Any => 2,
    });
    for descriptor in chosen {
        ancestors.push(descriptor);
        visit(&descriptor.descriptors, below, ancestors, all);
        let limit = if below.is_empty() { descriptor.limit.as_ref() } else { None };
        all.push(Path { descriptors: ancestors.clone(), limit });
        ancestors.pop();
    }
}

/// Returns true if every text that matches `b` matches `a`.
fn covers(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Any, _) => true,
        (Value::StartsWith(a), Value::Is(b) | Value::StartsWith(b)) => b.starts_with(a.as_str()),
        (Value::StartsWith(a), Value::Any) => a.is_empty(),
        (Value::Is(a), Value::Is(b)) => a == b,
        (Value::Is(_), _) => false,
    }
}
