//! Set of the settled admissions of one key, by sequence number.
//!
//! Adjacent numbers merge: if every admission is settled, there is a single range, which needs no heap memory.

use std::collections::BTreeMap;

use crate::{Entry, Micros};

/// Estimated bytes of a tree with one node. [`RANGE_BYTES`] is the estimate for each range in a larger tree, whose
/// nodes are mostly half full, and [`NODE`] is the number of ranges in one node.
const NODE_BYTES: usize = 280;
const RANGE_BYTES: usize = 50;
const NODE: usize = 11;

#[derive(Clone, Debug, Default)]
pub(super) enum Ranges {
    #[default]
    None,
    One {
        start: u64,
        end: u64,
        at: Micros,
    },
    /// Ranges by their first number: the number after the last one, and the newest instant in the range.
    Many(BTreeMap<u64, (u64, Micros)>),
}

impl Ranges {
    pub(super) fn contains(&self, seq: u64) -> bool {
        match self {
            Ranges::None => false,
            Ranges::One { start, end, .. } => (*start..*end).contains(&seq),
            Ranges::Many(ranges) => ranges.range(..=seq).next_back().is_some_and(|(_, &(end, _))| seq < end),
        }
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        let Entry { seq, at, .. } = entry;
        match self {
            Ranges::None => *self = Ranges::One { start: seq, end: seq + 1, at },
            Ranges::One { end, at: newest, .. } if *end == seq => {
                (*end, *newest) = (seq + 1, at.max(*newest));
            }
            Ranges::One { start, at: newest, .. } if *start == seq + 1 => {
                (*start, *newest) = (seq, at.max(*newest));
            }
            Ranges::One { start, end, at: newest } => {
                *self = Ranges::Many(BTreeMap::from([(*start, (*end, *newest)), (seq, (seq + 1, at))]));
            }
            Ranges::Many(ranges) => insert(ranges, seq, at),
        }
    }

    /// Forgets the ranges for whose newest instant `left` returns true.
    pub(super) fn forget(&mut self, left: impl Fn(Micros) -> bool) {
        match self {
            Ranges::One { at, .. } if left(*at) => *self = Ranges::None,
            Ranges::Many(ranges) => {
                while let Some(oldest) = ranges.first_entry()
                    && left(oldest.get().1)
                {
                    oldest.remove();
                }
                if ranges.is_empty() {
                    *self = Ranges::None;
                }
            }
            _ => {}
        }
    }

    pub(super) fn newest(&self) -> Option<Micros> {
        match self {
            Ranges::None => None,
            Ranges::One { at, .. } => Some(*at),
            Ranges::Many(ranges) => ranges.last_key_value().map(|(_, &(_, at))| at),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Ranges::None)
    }

    /// Heap bytes in use, estimated.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Ranges::Many(ranges) if ranges.len() > NODE => ranges.len() * RANGE_BYTES,
            Ranges::Many(_) => NODE_BYTES,
            _ => 0,
        }
    }

    /// Upper bound of the heap bytes that one more settlement takes.
    pub(super) fn growth(&self) -> usize {
        match self {
            Ranges::None => 0,
            Ranges::One { .. } => NODE_BYTES,
            Ranges::Many(ranges) if ranges.len() == NODE => (NODE + 1) * RANGE_BYTES - NODE_BYTES,
            Ranges::Many(ranges) if ranges.len() < NODE => 0,
            Ranges::Many(_) => RANGE_BYTES,
        }
    }
}

fn insert(ranges: &mut BTreeMap<u64, (u64, Micros)>, seq: u64, mut at: Micros) {
    let (mut start, mut end) = (seq, seq + 1);
    if let Some((&left, &(left_end, left_at))) = ranges.range(..start).next_back()
        && left_end == start
    {
        (start, at) = (left, at.max(left_at));
    }
    if let Some((right_end, right_at)) = ranges.remove(&end) {
        (end, at) = (right_end, at.max(right_at));
    }
    ranges.insert(start, (end, at));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Ranges;
    use crate::{Entry, Micros};

    #[test]
    fn contains_inserted_numbers() {
        let (mut ranges, mut set, mut random) = (Ranges::default(), BTreeSet::new(), 3u64);
        for n in 0..2_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // The first numbers are adjacent, in either direction.
            let seq = if n < 20 {
                300 + n
            } else if n < 40 {
                319 - n
            } else {
                (random >> 33) % 600
            };
            if set.insert(seq) {
                let bound = ranges.bytes() + ranges.growth();
                ranges.insert(Entry { at: Micros::new(n), seq, cost: 1 });
                assert!(ranges.bytes() <= bound);
            }
            assert_eq!(matches!(ranges, Ranges::Many(_)), n >= 40 && set.len() > 40);
            (0..600).for_each(|seq| assert_eq!(ranges.contains(seq), set.contains(&seq)));
        }
        assert!(set.len() > 500, "{}", set.len());
        ranges.forget(|_| true);
        assert!(ranges.is_empty() && ranges.bytes() == 0 && !ranges.contains(300));
    }
}
