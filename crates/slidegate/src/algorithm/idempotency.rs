//! Notes of one key about single admissions: request ids, settlements and extensions. Also the state of its warm-up.
//!
//! Most keys have no notes: the entry of an admission is in the reply, not in the store. The id of an admitted request is
//! remembered as long as its admission counts. A settled admission is remembered by its sequence number. Adjacent
//! numbers merge: if every admission is settled, the key has one range instead of one note per admission. The notes of
//! all keys of a store share a byte budget: see [`NoteBudget`].

use std::sync::Arc;

use super::extensions::Extensions;
use super::ids::{Ids, ScopedId};
use super::note_budget::{NoteBudget, Purpose, ReservedBytes};
use super::ranges::Ranges;
use crate::dynamic::warm_up::Warmth;
use crate::{Entry, Micros, RequestId};

/// Maximum number of ids that one decision forgets. Forgetting only frees memory: if the admission of an id has left
/// the window, decisions ignore the id.
pub(super) const FORGET_STEP: usize = 64;

#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    ids: Ids,
    settled: Ranges,
    /// Extensions, by sequence number.
    extensions: Option<Box<Extensions<u64>>>,
    pub(super) warmth: Option<Warmth>,
    reserved: ReservedBytes,
}

impl Notes {
    /// Returns the admission of this request.
    #[cold]
    #[inline(never)]
    pub(super) fn find(&self, id: &RequestId, scope: u64, cost: u64) -> Option<Entry> {
        self.ids.find(ScopedId { id, scope, budget: None }.digest(cost))
    }

    /// Remembers the id of an admission, unless the budget is exhausted.
    pub(super) fn remember(notes: &mut Option<Box<Notes>>, scoped: &ScopedId<'_>, entry: Entry) {
        let growth = notes.as_ref().map_or_else(|| Ids::default().growth(), |notes| notes.ids.growth());
        let Some(reserved) = Notes::reserve(notes.as_deref(), growth, scoped.budget, Purpose::Id) else {
            return;
        };
        let notes = notes.get_or_insert_default();
        notes.ids.insert(scoped.digest(entry.cost), entry);
        notes.account(reserved);
    }

    /// Takes bytes for the note of a settlement; returns `None` if the budget is exhausted.
    pub(super) fn reserve_for_settlement(
        notes: Option<&Notes>,
        budget: Option<&Arc<NoteBudget>>,
    ) -> Option<ReservedBytes> {
        let growth = notes.map_or(0, |notes| notes.settled.growth());
        Notes::reserve(notes, growth, budget, Purpose::Settlement)
    }

    /// Takes bytes for the note of an extension; returns `None` if the budget is exhausted.
    pub(super) fn reserve_for_extension(
        notes: Option<&Notes>,
        budget: Option<&Arc<NoteBudget>>,
    ) -> Option<ReservedBytes> {
        let extensions = notes.and_then(|notes| notes.extensions.as_deref());
        let growth = extensions
            .map_or(size_of::<Extensions<u64>>() + Extensions::<u64>::default().growth(), Extensions::growth);
        Notes::reserve(notes, growth, budget, Purpose::Settlement)
    }

    fn reserve(
        notes: Option<&Notes>,
        growth: usize,
        budget: Option<&Arc<NoteBudget>>,
        purpose: Purpose,
    ) -> Option<ReservedBytes> {
        let (held, growth) = match notes {
            Some(notes) if notes.reserved.is_some() => (notes.bytes(), growth),
            Some(notes) => (0, notes.bytes() + growth),
            None => (0, size_of::<Notes>() + growth),
        };
        ReservedBytes::new(budget, held, growth, purpose)
    }

    /// Replaces the estimate in the budget by the actual size.
    fn account(&mut self, reserved: ReservedBytes) {
        self.reserved.add(reserved);
        self.reserved.set(self.bytes());
    }

    pub(super) fn forget(&mut self, left: impl Fn(Micros) -> bool, most: usize) {
        self.ids.forget(&left, most);
        let before = self.settled.bytes();
        self.settled.forget(&left);
        if let Some(extensions) = &mut self.extensions {
            extensions.forget(left);
        }
        if self.settled.bytes() != before {
            self.reserved.set(self.bytes());
        }
    }

    /// Returns the admission with the instant from which it counts now.
    pub(super) fn current_entry(&self, entry: Entry) -> Entry {
        let extended_at = self.extensions.as_ref().and_then(|extensions| extensions.find(entry.seq));
        Entry { at: extended_at.unwrap_or(entry.at), ..entry }
    }

    pub(super) fn extend(&mut self, seq: u64, to: Micros, reserved: ReservedBytes) {
        self.extensions.get_or_insert_default().extend(seq, to);
        self.account(reserved);
    }

    pub(super) fn is_settled(&self, seq: u64) -> bool {
        self.settled.contains(seq)
    }

    pub(super) fn settle(&mut self, entry: Entry, reserved: ReservedBytes) {
        self.settled.insert(entry);
        self.account(reserved);
    }

    /// Forgets the id of a refunded admission: a request with this id is charged again.
    pub(super) fn release(&mut self, entry: Entry) {
        self.ids.release(entry);
    }

    /// Instant of the newest note.
    pub(super) fn newest(&self) -> Option<Micros> {
        let newest_extension = self.extensions.as_ref().and_then(|extensions| extensions.newest());
        self.ids.newest().max(self.settled.newest()).max(newest_extension)
    }

    pub(super) fn is_empty(&self) -> bool {
        let none_extended = self.extensions.as_ref().is_none_or(|extensions| extensions.is_empty());
        self.ids.is_empty() && self.settled.is_empty() && none_extended && self.warmth.is_none()
    }

    /// Frees memory that is no longer needed.
    pub(super) fn shrink(&mut self) {
        self.ids.shrink();
        if self.extensions.as_ref().is_some_and(|extensions| extensions.is_empty()) {
            self.extensions = None;
        }
        self.reserved.set(self.bytes());
    }

    /// Bytes in use, including the notes structure itself.
    pub(super) fn bytes(&self) -> usize {
        let extension_bytes = self
            .extensions
            .as_ref()
            .map_or(0, |extensions| size_of::<Extensions<u64>>() + extensions.bytes());
        size_of::<Notes>() + self.ids.bytes() + self.settled.bytes() + extension_bytes
    }
}
