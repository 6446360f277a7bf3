//! Parser for the sorted sets that the scripts write: see `lua/zset.lua` and `lua/counters.lua`.

use super::layout;
use crate::Quota;
use crate::algorithm::CounterNumbers;
use crate::quota::Storage;

/// Contents of one key, including entries that may have expired.
#[derive(Clone, Debug)]
pub(super) struct ZsetSnapshot {
    pub(super) quota: Quota,
    /// Permits in use; for a bucket, missing units.
    pub(super) used: u64,
    /// Second number of a counter, if it has one.
    pub(super) second: u64,
    /// Instant of the newest entry that counts; for a counter, when it last changed.
    pub(super) newest: u64,
    /// When an entry was last recorded or seen to expire.
    pub(super) last: u64,
    /// Uniform cost: the cost of every entry; 0 if costs differ.
    pub(super) uniform_cost: u64,
    /// True if this count of a window has notes.
    pub(super) has_notes: bool,
    pub(super) created: u64,
    pub(super) next: u64,
    /// Entries, oldest first.
    pub(super) entries: Vec<ZsetEntry>,
}

/// Permits admitted at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ZsetEntry {
    pub(super) at: u64,
    pub(super) cost: u64,
    /// Number of the next admission of that instant.
    pub(super) count: u64,
    pub(super) name: String,
}

impl ZsetSnapshot {
    pub(super) fn new(quota: Quota) -> Self {
        ZsetSnapshot {
            quota,
            used: 0,
            second: 0,
            newest: 0,
            last: 0,
            uniform_cost: 1,
            has_notes: false,
            created: 0,
            next: 0,
            entries: Vec::new(),
        }
    }

    /// Parses members, lowest score first; none if they are foreign.
    pub(super) fn read(members: &[(String, f64)]) -> Option<Self> {
        let header = members.iter().take_while(|(_, score)| *score <= 0.0);
        let quota = header.clone().find_map(|(name, _)| layout::quota_of(name))?;
        let mut snapshot = ZsetSnapshot::new(quota);
        let mut later = 0;
        let second = match quota.algorithm().storage() {
            Storage::Log => None,
            Storage::Counter { second, .. } => second,
        };
        for (name, score) in header {
            let value = -*score as u64;
            match name.as_str() {
                "u" => snapshot.used = value,
                "l" => later = value,
                "m" => snapshot.uniform_cost = value,
                "c" => snapshot.created = value,
                "n" => snapshot.next = value,
                name if Some(name) == second => snapshot.second = value,
                _ => (snapshot.newest, snapshot.has_notes) = (value, score.fract() != 0.0),
            }
        }
        let sliced = quota.algorithm().is_sliced();
        snapshot.last = if sliced { later } else { snapshot.newest.max(later) };
        snapshot.entries = members.iter().filter_map(|(name, score)| ZsetEntry::read(name, *score)).collect();
        Some(snapshot)
    }

    /// Returns the numbers of a counter.
    pub(super) fn numbers(&self) -> CounterNumbers {
        CounterNumbers { used: self.used, second: self.second }
    }
}

impl ZsetEntry {
    /// Parses a member; none if it is a header or a note.
    pub(super) fn read(name: &str, score: f64) -> Option<Self> {
        if score <= 0.0 || name.bytes().next()? > b'f' {
            return None;
        }
        let (cost, count) = match name.split_once('*') {
            None => (1, 1),
            Some((_, numbers)) => match numbers.split_once('.') {
                None => (numbers.parse().ok()?, 1),
                Some((cost, count)) => (cost.parse().ok()?, count.parse().ok()?),
            },
        };
        Some(ZsetEntry { at: score as u64, cost, count, name: name.to_owned() })
    }

    /// Name of an entry, as `write_name` in Lua makes it.
    pub(super) fn name(at: u64, modulus: u64, cost: u64, count: u64) -> String {
        let instant = at % modulus;
        match (cost, count) {
            (_, 2..) => format!("{instant:x}*{cost}.{count}"),
            (1, _) => format!("{instant:x}"),
            _ => format!("{instant:x}*{cost}"),
        }
    }
}
