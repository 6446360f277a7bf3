//! What has changed of a key, as commands: the layout is that of `lua/zset.lua` and `lua/counters.lua`.

use redis::{Cmd, Pipeline};

use super::key_state::{Amended, Slot, dated};
use super::load::Loaded;
use crate::algorithm::{SnapshotCounts, StateSnapshot};
use crate::store::redis::layout;
use crate::store::redis::options::Expiry;
use crate::store::redis::zset_snapshot::HeldEntry;
use crate::{Algorithm, Micros};

/// Entries that one transaction removes: as many as a script does.
const MOST_REMOVED: usize = 2_000;

impl Slot {
    /// Adds what has changed; false if that cannot be said without reading all of the key.
    pub(super) fn write(&self, writes: &mut Pipeline, loaded: &Loaded, expiry: Expiry) -> bool {
        let kept = self.state.snapshot();
        if self.fresh && self.recorded == 0 {
            return true;
        }
        match &kept.counted {
            SnapshotCounts::Entries(entries) => self.write_window(writes, loaded, expiry, &kept, entries),
            SnapshotCounts::Used(used) => {
                self.write_counter(writes, loaded, expiry, &kept, *used, None);
                true
            }
            SnapshotCounts::Missing { units, gone } => {
                self.write_counter(writes, loaded, expiry, &kept, *units, Some(*gone));
                true
            }
        }
    }

    fn write_window(
        &self,
        writes: &mut Pipeline,
        loaded: &Loaded,
        expiry: Expiry,
        kept: &StateSnapshot,
        entries: &[(Micros, u64)],
    ) -> bool {
        let (name, quota) = (&loaded.name, &self.quota);
        let cost_at = |at: u64| {
            let found = entries.binary_search_by_key(&at, |(instant, _)| instant.get());
            found.ok().map_or(0, |i| entries[i].1)
        };
        if self.lump.is_some_and(|(at, cost)| cost_at(at) != cost) {
            return false;
        }
        let held = loaded.held.as_ref().filter(|_| !self.fresh);
        let cut = self.at.saturating_sub(quota.window().get());
        let date = dated(quota, self.at);
        let before: &[HeldEntry] = held.map_or(&[], |held| &held.entries);
        let gone = before.iter().any(|entry| entry.at <= cut && entry.cost > 0);
        let clipped: Vec<&HeldEntry> = before
            .iter()
            .filter(|entry| entry.at > cut && entry.at != date && cost_at(entry.at) < entry.cost)
            .collect();
        if self.recorded == 0 && !gone && clipped.is_empty() && self.amended.is_none() {
            return true;
        }
        let modulus = layout::modulus(quota);
        let mut add = redis::cmd("ZADD");
        add.arg(name);
        // Permits that do not count any more, of entries that stay until a later call removes them.
        let mut leftover = 0;
        if self.fresh {
            writes.cmd("UNLINK").arg(name);
        } else if loaded.oldest.is_some_and(|oldest| oldest <= cut) {
            let expired = &before[..before.partition_point(|entry| entry.at <= cut)];
            let last = expired.get(MOST_REMOVED - 1).map_or(cut, |entry| entry.at);
            writes.cmd("ZREMRANGEBYSCORE").arg(name).arg(1).arg(last);
            leftover += expired.iter().filter(|entry| entry.at > last).map(|entry| entry.cost).sum::<u64>();
        }
        // The oldest are forgotten first, so those that are forgotten whole lie together.
        let whole = clipped.partition_point(|entry| cost_at(entry.at) == 0);
        if let Some(first) = clipped[..whole].first() {
            let last = clipped[whole.min(MOST_REMOVED) - 1].at;
            writes.cmd("ZREMRANGEBYSCORE").arg(name).arg(first.at).arg(last);
        }
        for entry in clipped.iter().skip(whole.min(MOST_REMOVED)) {
            let cost = cost_at(entry.at);
            if whole > MOST_REMOVED {
                leftover += entry.cost - cost;
            } else {
                writes.cmd("ZREM").arg(name).arg(&entry.name);
                if cost > 0 {
                    add.arg(entry.at).arg(HeldEntry::name(entry.at, modulus, cost, entry.count));
                }
            }
        }
        let mut used = self.state.used();
        let mut newest = entries.last().map_or(0, |(at, _)| at.get());
        let mut new_cost = None;
        if self.recorded > 0 {
            let cost = cost_at(date);
            let new = HeldEntry::name(date, modulus, cost, self.next);
            if let Some(held) = self.held_entry.as_ref().filter(|held| held.name != new) {
                writes.cmd("ZREM").arg(name).arg(&held.name);
            }
            add.arg(date).arg(new);
            new_cost = Some(cost);
        }
        let sliced = matches!(quota.algorithm(), Algorithm::TimeSlice { .. });
        // Without an entry the others are still alike.
        let mut alters = false;
        if let Some(Amended { used: amended, entry: Some((entry, cost)), newest: left }) = &self.amended {
            writes.cmd("ZREM").arg(name).arg(&entry.name);
            let stays = *cost > 0 || entry.at == self.at || sliced;
            if stays {
                add.arg(entry.at).arg(HeldEntry::name(entry.at, modulus, *cost, entry.count));
            }
            alters = stays && *cost != entry.cost;
            (used, newest) = (*amended, left.unwrap_or(newest));
        }
        let had_notes = held.is_some_and(|held| held.has_notes);
        let half = if had_notes || !self.marks.is_empty() { ".5" } else { "" };
        add.arg(negative(newest) + half).arg(layout::shape(quota));
        let last = kept.last.get();
        if last > newest || sliced || self.fresh {
            add.arg(negative(if last > newest || sliced { last } else { 0 })).arg("l");
        }
        let joins = self.recorded > 0 && self.held_entry.is_some();
        let alike = match (held, new_cost) {
            _ if alters || joins || !clipped.is_empty() => 0,
            (None, cost) => cost.unwrap_or(1),
            (Some(held), Some(cost)) if cost != held.alike => 0,
            (Some(held), _) => held.alike,
        };
        add.arg(negative(alike)).arg("m");
        let more = if alike == 1 { 0.0 } else { 0.25 } + if last > newest { 0.5 } else { 0.0 };
        add.arg(-((used + leftover) as f64 + more)).arg("u");
        if sliced && self.fresh {
            add.arg(negative(self.at)).arg("c");
        }
        writes.add_command(add);
        let (period, life) = (expiry.period(quota).get(), expiry.life(quota).get());
        let pushed = held.map_or(0, |held| held.newest);
        if self.recorded > 0 && (sliced || self.at - self.at % period > pushed) {
            self.expire(writes, name, life);
        }
        if !self.marks.is_empty() {
            let notes = &loaded.notes;
            if had_notes {
                // A clock that is set back may bring back what was not let go.
                let cut = last.saturating_sub(quota.window().get());
                writes.cmd("ZREMRANGEBYSCORE").arg(notes).arg("-inf").arg(cut);
            } else {
                writes.cmd("UNLINK").arg(notes);
            }
            let mut add = redis::cmd("ZADD");
            add.arg(notes);
            self.add_marks(&mut add);
            writes.add_command(add);
            self.expire(writes, notes, life);
        }
        true
    }

    fn write_counter(
        &self,
        writes: &mut Pipeline,
        loaded: &Loaded,
        expiry: Expiry,
        kept: &StateSnapshot,
        used: u64,
        gone: Option<Micros>,
    ) {
        let (name, quota) = (&loaded.name, &self.quota);
        let held = loaded.held.as_ref().filter(|_| !self.fresh);
        let shape = layout::shape(quota);
        let stored = held.map(|held| layout::shape(&held.quota));
        let reshaped = stored.as_ref() != Some(&shape);
        // Taking on another rate and the first one again may leave less than there was.
        let moved = held.is_some_and(|held| held.last != kept.last.get() || held.used != used);
        if self.recorded == 0 && !moved && !reshaped && self.amended.is_none() {
            return;
        }
        let used = self.amended.as_ref().map_or(used, |amended| amended.used);
        if self.fresh {
            writes.cmd("UNLINK").arg(name);
        } else if let Some(stored) = stored.filter(|_| reshaped) {
            writes.cmd("ZREM").arg(name).arg(stored);
        }
        if !self.marks.is_empty() && !self.fresh {
            let cut = gone.map_or(self.at - self.at % quota.window().get() - 1, Micros::get);
            writes.cmd("ZREMRANGEBYSCORE").arg(name).arg(1).arg(cut);
        }
        let mut add = redis::cmd("ZADD");
        let next = self.next;
        add.arg(name).arg(negative(used)).arg("u").arg(negative(kept.last.get())).arg(&shape);
        add.arg(negative(next)).arg("n");
        if self.fresh {
            add.arg(negative(self.at)).arg("c");
        }
        if let Some(gone) = gone {
            add.arg(negative(gone.get())).arg("g");
        }
        self.add_marks(&mut add);
        writes.add_command(add);
        let owed = match quota.algorithm() {
            Algorithm::TokenBucket { .. } => {
                used.div_ceil(quota.rate().0).saturating_sub(quota.horizon().get())
            }
            _ => 0,
        };
        let period = expiry.period(quota).get();
        let pushed = held.map_or(0, |held| held.last);
        if reshaped || owed > 0 || self.at - self.at % period > pushed {
            self.expire(writes, name, expiry.life(quota).get() + owed);
        }
    }

    /// Sets when a key expires that is not changed otherwise.
    pub(super) fn touch(&self, writes: &mut Pipeline, loaded: &Loaded, expiry: Expiry) {
        let Some(held) = &loaded.held else { return };
        let owed = match held.quota.algorithm() {
            Algorithm::TokenBucket { .. } => held.used.div_ceil(held.quota.rate().0),
            _ => 0,
        };
        let life = expiry.life(&held.quota).max(expiry.life(&self.quota));
        self.expire(writes, &loaded.name, life.get() + owed);
    }

    fn add_marks(&self, add: &mut Cmd) {
        for (at, mark) in &self.marks {
            add.arg(*at).arg(mark);
        }
    }

    fn expire(&self, writes: &mut Pipeline, name: &str, life: u64) {
        writes.cmd("PEXPIREAT").arg(name).arg((self.at + life).div_ceil(1_000));
    }
}

/// A score below zero, where headers are.
fn negative(value: u64) -> String {
    format!("-{value}")
}
