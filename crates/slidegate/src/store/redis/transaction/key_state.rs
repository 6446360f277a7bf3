//! State of one key while it is evaluated or settled: a [`State`] made from the data that was read, and the changes to
//! it.

use std::collections::HashMap;

use super::load::{LoadedKey, WarmUpRecord, same_counter};
use crate::algorithm::evaluate::States;
use crate::algorithm::{SnapshotCounts, StateSnapshot};
use crate::dynamic::warm_up::Warmth;
use crate::quota::MAX_TOTAL;
use crate::store::redis::layout::{self, FIRST_ID_SEQ};
use crate::store::redis::zset_snapshot::{ZsetEntry, ZsetSnapshot};
use crate::{Correction, Entry, Micros, Quota, RequestId, Settlement, State, Verdict};

/// State of one key while a batch is evaluated.
pub(super) struct KeyState {
    pub(super) state: State,
    /// Quota with which the key was last evaluated.
    pub(super) quota: Quota,
    /// True if no stored data of the key counts.
    pub(super) fresh: bool,
    /// Permits of entries that were not read: the instant of the newest entry, at which they are counted, and their
    /// number.
    pub(super) unread_permits: Option<(u64, u64)>,
    /// Stored entry of the present instant, if there is one.
    pub(super) current_entry: Option<ZsetEntry>,
    /// Number of the next admission without an id.
    pub(super) next: u64,
    /// Number of recordings of `state` at the last call of `note_recorded`.
    pub(super) recorded: u64,
    /// Sequence numbers that callers get, by the sequence numbers of the state.
    numbers: HashMap<u64, u64>,
    /// Notes to write: instant, name.
    pub(super) new_notes: Vec<(u64, String)>,
    refunded: HashMap<String, (u64, u64)>,
    /// Instant of the evaluation for this key.
    pub(super) at: u64,
    /// Change by a settlement.
    pub(super) amended: Option<Amendment>,
}

/// Change of a key by a settlement.
pub(super) enum Amendment {
    /// The numbers of a counter have changed. The state contains the new numbers.
    Counter,
    /// An entry of a window.
    Entry {
        /// Permits in use.
        used: u64,
        /// The entry as it was.
        entry: ZsetEntry,
        /// New cost of the entry.
        cost: u64,
        /// Instant of the newest remaining entry, if the newest was removed.
        newest: Option<u64>,
    },
}

/// States of the keys of one request.
pub(super) struct KeyStates<'s>(pub(super) &'s mut [KeyState]);

impl States for KeyStates<'_> {
    fn state(&mut self, i: usize) -> &mut State {
        &mut self.0[i].state
    }
}

impl KeyState {
    pub(super) fn open(loaded: &LoadedKey, quota: &Quota, now: u64) -> Self {
        let mut key_state = KeyState::open_count(loaded, quota, now);
        if let Some((_, Some(record))) = &loaded.warm
            && record.quota_tag == layout::quota_tag(quota)
        {
            let WarmUpRecord { since, last, .. } = *record;
            // The record does not contain `until`, because each admission sets the end of the warm period again.
            key_state.state.set_warmth(Some(Warmth { since, last, until: last }));
        }
        key_state
    }

    /// Returns the warm-up record and the end of the warm period, if the record has changed.
    pub(super) fn warm_up_change(&self, loaded: &LoadedKey) -> Option<(WarmUpRecord, Micros)> {
        let (_, before) = loaded.warm.as_ref()?;
        let Warmth { since, last, until } = self.state.warmth()?;
        let record = WarmUpRecord { since, last, quota_tag: layout::quota_tag(&self.quota) };
        (before.as_ref() != Some(&record)).then_some((record, until))
    }

    fn open_count(loaded: &LoadedKey, quota: &Quota, now: u64) -> Self {
        let snapshot = loaded.snapshot.as_ref().filter(|snapshot| same_counter(&snapshot.quota, quota));
        let Some(snapshot) = snapshot else {
            let next = match quota.algorithm() {
                algorithm if algorithm.keeps_instants() => 0,
                algorithm if algorithm.is_sliced() => now % quota.grain().get() * 1_000,
                _ => now,
            };
            return KeyState::with(State::new(quota), *quota, true, now, next);
        };
        let at = now.max(snapshot.last);
        let mut ids = loaded.ids.clone();
        ids.sort_by_key(|(_, entry)| entry.at);
        let mut entries: Vec<(Micros, u64)> =
            snapshot.entries.iter().filter(|e| e.cost > 0).map(|e| (Micros::new(e.at), e.cost)).collect();
        let read: u64 = entries.iter().map(|(_, cost)| cost).sum();
        let unread = if loaded.read_whole { 0 } else { snapshot.used.saturating_sub(read) };
        let unread_permits = (unread > 0).then_some((snapshot.newest, unread));
        entries.extend(unread_permits.map(|(at, cost)| (Micros::new(at), cost)));
        let counted = match quota.algorithm().has_entries() {
            true => SnapshotCounts::Entries(entries),
            false => SnapshotCounts::Numbers(snapshot.numbers()),
        };
        // A bucket is advanced by the rate that is stored before it adopts the rate of this quota.
        let stored = StateSnapshot { last: Micros::new(snapshot.last), counted };
        let state = State::restored(&snapshot.quota, stored, ids);
        let date = record_instant(quota, at);
        let current_entry = snapshot.entries.iter().find(|entry| entry.at == date).cloned();
        let next_of_entry = current_entry.as_ref().map_or(0, |entry| entry.count);
        let next = match quota.algorithm() {
            // The entry of this instant was refunded and is gone: its numbers must not be given out again.
            algorithm if algorithm.keeps_instants() && current_entry.is_none() && snapshot.last == at => {
                now % 1_000_000_000 * 1_000
            }
            algorithm if algorithm.keeps_instants() => next_of_entry,
            algorithm if algorithm.is_sliced() => next_of_entry.max(at % quota.grain().get() * 1_000),
            _ => snapshot.next,
        };
        let mut key_state = KeyState::with(state, *quota, false, at, next);
        key_state.unread_permits = unread_permits;
        key_state.current_entry = current_entry.filter(|_| quota.algorithm().has_entries());
        key_state.refunded = loaded.refunded.clone();
        key_state
    }

    fn with(state: State, quota: Quota, fresh: bool, at: u64, next: u64) -> Self {
        KeyState {
            state,
            quota,
            fresh,
            unread_permits: None,
            current_entry: None,
            next,
            recorded: 0,
            numbers: HashMap::new(),
            new_notes: Vec::new(),
            refunded: HashMap::new(),
            at,
            amended: None,
        }
    }

    /// Returns the ordinal of the admission if the request that was just evaluated was recorded in this key.
    pub(super) fn note_recorded(&mut self) -> Option<u64> {
        if self.state.recorded() == self.recorded {
            return None;
        }
        self.recorded = self.state.recorded();
        self.next += 1;
        Some(self.next - 1)
    }

    /// Returns the number of an admission, with which the caller can settle it.
    pub(super) fn number(
        &mut self,
        id: Option<&RequestId>,
        cost: u64,
        entry: Entry,
        ordinal: Option<u64>,
    ) -> u64 {
        let Some(ordinal) = ordinal else {
            // The request was admitted before, in this batch or earlier.
            return self.numbers.get(&entry.seq).copied().unwrap_or(entry.seq);
        };
        let Some(id) = id else { return ordinal };
        let (at, note) = (entry.at.get(), layout::id_note(id, cost));
        let k = self.refunded.get(&note).filter(|(instant, _)| *instant == at).map_or(0, |(_, k)| *k);
        let number = layout::id_digits(id, cost) * 100 + k;
        self.numbers.insert(entry.seq, number);
        self.new_notes.push((at, if k == 0 { note } else { format!("{note}/{k}") }));
        number
    }

    /// Returns true if a wait depends on entries that were not read one by one. While a limit warms up, a wait may
    /// depend on such entries even if it ends earlier, because it is the shorter of two waits.
    pub(super) fn reaches_unread(&self, verdict: &Verdict) -> bool {
        let ends = self.at + verdict.retry_after.get();
        let warms_up = verdict.limit < self.quota.capacity();
        self.unread_permits.is_some_and(|(at, _)| warms_up || at + self.quota.window().get() == ends)
    }

    /// Returns true if a settlement removes the newest entry, so that another becomes the newest.
    pub(super) fn takes_newest(&self, snapshot: &ZsetSnapshot, settlement: &Settlement) -> bool {
        settlement.correction == Correction::Cost(0) && settlement.entry.at.get() == snapshot.newest
    }

    /// Corrects or extends an admission. Returns false if the admission was never made in this key, or if nothing of
    /// its instant is left.
    pub(super) fn amend(
        &mut self,
        snapshot: &ZsetSnapshot,
        settlement: &Settlement,
        found: Option<ZsetEntry>,
        newest: u64,
    ) -> bool {
        let Settlement { entry: Entry { at, seq, cost: from }, correction, .. } = *settlement;
        let (to, again) = match correction {
            Correction::Cost(to) => (to, 0),
            Correction::Extend => (0, found.as_ref().map_or(0, |found| from.min(found.cost))),
        };
        let named = seq >= FIRST_ID_SEQ;
        if !snapshot.quota.algorithm().has_entries() {
            let made_here = at.get() >= snapshot.created
                && (named || (snapshot.created..snapshot.next).contains(&seq))
                && self.state.amend(settlement.entry, to);
            self.amended = made_here.then_some(Amendment::Counter);
            return made_here;
        }
        let Some(found) = found.filter(|found| found.cost > 0) else { return false };
        let made = (at.get() + 1 + seq / 1_000).saturating_sub(snapshot.quota.grain().get());
        let before_key = snapshot.quota.algorithm().is_sliced() && made < snapshot.created;
        if !named && (before_key || seq >= found.count) {
            return false;
        }
        let others = self.state.used().saturating_sub(found.cost);
        let cost = (found.cost.saturating_sub(from) + to).min(MAX_TOTAL - others);
        let cut = self.at.saturating_sub(snapshot.quota.window().get());
        // An extension makes the entry itself the newest.
        let taken = cost == 0 && found.at == snapshot.newest && again == 0;
        let newest = taken.then_some(if newest > cut { newest } else { 0 });
        if again > 0 {
            self.state.count_again(Micros::new(self.at), again);
            self.note_recorded();
        }
        self.amended = Some(Amendment::Entry { used: others + cost + again, entry: found, cost, newest });
        true
    }
}

/// Instant at which an admission is recorded: the last of its time slice, or the instant `at` if there are no slices.
pub(super) fn record_instant(quota: &Quota, at: u64) -> u64 {
    let grain = quota.grain().get();
    at - at % grain + grain - 1
}
