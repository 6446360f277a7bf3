//! Helper: a model of every algorithm, written as plainly as possible: a list of all recorded events, searched from end
//! to end for each answer. It shares no code with the library but its types.

use std::collections::{HashMap, HashSet};

use slidegate::{
    Algorithm, Count, Micros, Quota, Settled,
    store::{Entry, Outcome},
};

#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub at: u64,
    pub cost: u64,
    pub seq: u64,
}

#[derive(Clone, Debug)]
struct IdNote {
    at: u64,
    seq: u64,
    cost: u64,
}

impl IdNote {
    fn entry(&self) -> Entry {
        Entry { at: Micros::new(self.at), seq: self.seq, cost: self.cost }
    }
}

/// Model of one key.
#[derive(Clone, Debug)]
pub(crate) struct ReferenceModel {
    quota: Quota,
    entries: Vec<Recorded>,
    notes: HashMap<(u8, u64), IdNote>,
    settled: HashSet<u64>,
    seq: u64,
    /// Time of the last change. The time of the key never runs back before it.
    last: u64,
    /// Fixed window and sliding counter: start of the current window.
    start: u64,
    /// Sliding counter: time of the last roll.
    at: u64,
    /// Bucket: level in 1/window permits, at `since`.
    level: i128,
    since: u64,
    /// Bucket: admissions until this time no longer matter.
    gone: u64,
}

/// Verdict of the model on one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReferenceVerdict {
    /// Time of the key, in microseconds.
    pub now: u64,
    pub outcome: Outcome,
    pub used: u64,
    pub retry_after: u64,
    pub reset_after: u64,
    pub entry: Option<Entry>,
}

pub(crate) struct ReferenceCheck {
    pub key: usize,
    pub quota: Quota,
    pub cost: u64,
    pub enforced: bool,
}

impl ReferenceModel {
    pub(crate) fn new(quota: Quota) -> Self {
        let level = i128::from(quota.capacity()) * i128::from(quota.window().get());
        ReferenceModel {
            quota,
            entries: Vec::new(),
            notes: HashMap::new(),
            settled: HashSet::new(),
            seq: 0,
            last: 0,
            start: 0,
            at: 0,
            level,
            since: 0,
            gone: 0,
        }
    }

    fn window(&self) -> u64 {
        self.quota.window().get()
    }

    /// Returns the instant of an admission at `now`: the end of its slice.
    fn dated(&self, now: u64) -> u64 {
        match self.quota.algorithm() {
            Algorithm::TimeSlice { slices } => {
                let slice = self.window().div_ceil(u64::from(slices));
                now / slice * slice + slice - 1
            }
            _ => now,
        }
    }

    fn leaves(&self, at: u64) -> u64 {
        match self.quota.algorithm() {
            Algorithm::SlidingWindow | Algorithm::TimeSlice { .. } | Algorithm::Concurrency => {
                at + self.window()
            }
            Algorithm::FixedWindow => at / self.window() * self.window() + self.window(),
            Algorithm::SlidingCounter => at / self.window() * self.window() + 2 * self.window(),
            Algorithm::TokenBucket { burst } => {
                at + (u128::from(burst) * u128::from(self.window())).div_ceil(u128::from(self.quota.limit()))
                    as u64
            }
        }
    }

    fn left(&self, at: u64, now: u64) -> bool {
        match self.quota.algorithm() {
            Algorithm::TokenBucket { .. } => at <= self.gone,
            _ => self.leaves(at) <= now,
        }
    }

    /// Removes expired entries and returns the time of this key.
    pub(crate) fn roll(&mut self, now: u64, quota: Quota) -> u64 {
        let now = now.max(self.last);
        self.at = now;
        match self.quota.algorithm() {
            Algorithm::SlidingWindow | Algorithm::TimeSlice { .. } | Algorithm::Concurrency => {}
            Algorithm::FixedWindow | Algorithm::SlidingCounter => {
                let start = now / self.window() * self.window();
                if start > self.start {
                    (self.start, self.last) = (start, now);
                }
            }
            Algorithm::TokenBucket { .. } => {
                let gained = i128::from(now - self.since) * i128::from(self.quota.limit());
                self.level = (self.level + gained).min(self.full());
                (self.since, self.last) = (now, now);
                self.note_gone(now);
            }
        }
        if quota.rate_changed(&self.quota) {
            // The level in permits stays, rounded down to what the new rate can count; a smaller bucket can have less
            // debt.
            let grain = gcd(quota.limit(), self.window());
            self.level = self.level.div_euclid(i128::from(grain)) * i128::from(grain);
            self.quota = quota;
            self.level = self.level.clamp(-self.full(), self.full());
            self.note_gone(now);
        }
        self.quota = quota;
        if self.entries.iter().any(|e| e.cost > 0 && self.left(e.at, now)) {
            self.last = now;
        }
        // Refunded entries and notes are removed when they can no longer matter.
        let (last, entries) = (self.last, std::mem::take(&mut self.entries));
        let stays = |e: &Recorded| !self.left(e.at, if e.cost > 0 { now } else { last });
        self.entries = entries.into_iter().filter(stays).collect();
        let forgotten: Vec<(u8, u64)> =
            self.notes.iter().filter(|(_, k)| self.left(k.at, last)).map(|(id, _)| *id).collect();
        for id in forgotten {
            self.notes.remove(&id);
        }
        now
    }

    fn note_gone(&mut self, now: u64) {
        if let Algorithm::TokenBucket { .. } = self.quota.algorithm() {
            self.gone = self.gone.max(now.saturating_sub(self.leaves(0)));
            if self.level == self.full() {
                self.gone = self.gone.max(now.saturating_sub(1));
            }
        }
    }

    fn full(&self) -> i128 {
        i128::from(self.quota.capacity()) * i128::from(self.window())
    }

    pub(crate) fn used(&self) -> u64 {
        match self.quota.algorithm() {
            Algorithm::TokenBucket { .. } => {
                (self.full() - self.level).unsigned_abs().div_ceil(u128::from(self.window())) as u64
            }
            Algorithm::SlidingCounter => self.weighed(self.at),
            _ => self.entries.iter().map(|e| e.cost).sum(),
        }
    }

    /// Sliding counter: permits in use at `at` if nothing is admitted until then, straight from its definition.
    fn weighed(&self, at: u64) -> u64 {
        let window = self.window();
        let sum = |n: u64| -> u64 {
            self.entries.iter().filter(|e| e.at / window + n == at / window).map(|e| e.cost).sum()
        };
        let elapsed = at % window;
        let weight = u128::from(sum(1)) * u128::from(window - elapsed);
        sum(0) + weight.div_ceil(u128::from(window)) as u64
    }

    fn record(&mut self, now: u64, cost: u64, id: Option<u8>, admitted: bool) -> Entry {
        let (at, seq) = (self.dated(now), self.seq);
        self.last = now;
        self.seq += 1;
        self.entries.push(Recorded { at, cost, seq });
        self.level -= i128::from(cost) * i128::from(self.window());
        if let (Some(id), true) = (id, admitted) {
            self.notes.insert((id, cost), IdNote { at, seq, cost });
        }
        if self.quota.count() == Count::Attempts {
            self.clip();
        }
        Entry { at: Micros::new(at), seq, cost }
    }

    /// Attempts: only the newest permits up to the limit are kept.
    fn clip(&mut self) {
        let capacity = self.quota.capacity();
        if self.quota.algorithm() == Algorithm::SlidingCounter {
            // One permit after the other, the oldest first.
            while self.used() > capacity
                && let Some(oldest) = self.entries.iter_mut().find(|e| e.cost > 0)
            {
                oldest.cost -= 1;
            }
            self.entries.retain(|e| e.cost > 0);
            return;
        }
        let mut excess = self.entries.iter().map(|e| e.cost).sum::<u64>().saturating_sub(capacity);
        for entry in &mut self.entries {
            let cut = entry.cost.min(excess);
            entry.cost -= cut;
            excess -= cut;
        }
        self.entries.retain(|e| e.cost > 0);
        self.level = self.level.max(0);
    }

    /// Returns the smallest wait after which `cost` fits, by trying every instant of a change.
    fn wait(&self, now: u64, cost: u64) -> u64 {
        if let Algorithm::TokenBucket { .. } = self.quota.algorithm() {
            let missing = (i128::from(cost) * i128::from(self.window()) - self.level).max(0);
            return missing.unsigned_abs().div_ceil(u128::from(self.quota.limit())) as u64;
        }
        if self.quota.algorithm() == Algorithm::SlidingCounter {
            // The usage never rises by itself, so a binary search finds the first instant at which the cost fits.
            let (mut low, mut high) = (0, 2 * self.window());
            while low < high {
                let middle = (low + high) / 2;
                let fits = self.weighed(now + middle) + cost <= self.quota.capacity();
                (low, high) = if fits { (low, middle) } else { (middle + 1, high) };
            }
            return low;
        }
        let counted = self.entries.iter().filter(|e| e.cost > 0);
        let mut instants: Vec<u64> = counted.map(|e| self.leaves(e.at)).collect();
        instants.push(now);
        instants.sort_unstable();
        let fits = |instant: &u64| {
            let left: u64 =
                self.entries.iter().filter(|e| self.leaves(e.at) > *instant).map(|e| e.cost).sum();
            left + cost <= self.quota.capacity()
        };
        instants.into_iter().find(fits).map_or(u64::MAX, |instant| instant - now)
    }

    fn reset_after(&self, now: u64) -> u64 {
        if let Algorithm::TokenBucket { .. } = self.quota.algorithm() {
            return (self.full() - self.level).unsigned_abs().div_ceil(u128::from(self.quota.limit())) as u64;
        }
        self.entries.iter().filter(|e| e.cost > 0).map(|e| self.leaves(e.at) - now).max().unwrap_or(0)
    }

    pub(crate) fn settle(&mut self, now: u64, entry: Entry, to: u64) -> Settled {
        let now = self.roll(now, self.quota);
        let stored = self.entries.iter().find(|stored| stored.seq == entry.seq);
        if stored.is_none_or(|stored| self.left(stored.at, now)) {
            return Settled::Gone;
        }
        if !self.settled.insert(entry.seq) {
            return Settled::Already;
        }
        // A bucket owes one capacity at most.
        self.level = (self.level + (i128::from(entry.cost) - i128::from(to)) * i128::from(self.window()))
            .clamp(-self.full(), self.full());
        for stored in self.entries.iter_mut().filter(|stored| stored.seq == entry.seq) {
            stored.cost = to;
        }
        if to == 0 {
            self.notes.retain(|_, note| note.seq != entry.seq);
        }
        Settled::Done
    }
}

impl ReferenceModel {
    /// Extends an admission: it counts as if it had been admitted now.
    pub(crate) fn extend(&mut self, now: u64, entry: Entry) -> Settled {
        let now = self.roll(now, self.quota);
        let is_held = self.quota.algorithm() == Algorithm::Concurrency;
        let Some(place) = self.entries.iter().position(|stored| stored.seq == entry.seq) else {
            return Settled::Gone;
        };
        if self.left(self.entries[place].at, now) {
            return Settled::Gone;
        }
        if self.settled.contains(&entry.seq) {
            return Settled::Already;
        }
        if !is_held {
            return Settled::Gone;
        }
        if self.entries[place].at < now {
            self.entries[place].at = now;
            self.last = now;
        }
        Settled::Done
    }
}

trait RateChanged {
    fn rate_changed(&self, other: &Quota) -> bool;
}

impl RateChanged for Quota {
    fn rate_changed(&self, other: &Quota) -> bool {
        self.limit() != other.limit() || self.capacity() != other.capacity()
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

enum Evaluation {
    Fits,
    Denied,
    Impossible,
    Repeated(Entry),
}

/// Evaluates the checks of one request over several keys.
pub(crate) fn evaluate(
    keys: &mut [ReferenceModel],
    now: Micros,
    checks: &[ReferenceCheck],
    id: Option<u8>,
    peek: bool,
) -> Vec<ReferenceVerdict> {
    let mut evaluations = Vec::new();
    for check in checks {
        let key = &mut keys[check.key];
        let now = key.roll(now.get(), check.quota);
        let capacity = check.quota.capacity();
        // The same id with another cost is another request.
        let note = id.and_then(|id| key.notes.get(&(id, check.cost))).filter(|note| !key.left(note.at, now));
        evaluations.push((
            now,
            match note {
                _ if check.cost > capacity => Evaluation::Impossible,
                Some(note) => Evaluation::Repeated(note.entry()),
                None if key.used() + check.cost <= capacity => Evaluation::Fits,
                None => Evaluation::Denied,
            },
        ));
    }
    let denies = |evaluation: &Evaluation| matches!(evaluation, Evaluation::Denied | Evaluation::Impossible);
    let denier = checks
        .iter()
        .zip(&evaluations)
        .position(|(check, (_, evaluation))| check.enforced && denies(evaluation));
    let mut verdicts = Vec::new();
    for (i, (check, (now, evaluation))) in checks.iter().zip(&evaluations).enumerate() {
        let key = &mut keys[check.key];
        let attempts = check.quota.count() == Count::Attempts;
        let admitted = !peek && denier.is_none();
        let counted = !peek && check.cost > 0 && (admitted || (attempts && denier.is_some_and(|r| i <= r)));
        let mut entry = None;
        let outcome = match evaluation {
            Evaluation::Impossible => Outcome::Impossible,
            Evaluation::Repeated(previous) => {
                entry = Some(*previous);
                Outcome::Charged
            }
            Evaluation::Fits => {
                let recorded = counted.then(|| key.record(*now, check.cost, id, admitted));
                if admitted && counted {
                    entry = recorded;
                    Outcome::Charged
                } else {
                    Outcome::Fits
                }
            }
            Evaluation::Denied => {
                if counted && attempts {
                    key.record(*now, check.cost, id, false);
                }
                Outcome::Denied
            }
        };
        if attempts {
            // An attempt is not settled, so it has no number.
            entry = entry.map(|entry| Entry { seq: u64::MAX, ..entry });
        }
        verdicts.push(ReferenceVerdict {
            now: *now,
            outcome,
            used: key.used(),
            retry_after: match outcome {
                Outcome::Charged => 0,
                Outcome::Impossible => check.quota.horizon().get(),
                _ => key.wait(*now, check.cost),
            },
            reset_after: key.reset_after(*now),
            entry,
        });
    }
    verdicts
}
