//! Request ids of one key, each with its admission.
//!
//! A note stores a digest instead of the id: 16 bytes for an id of any length. The digest is a pair of SipHash values
//! with keys that are random per process, so a client cannot construct two ids with the same digest. Notes are in the
//! order of their admissions. A hash table maps a digest to the position of its note, with little more than four bytes
//! per entry. A note takes about 60 bytes in total, and at most 64 in a large key.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

use hashbrown::HashTable;

use super::note_budget::NoteBudget;
use crate::{Entry, Micros, RequestId};

/// Digest of a request id and a cost: the same id with another cost is another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(u64, u64);

static SECRETS: LazyLock<[RandomState; 2]> = LazyLock::new(Default::default);

/// Request id in the context of one key.
#[derive(Clone, Copy)]
pub(crate) struct ScopedId<'a> {
    pub(crate) id: &'a RequestId,
    /// Distinguishes the keys of a shared counter; 0 for a key with its own counter.
    pub(crate) scope: u64,
    /// Note budget of the store, if there is one.
    pub(crate) budget: Option<&'a Arc<NoteBudget>>,
}

impl<'a> ScopedId<'a> {
    /// Creates an id that is remembered without a budget.
    pub(crate) fn unbounded(id: &'a RequestId) -> Self {
        ScopedId { id, scope: 0, budget: None }
    }

    pub(crate) fn digest(&self, cost: u64) -> Digest {
        let half = |secret: &RandomState| {
            let mut hasher = secret.build_hasher();
            hasher.write_u64(self.scope);
            hasher.write_u64(cost);
            hasher.write(self.id.as_str().as_bytes());
            hasher.finish()
        };
        let [first, second] = &*SECRETS;
        Digest(half(first), half(second))
    }
}

#[derive(Clone, Debug)]
struct Note {
    digest: Digest,
    entry: Entry,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Ids {
    /// Notes, oldest first. A note is not in `positions` if its admission was refunded, or if a later admission has the
    /// same digest.
    notes: VecDeque<Note>,
    /// Position of the first note. Positions count up and wrap.
    first: u32,
    positions: HashTable<u32>,
}

impl Ids {
    pub(super) fn find(&self, digest: Digest) -> Option<Entry> {
        let position = self.positions.find(digest.0, |position| self.note(*position).digest == digest)?;
        Some(self.note(*position).entry)
    }

    fn note(&self, position: u32) -> &Note {
        &self.notes[position.wrapping_sub(self.first) as usize]
    }

    pub(super) fn insert(&mut self, digest: Digest, entry: Entry) {
        if self.notes.len() > 2 * self.positions.len() + 16 {
            self.compact();
        }
        if self.notes.len() == self.notes.capacity() {
            self.notes.reserve_exact(step(self.notes.capacity()));
        }
        self.push(Note { digest, entry });
    }

    fn push(&mut self, note: Note) {
        let Ids { notes, first, positions } = self;
        let digest = note.digest;
        let position = first.wrapping_add(notes.len() as u32);
        notes.push_back(note);
        let note = |position: u32| &notes[position.wrapping_sub(*first) as usize];
        match positions.find_mut(digest.0, |position| note(*position).digest == digest) {
            Some(known) => *known = position,
            None => {
                positions.insert_unique(digest.0, position, |position| note(*position).digest.0);
            }
        }
    }

    /// Drops the notes that are not in `positions`.
    fn compact(&mut self) {
        let old = std::mem::take(self);
        self.notes.reserve_exact(old.positions.len() + step(old.positions.len()));
        self.positions.reserve(old.positions.len() + 1, |_| 0);
        for note in &old.notes {
            if old.find(note.digest) == Some(note.entry) {
                self.push(note.clone());
            }
        }
    }

    /// Forgets the oldest notes, at most `most`, as long as `left` returns true for their instants.
    pub(super) fn forget(&mut self, left: impl Fn(Micros) -> bool, most: usize) {
        for _ in 0..most {
            if !self.notes.front().is_some_and(|note| left(note.entry.at)) {
                return;
            }
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some(note) = self.notes.pop_front() else { return };
        if let Ok(position) = self.positions.find_entry(note.digest.0, |position| *position == self.first) {
            position.remove();
        }
        self.first = self.first.wrapping_add(1);
    }

    /// Forgets the id of a refunded admission: a request with this id is charged again.
    pub(super) fn release(&mut self, entry: Entry) {
        let index = self.notes.partition_point(|note| note.entry.seq < entry.seq);
        let Some(note) = self.notes.get(index).filter(|note| note.entry == entry) else { return };
        let position = self.first.wrapping_add(index as u32);
        if let Ok(found) = self.positions.find_entry(note.digest.0, |known| *known == position) {
            found.remove();
        }
    }

    pub(super) fn newest(&self) -> Option<Micros> {
        self.notes.back().map(|note| note.entry.at)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.notes.is_empty()
    }

    /// Heap bytes in use.
    pub(super) fn bytes(&self) -> usize {
        self.notes.capacity() * size_of::<Note>() + self.positions.allocation_size()
    }

    /// Upper bound of the heap bytes that one more id takes.
    pub(super) fn growth(&self) -> usize {
        let notes = match self.notes.len() < self.notes.capacity() {
            true => 0,
            false => step(self.notes.capacity()) * size_of::<Note>(),
        };
        let positions = match self.positions.len() < self.positions.capacity() {
            true => 0,
            false => self.positions.allocation_size() + 64,
        };
        notes + positions
    }

    pub(super) fn shrink(&mut self) {
        if self.notes.capacity() > 16 && self.notes.len() * 4 < self.notes.capacity() {
            self.compact();
        }
    }
}

/// Number of notes by which a list of this capacity grows: a quarter.
fn step(capacity: usize) -> usize {
    (capacity / 4).max(2)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{Ids, Note, ScopedId};
    use crate::{Entry, Micros, RequestId};

    fn entry(seq: u64) -> Entry {
        Entry { at: Micros::new(seq / 3), seq, cost: 1 }
    }

    /// Compares random insertions, repetitions, refunds and expiry with a map.
    #[test]
    fn finds_the_latest_admission_of_each_id() {
        let (mut ids, mut map) = (Ids { first: u32::MAX - 500, ..Ids::default() }, HashMap::new());
        let mut random = 7u64;
        for seq in 0..20_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let id = RequestId::new(&format!("id-{}", (random >> 33) % 700)).unwrap();
            let digest = ScopedId::unbounded(&id).digest(1);
            assert_eq!(ids.find(digest), map.get(&digest.0).copied());
            match (random >> 20) % 8 {
                0 => {
                    if let Some(known) = map.remove(&digest.0) {
                        ids.release(known);
                    }
                }
                1 => {
                    let old = (seq / 3).saturating_sub(400);
                    ids.forget(|at| at.get() < old, 50);
                    let oldest = ids.notes.front().map_or(u64::MAX, |note| note.entry.seq);
                    map.retain(|_, entry: &mut Entry| entry.seq >= oldest);
                }
                2 => ids.shrink(),
                _ => {
                    let bound = ids.bytes() + ids.growth();
                    ids.insert(digest, entry(seq));
                    map.insert(digest.0, entry(seq));
                    assert!(ids.bytes() <= bound.max(2_048), "{} of {bound}", ids.bytes());
                }
            }
            assert_eq!(ids.positions.len(), map.len());
        }
        assert!(ids.notes.len() > 500 && ids.first < 100_000, "places have wrapped");
    }

    #[test]
    fn scope_and_cost_are_part_of_a_digest() {
        let id = RequestId::new("a").unwrap();
        let scoped = ScopedId::unbounded(&id);
        assert_ne!(scoped.digest(1), scoped.digest(2));
        assert_ne!(scoped.digest(1), ScopedId { scope: 1, ..scoped }.digest(1));
        assert_eq!(size_of::<Note>(), 40);
    }
}
