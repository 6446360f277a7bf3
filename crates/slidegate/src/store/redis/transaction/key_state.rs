//! One key while it is judged or settled: a [`State`] of what was read, and what that becomes.

use std::collections::HashMap;

use super::load::{Climbing, Loaded, same_shape};
use crate::algorithm::evaluate::States;
use crate::algorithm::{SnapshotCounts, StateSnapshot};
use crate::dynamic::warm_up::Warmth;
use crate::quota::MAX_TOTAL;
use crate::store::redis::layout::{self, NAMED};
use crate::store::redis::zset_snapshot::{Held, HeldEntry};
use crate::{Algorithm, Correction, Entry, Micros, Quota, RequestId, Settlement, State, Verdict};

/// One key while a batch is judged.
pub(super) struct Slot {
    pub(super) state: State,
    /// The quota it was last judged by.
    pub(super) quota: Quota,
    /// Nothing that was held counts.
    pub(super) fresh: bool,
    /// Permits that were not read one by one, all put at the newest instant.
    pub(super) lump: Option<(u64, u64)>,
    /// What is recorded at the present instant already: its entry.
    pub(super) held_entry: Option<HeldEntry>,
    /// The number of the next admission without an id.
    pub(super) next: u64,
    /// What was recorded when last looked at.
    pub(super) recorded: u64,
    /// From the state's own numbers to those that are given out.
    numbers: HashMap<u64, u64>,
    /// Notes to write.
    pub(super) marks: Vec<(u64, String)>,
    void: HashMap<String, (u64, u64)>,
    /// The instant for this key.
    pub(super) at: u64,
    /// What a settlement changed.
    pub(super) amended: Option<Amended>,
}

/// What a settlement made of a key.
pub(super) struct Amended {
    /// Permits in use; of a bucket, units missing.
    pub(super) used: u64,
    /// The entry as it was, and what it costs now.
    pub(super) entry: Option<(HeldEntry, u64)>,
    /// The newest entry that is left, if that was taken away.
    pub(super) newest: Option<u64>,
}

/// The states of one ask.
pub(super) struct Open<'s>(pub(super) &'s mut [Slot]);

impl States for Open<'_> {
    fn state(&mut self, i: usize) -> &mut State {
        &mut self.0[i].state
    }
}

impl Slot {
    pub(super) fn open(loaded: &Loaded, quota: &Quota, now: u64) -> Self {
        let mut slot = Slot::open_count(loaded, quota, now);
        if let Some((_, Some(climbing))) = &loaded.warm
            && climbing.shape == layout::shape(quota)
        {
            let Climbing { since, last, .. } = *climbing;
            // Until when it is warm is said anew by what is admitted.
            slot.state.set_warmth(Some(Warmth { since, last, until: last }));
        }
        slot
    }

    /// When its limit began to climb, if that has changed.
    pub(super) fn climbs(&self, loaded: &Loaded) -> Option<(Climbing, Micros)> {
        let (_, before) = loaded.warm.as_ref()?;
        let Warmth { since, last, until } = self.state.warmth()?;
        let climbing = Climbing { since, last, shape: layout::shape(&self.quota) };
        (before.as_ref() != Some(&climbing)).then_some((climbing, until))
    }

    fn open_count(loaded: &Loaded, quota: &Quota, now: u64) -> Self {
        let held = loaded.held.as_ref().filter(|held| same_shape(&held.quota, quota));
        let Some(held) = held else {
            let next = match quota.algorithm() {
                Algorithm::SlidingWindow | Algorithm::Concurrency => 0,
                Algorithm::TimeSlice { .. } => now % quota.grain().get() * 1_000,
                _ => now,
            };
            return Slot::with(State::new(quota), *quota, true, now, next);
        };
        let at = now.max(held.last);
        let mut ids = loaded.ids.clone();
        ids.sort_by_key(|(_, entry)| entry.at);
        let mut entries: Vec<(Micros, u64)> =
            held.entries.iter().filter(|e| e.cost > 0).map(|e| (Micros::new(e.at), e.cost)).collect();
        let read: u64 = entries.iter().map(|(_, cost)| cost).sum();
        let unread = if loaded.whole { 0 } else { held.used.saturating_sub(read) };
        let lump = (unread > 0).then_some((held.newest, unread));
        entries.extend(lump.map(|(at, cost)| (Micros::new(at), cost)));
        let counted = match held.quota.algorithm() {
            Algorithm::SlidingWindow | Algorithm::TimeSlice { .. } | Algorithm::Concurrency => {
                SnapshotCounts::Entries(entries)
            }
            Algorithm::FixedWindow => SnapshotCounts::Used(held.used),
            Algorithm::TokenBucket { .. } => {
                SnapshotCounts::Missing { units: held.used, gone: Micros::new(held.gone) }
            }
        };
        // A bucket is rolled by its old rate before it takes on the new one.
        let base = if let Algorithm::TokenBucket { .. } = quota.algorithm() { held.quota } else { *quota };
        let state = State::restored(&base, StateSnapshot { last: Micros::new(held.last), counted }, ids);
        let date = dated(quota, at);
        let held_entry = held.entries.iter().find(|entry| entry.at == date).cloned();
        let counts = held_entry.as_ref().map_or(0, |entry| entry.count);
        let next = match quota.algorithm() {
            // What was recorded now was refunded: its numbers must not come again.
            Algorithm::SlidingWindow | Algorithm::Concurrency if held_entry.is_none() && held.last == at => {
                now % 1_000_000_000 * 1_000
            }
            Algorithm::SlidingWindow | Algorithm::Concurrency => counts,
            Algorithm::TimeSlice { .. } => counts.max(at % quota.grain().get() * 1_000),
            _ => held.next,
        };
        let mut slot = Slot::with(state, *quota, false, at, next);
        slot.lump = lump;
        slot.held_entry = held_entry.filter(|_| Held::is_window(quota));
        slot.void = loaded.void.clone();
        slot
    }

    fn with(state: State, quota: Quota, fresh: bool, at: u64, next: u64) -> Self {
        Slot {
            state,
            quota,
            fresh,
            lump: None,
            held_entry: None,
            next,
            recorded: 0,
            numbers: HashMap::new(),
            marks: Vec::new(),
            void: HashMap::new(),
            at,
            amended: None,
        }
    }

    /// Whether the ask that was just judged was recorded here: the place of what it recorded, and the number.
    pub(super) fn note_recorded(&mut self) -> Option<u64> {
        if self.state.recorded() == self.recorded {
            return None;
        }
        self.recorded = self.state.recorded();
        self.next += 1;
        Some(self.next - 1)
    }

    /// The number that is given out for an admission.
    pub(super) fn number(
        &mut self,
        id: Option<&RequestId>,
        cost: u64,
        entry: Entry,
        place: Option<u64>,
    ) -> u64 {
        let Some(place) = place else {
            // It was admitted before, in this batch or earlier.
            return self.numbers.get(&entry.seq).copied().unwrap_or(entry.seq);
        };
        let Some(id) = id else { return place };
        let (at, note) = (entry.at.get(), layout::id_note(id, cost));
        let k = self.void.get(&note).filter(|(void, _)| *void == at).map_or(0, |(_, k)| *k);
        let number = layout::digits(id, cost) * 100 + k;
        self.numbers.insert(entry.seq, number);
        self.marks.push((at, if k == 0 { note } else { format!("{note}/{k}") }));
        number
    }

    /// Whether a wait depends on entries that were not read one by one. One for a limit that climbs may: it is the
    /// shorter of two.
    pub(super) fn reaches_lump(&self, verdict: &Verdict) -> bool {
        let ends = self.at + verdict.retry_after.get();
        let climbs = verdict.limit < self.quota.capacity();
        self.lump.is_some_and(|(at, _)| climbs || at + self.quota.window().get() == ends)
    }

    /// Whether an admission still counts here.
    pub(super) fn counts(&self, held: &Held, entry: &Entry) -> bool {
        let window = held.quota.window().get();
        let at = entry.at.get();
        let (ahead, left) = match (held.quota.algorithm(), self.state.snapshot().counted) {
            (Algorithm::FixedWindow, _) => (0, (at - at % window).saturating_add(window) <= self.at),
            (_, SnapshotCounts::Missing { gone, .. }) => (0, entry.at <= gone),
            (Algorithm::TimeSlice { .. }, _) => {
                (held.quota.grain().get() - 1, at.saturating_add(window) <= self.at)
            }
            _ => (0, at.saturating_add(window) <= self.at),
        };
        at <= self.at + ahead && !left
    }

    /// Whether a settlement takes away the newest entry, so that another is.
    pub(super) fn takes_newest(&self, held: &Held, settlement: &Settlement) -> bool {
        settlement.correction == Correction::Cost(0) && settlement.entry.at.get() == held.newest
    }

    /// Corrects an admission, or counts it from now on; false if it was never made here, or nothing of its instant is
    /// left.
    pub(super) fn amend(
        &mut self,
        held: &Held,
        settlement: &Settlement,
        found: Option<HeldEntry>,
        newest: u64,
    ) -> bool {
        let Settlement { entry: Entry { at, seq, cost: from }, correction, .. } = *settlement;
        let (to, again) = match correction {
            Correction::Cost(to) => (to, 0),
            Correction::Extend => (0, found.as_ref().map_or(0, |found| from.min(found.cost))),
        };
        let named = seq >= NAMED;
        let now = |used: u64, most: u64| (used.saturating_sub(from) + to).min(most);
        let amended = match self.state.snapshot().counted {
            SnapshotCounts::Entries(_) => {
                let Some(found) = found.filter(|found| found.cost > 0) else { return false };
                if let Algorithm::TimeSlice { .. } = held.quota.algorithm() {
                    let made = (at.get() + 1 + seq / 1_000).saturating_sub(held.quota.grain().get());
                    if !named && made < held.created {
                        return false;
                    }
                }
                if !named && seq >= found.count {
                    return false;
                }
                let others = self.state.used().saturating_sub(found.cost);
                let cost = now(found.cost, MAX_TOTAL - others);
                let cut = self.at.saturating_sub(held.quota.window().get());
                // What is extended is the newest itself.
                let taken = cost == 0 && found.at == held.newest && again == 0;
                let newest = taken.then_some(if newest > cut { newest } else { 0 });
                if again > 0 {
                    self.state.count_again(Micros::new(self.at), again);
                    self.note_recorded();
                }
                Amended { used: others + cost + again, entry: Some((found, cost)), newest }
            }
            _ if at.get() < held.created || !named && !(held.created..held.next).contains(&seq) => {
                return false;
            }
            SnapshotCounts::Used(used) => Amended { used: now(used, MAX_TOTAL), entry: None, newest: None },
            SnapshotCounts::Missing { units, .. } => {
                let (_, per) = held.quota.rate();
                let change = (i128::from(to) - i128::from(from)) * i128::from(per);
                // It may owe one capacity: as `amend` in `lua/counters.lua`.
                let most = units.max((2 * held.quota.capacity() * per).min(MAX_TOTAL));
                let units = (i128::from(units) + change).clamp(0, i128::from(most));
                Amended { used: units.try_into().unwrap_or(MAX_TOTAL), entry: None, newest: None }
            }
        };
        self.amended = Some(amended);
        true
    }
}

/// The instant an admission is recorded under.
pub(super) fn dated(quota: &Quota, at: u64) -> u64 {
    let grain = quota.grain().get();
    at - at % grain + grain - 1
}
