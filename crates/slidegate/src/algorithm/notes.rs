//! What a key remembers of single admissions: which ids it has seen, what was settled, and what was extended. And when
//! it became warm.
//!
//! Most keys have no notes: the numbers of an admission are in the answer, not in the store. The id of an
//! admitted request is remembered for as long as its admission counts. A settled admission is remembered by
//! its sequence number; neighbours merge, so a stream of reserve-and-settle costs one range, not one note each.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::moved::Moved;
use crate::warm_up::Warmth;
use crate::{Micros, RequestId};

/// One admission of a key: when it was recorded, as which one, and what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The instant it was recorded at.
    pub at: Micros,
    /// Its number among the key's admissions.
    pub seq: u64,
    /// What it was charged.
    pub cost: u64,
}

/// An id and a cost: the same id for another cost is another request.
type Asking = (RequestId, u64);

#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    ids: HashMap<Asking, Entry, foldhash::quality::RandomState>,
    by_age: VecDeque<(Entry, Asking)>,
    /// First settled sequence number -> one past the last, and when that one was recorded.
    settled: BTreeMap<u64, (u64, Micros)>,
    /// By sequence number.
    moved: Moved<u64>,
    pub(super) warmth: Option<Warmth>,
}

impl Notes {
    /// The admission of this request.
    pub(super) fn find(&self, id: &RequestId, cost: u64) -> Option<Entry> {
        self.ids.get(&(id.clone(), cost)).copied()
    }

    pub(super) fn remember(&mut self, id: RequestId, entry: Entry) {
        let id = (id, entry.cost);
        if self.by_age.len() > 2 * self.ids.len() + 16 {
            let ids = &self.ids;
            self.by_age.retain(|(entry, id)| ids.get(id) == Some(entry));
        }
        self.by_age.push_back((entry, id.clone()));
        self.ids.insert(id, entry);
    }

    /// Forgets what was recorded at instants that have `left`.
    pub(super) fn forget(&mut self, left: impl Fn(Micros) -> bool) {
        while self.by_age.front().is_some_and(|(entry, _)| left(entry.at)) && self.drop_oldest() {}
        while let Some(oldest) = self.settled.first_entry()
            && left(oldest.get().1)
        {
            oldest.remove();
        }
        self.moved.forget(left);
    }

    /// The admission, under the instant it counts from now.
    pub(super) fn now(&self, entry: Entry) -> Entry {
        Entry { at: self.moved.find(entry.seq).unwrap_or(entry.at), ..entry }
    }

    pub(super) fn extend(&mut self, seq: u64, to: Micros) {
        self.moved.extend(seq, to);
    }

    pub(super) fn is_settled(&self, seq: u64) -> bool {
        self.settled.range(..=seq).next_back().is_some_and(|(_, &(end, _))| seq < end)
    }

    pub(super) fn settle(&mut self, entry: Entry) {
        let (mut start, mut end, mut at) = (entry.seq, entry.seq + 1, entry.at);
        if let Some((&left, &(left_end, left_at))) = self.settled.range(..start).next_back()
            && left_end == start
        {
            (start, at) = (left, at.max(left_at));
        }
        if let Some((right_end, right_at)) = self.settled.remove(&end) {
            (end, at) = (right_end, at.max(right_at));
        }
        self.settled.insert(start, (end, at));
    }

    /// After a refund its id may come again and is charged again.
    pub(super) fn release(&mut self, entry: Entry) {
        let found = self.by_age.partition_point(|(e, _)| e.seq < entry.seq);
        if let Some((known, id)) = self.by_age.get(found)
            && *known == entry
            && self.ids.get(id) == Some(known)
        {
            self.ids.remove(id);
        }
    }

    /// When the newest of what is noted was recorded.
    pub(super) fn newest(&self) -> Option<Micros> {
        let id = self.by_age.back().map(|(entry, _)| entry.at);
        id.max(self.settled.last_key_value().map(|(_, &(_, at))| at)).max(self.moved.newest())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_age.is_empty() && self.settled.is_empty() && self.moved.is_empty() && self.warmth.is_none()
    }

    /// Notes held: ids, and ranges of settled admissions.
    pub(super) fn len(&self) -> usize {
        self.by_age.len() + self.settled.len() + self.moved.len()
    }

    fn drop_oldest(&mut self) -> bool {
        let Some((entry, id)) = self.by_age.pop_front() else { return false };
        if self.ids.get(&id) == Some(&entry) {
            self.ids.remove(&id);
        }
        true
    }
}
