//! Commands that write the changes of a key: the layout is that of `lua/zset.lua` and `lua/counters.lua`.

use redis::{Cmd, Pipeline};

use super::key_state::{Amendment, KeyState, record_instant};
use super::load::LoadedKey;
use crate::Micros;
use crate::algorithm::{CounterNumbers, SnapshotCounts, StateSnapshot};
use crate::quota::Storage;
use crate::store::redis::layout;
use crate::store::redis::options::Expiry;
use crate::store::redis::zset_snapshot::ZsetEntry;

/// Maximum number of entries that one transaction removes. It is bounded like the calls of a script.
const MOST_REMOVED: usize = 2_000;

impl KeyState {
    /// Adds the commands for the changes; returns false if they depend on entries that were not read.
    pub(super) fn write(&self, writes: &mut Pipeline, loaded: &LoadedKey, expiry: Expiry) -> bool {
        let kept = self.state.snapshot();
        if self.fresh && self.recorded == 0 {
            return true;
        }
        match &kept.counted {
            SnapshotCounts::Entries(entries) => self.write_window(writes, loaded, expiry, &kept, entries),
            SnapshotCounts::Numbers(numbers) => {
                self.write_counter(writes, loaded, expiry, kept.last, *numbers);
                true
            }
        }
    }

    fn write_window(
        &self,
        writes: &mut Pipeline,
        loaded: &LoadedKey,
        expiry: Expiry,
        kept: &StateSnapshot,
        entries: &[(Micros, u64)],
    ) -> bool {
        let (name, quota) = (&loaded.name, &self.quota);
        let cost_at = |at: u64| {
            let found = entries.binary_search_by_key(&at, |(instant, _)| instant.get());
            found.ok().map_or(0, |i| entries[i].1)
        };
        if self.unread_permits.is_some_and(|(at, cost)| cost_at(at) != cost) {
            return false;
        }
        let snapshot = loaded.snapshot.as_ref().filter(|_| !self.fresh);
        let cut = self.at.saturating_sub(quota.window().get());
        let date = record_instant(quota, self.at);
        let before: &[ZsetEntry] = snapshot.map_or(&[], |snapshot| &snapshot.entries);
        let gone = before.iter().any(|entry| entry.at <= cut && entry.cost > 0);
        let clipped: Vec<&ZsetEntry> = before
            .iter()
            .filter(|entry| entry.at > cut && entry.at != date && cost_at(entry.at) < entry.cost)
            .collect();
        if self.recorded == 0 && !gone && clipped.is_empty() && self.amended.is_none() {
            return true;
        }
        let modulus = layout::modulus(quota);
        let mut add = redis::cmd("ZADD");
        add.arg(name);
        // Permits that no longer count, but whose entries stay until a later call removes them.
        let mut leftover = 0;
        if self.fresh {
            writes.cmd("UNLINK").arg(name);
        } else if loaded.oldest.is_some_and(|oldest| oldest <= cut) {
            let expired = &before[..before.partition_point(|entry| entry.at <= cut)];
            let last = expired.get(MOST_REMOVED - 1).map_or(cut, |entry| entry.at);
            writes.cmd("ZREMRANGEBYSCORE").arg(name).arg(1).arg(last);
            leftover += expired.iter().filter(|entry| entry.at > last).map(|entry| entry.cost).sum::<u64>();
        }
        // The oldest permits are forgotten first, so the entries that are forgotten completely are contiguous.
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
                    add.arg(entry.at).arg(ZsetEntry::name(entry.at, modulus, cost, entry.count));
                }
            }
        }
        let mut used = self.state.used();
        let mut newest = entries.last().map_or(0, |(at, _)| at.get());
        let mut new_cost = None;
        if self.recorded > 0 {
            let cost = cost_at(date);
            let new = ZsetEntry::name(date, modulus, cost, self.next);
            if let Some(snapshot) = self.current_entry.as_ref().filter(|snapshot| snapshot.name != new) {
                writes.cmd("ZREM").arg(name).arg(&snapshot.name);
            }
            add.arg(date).arg(new);
            new_cost = Some(cost);
        }
        let sliced = quota.algorithm().is_sliced();
        // If the entry is removed, the costs of the other entries stay uniform.
        let mut alters = false;
        if let Some(Amendment::Entry { used: amended, entry, cost, newest: left }) = &self.amended {
            writes.cmd("ZREM").arg(name).arg(&entry.name);
            let stays = *cost > 0 || entry.at == self.at || sliced;
            if stays {
                add.arg(entry.at).arg(ZsetEntry::name(entry.at, modulus, *cost, entry.count));
            }
            alters = stays && *cost != entry.cost;
            (used, newest) = (*amended, left.unwrap_or(newest));
        }
        let had_notes = snapshot.is_some_and(|snapshot| snapshot.has_notes);
        let half = if had_notes || !self.new_notes.is_empty() { ".5" } else { "" };
        add.arg(negative(newest) + half).arg(layout::quota_tag(quota));
        let last = kept.last.get();
        if last > newest || sliced || self.fresh {
            add.arg(negative(if last > newest || sliced { last } else { 0 })).arg("l");
        }
        let joins = self.recorded > 0 && self.current_entry.is_some();
        let uniform_cost = match (snapshot, new_cost) {
            _ if alters || joins || !clipped.is_empty() => 0,
            (None, cost) => cost.unwrap_or(1),
            (Some(snapshot), Some(cost)) if cost != snapshot.uniform_cost => 0,
            (Some(snapshot), _) => snapshot.uniform_cost,
        };
        add.arg(negative(uniform_cost)).arg("m");
        let more = if uniform_cost == 1 { 0.0 } else { 0.25 } + if last > newest { 0.5 } else { 0.0 };
        add.arg(-((used + leftover) as f64 + more)).arg("u");
        if sliced && self.fresh {
            add.arg(negative(self.at)).arg("c");
        }
        writes.add_command(add);
        let (period, ttl) = (expiry.period(quota).get(), expiry.ttl(quota).get());
        let pushed = snapshot.map_or(0, |snapshot| snapshot.newest);
        if self.recorded > 0 && (sliced || self.at - self.at % period > pushed) {
            self.expire(writes, name, ttl);
        }
        if !self.new_notes.is_empty() {
            let notes = &loaded.notes;
            if had_notes {
                // Notes of entries that are not yet removed stay: if the clock is set back, such entries may count
                // again.
                let cut = last.saturating_sub(quota.window().get());
                writes.cmd("ZREMRANGEBYSCORE").arg(notes).arg("-inf").arg(cut);
            } else {
                writes.cmd("UNLINK").arg(notes);
            }
            let mut add = redis::cmd("ZADD");
            add.arg(notes);
            self.add_notes(&mut add);
            writes.add_command(add);
            self.expire(writes, notes, ttl);
        }
        true
    }

    fn write_counter(
        &self,
        writes: &mut Pipeline,
        loaded: &LoadedKey,
        expiry: Expiry,
        last: Micros,
        numbers: CounterNumbers,
    ) {
        let (name, quota) = (&loaded.name, &self.quota);
        let snapshot = loaded.snapshot.as_ref().filter(|_| !self.fresh);
        let quota_tag = layout::quota_tag(quota);
        let stored = snapshot.map(|snapshot| layout::quota_tag(&snapshot.quota));
        let retagged = stored.as_ref() != Some(&quota_tag);
        // A batch that changes the rate and then changes it back may leave fewer units than before.
        let moved =
            snapshot.is_some_and(|snapshot| snapshot.last != last.get() || snapshot.used != numbers.used);
        if self.recorded == 0 && !moved && !retagged && self.amended.is_none() {
            return;
        }
        if self.fresh {
            writes.cmd("UNLINK").arg(name);
        } else if let Some(stored) = stored.filter(|_| retagged) {
            writes.cmd("ZREM").arg(name).arg(stored);
        }
        if !self.new_notes.is_empty() && !self.fresh {
            writes.cmd("ZREMRANGEBYSCORE").arg(name).arg(1).arg(self.state.gone_until().get());
        }
        let mut add = redis::cmd("ZADD");
        add.arg(name).arg(negative(numbers.used)).arg("u").arg(negative(last.get())).arg(&quota_tag);
        add.arg(negative(self.next)).arg("n");
        if self.fresh {
            add.arg(negative(self.at)).arg("c");
        }
        if let Storage::Counter { second: Some(name), .. } = quota.algorithm().storage() {
            add.arg(negative(numbers.second)).arg(name);
        }
        self.add_notes(&mut add);
        writes.add_command(add);
        // A bucket in debt needs longer than its horizon to fill.
        let owed = self.state.empty_at().since(Micros::new(self.at)).since(quota.horizon()).get();
        let period = expiry.period(quota).get();
        let pushed = snapshot.map_or(0, |snapshot| snapshot.last);
        if retagged || owed > 0 || self.at - self.at % period > pushed {
            self.expire(writes, name, expiry.ttl(quota).get() + owed);
        }
    }

    /// Sets the expiry of a key that is not changed otherwise.
    pub(super) fn touch(&self, writes: &mut Pipeline, loaded: &LoadedKey, expiry: Expiry) {
        let Some(snapshot) = &loaded.snapshot else { return };
        let refills = snapshot.quota.algorithm().refills();
        let owed = if refills { snapshot.used.div_ceil(snapshot.quota.rate().0) } else { 0 };
        let ttl = expiry.ttl(&snapshot.quota).max(expiry.ttl(&self.quota));
        self.expire(writes, &loaded.name, ttl.get() + owed);
    }

    fn add_notes(&self, add: &mut Cmd) {
        for (at, mark) in &self.new_notes {
            add.arg(*at).arg(mark);
        }
    }

    fn expire(&self, writes: &mut Pipeline, name: &str, ttl: u64) {
        writes.cmd("PEXPIREAT").arg(name).arg((self.at + ttl).div_ceil(1_000));
    }
}

/// Negated value as a score below zero, which marks header members.
fn negative(value: u64) -> String {
    format!("-{value}")
}
