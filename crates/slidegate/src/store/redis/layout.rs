//! Names of keys and members in Redis. The stored layouts are in `lua/zset.lua`, `lua/counters.lua` and
//! `lua/packed.lua`.

use sha2::{Digest, Sha256};

use crate::quota::Storage;
use crate::{Algorithm, Check, Encoding, Key, Micros, Quota, RequestId};

/// Names the keys of one deployment.
#[derive(Clone, Debug)]
pub(super) struct Names {
    prefix: String,
}

/// Kind of counter of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Zset,
    Packed,
    /// Sorted set with a header and no entries; the number is the kind of counter in the scripts.
    Counter(u8),
}

/// Keys in Redis that hold data of one rate limit key. The two encodings of a window have no keys in common, so a rule
/// that changes its encoding and later changes it back still finds its notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum KeyPart {
    Main,
    Notes,
    Log,
    LogNotes,
    /// Warm-up record: the start of the warm-up of the limit.
    Warm,
}

impl KeyPart {
    /// Parts that may hold counts, and the notes on them.
    const COUNTED: [KeyPart; 4] = [KeyPart::Main, KeyPart::Notes, KeyPart::Log, KeyPart::LogNotes];
    const ALL: [KeyPart; 5] = [KeyPart::Main, KeyPart::Notes, KeyPart::Log, KeyPart::LogNotes, KeyPart::Warm];

    fn suffix(self) -> &'static str {
        match self {
            KeyPart::Main => "",
            KeyPart::Notes => ":notes",
            KeyPart::Log => ":log",
            KeyPart::LogNotes => ":log:notes",
            KeyPart::Warm => ":warm",
        }
    }
}

impl Kind {
    pub(super) fn of(check: &Check) -> Self {
        let algorithm = check.quota.algorithm();
        match algorithm.storage() {
            Storage::Log if check.encoding == Encoding::Packed && algorithm.is_exact() => Kind::Packed,
            Storage::Log => Kind::Zset,
            Storage::Counter { kind, .. } => Kind::Counter(kind),
        }
    }

    /// Returns the number of the kind in the scripts.
    pub(super) fn number(self) -> u64 {
        match self {
            Kind::Zset => 1,
            Kind::Packed => 2,
            Kind::Counter(number) => number.into(),
        }
    }

    /// Returns the part that counts, and the part for notes if it is separate and needed. A log that starts anew
    /// deletes its notes, so every call on a log names the notes key. A sorted set itself records whether it has notes.
    pub(super) fn parts(self, notes: bool) -> (KeyPart, Option<KeyPart>) {
        match self {
            Kind::Zset => (KeyPart::Main, notes.then_some(KeyPart::Notes)),
            Kind::Packed => (KeyPart::Log, Some(KeyPart::LogNotes)),
            Kind::Counter(_) => (KeyPart::Main, None),
        }
    }
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Names { prefix: prefix.to_owned() }
    }

    /// Names of all keys that may hold data of `key`.
    pub(super) fn all(&self, key: &Key) -> [String; 5] {
        KeyPart::ALL.map(|part| self.name(key, part))
    }

    /// Names of the keys that may hold counts or notes.
    pub(super) fn counted(&self, key: &Key) -> [String; 4] {
        KeyPart::COUNTED.map(|part| self.name(key, part))
    }

    /// Name of the Redis key with one part of the data of `key`. Braces put all parts into one slot of a cluster: the
    /// braces of the tag, or braces around the whole `key` if it has no tag.
    pub(super) fn name(&self, key: &Key, part: KeyPart) -> String {
        let (prefix, suffix) = (&self.prefix, part.suffix());
        match key.tag() {
            None => format!("{prefix}:{{{key}}}{suffix}"),
            Some(_) => format!("{prefix}:{key}{suffix}"),
        }
    }

    /// Channel on which processes publish freed keys.
    pub(super) fn freed_channel(&self) -> String {
        format!("{}:freed", self.prefix)
    }

    /// Name of the Redis key of a text that all processes read.
    pub(super) fn shared(&self, name: &str) -> String {
        format!("{}:{{{name}}}:shared", self.prefix)
    }

    /// Name of the hash in which processes publish their presence.
    pub(super) fn nodes(&self, tag: &str) -> String {
        format!("{}:{{{tag}}}:nodes", self.prefix)
    }

    /// Pattern that matches every key of the deployment, and nothing else.
    pub(super) fn pattern(&self) -> String {
        format!("{}:{{*", self.prefix)
    }

    /// Parses the name of a key in Redis; none if it is foreign.
    pub(super) fn parse(&self, name: &[u8]) -> Option<(Key, KeyPart)> {
        let text = str::from_utf8(name).ok()?.strip_prefix(&self.prefix)?.strip_prefix(':')?;
        let (inside, after) = text.strip_prefix('{')?.split_once('}')?;
        if let Some(part) = KeyPart::ALL.into_iter().find(|part| part.suffix() == after) {
            return Some((Key::printed(inside), part));
        }
        // An attribute always contains `=`, so it is never mistaken for a suffix. The longest suffix applies.
        let part = KeyPart::ALL.into_iter().rev().find(|part| text.ends_with(part.suffix()))?;
        let key = Key::printed(text.strip_suffix(part.suffix())?);
        let ours = !after.starts_with(':') && !after.contains(['{', '}']);
        Some((key, part)).filter(|(key, _)| ours && key.tag().is_some())
    }

    /// Returns true if the key belongs to the deployment and counts nothing.
    pub(super) fn is_auxiliary(name: &[u8]) -> bool {
        name.ends_with(b"}:shared") || name.ends_with(b"}:nodes")
    }
}

/// Algorithm and numbers of a quota as text, stored with the key: another quota tag starts the count anew.
pub(super) fn quota_tag(quota: &Quota) -> String {
    let algorithm = quota.algorithm();
    let (name, window, (rate, per)) = (algorithm.as_str(), quota.window().get(), quota.rate());
    match (algorithm.slices(), algorithm.burst()) {
        (Some(slices), _) => format!("{name} {window} {slices}"),
        (_, Some(burst)) => format!("{name} {rate} {per} {burst}"),
        (None, None) => format!("{name} {window}"),
    }
}

/// Parses a quota tag. The quota tag of a window does not contain the limit.
pub(super) fn quota_of(quota_tag: &str) -> Option<Quota> {
    let (name, numbers) = quota_tag.split_once(' ')?;
    let numbers: Vec<u64> = numbers.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    let window = |window: u64| Quota::new(crate::quota::MAX_LIMIT, Micros::new(window).into()).ok();
    let algorithm = Algorithm::all(1).into_iter().find(|algorithm| algorithm.as_str() == name)?;
    match *numbers.as_slice() {
        [rate, per, burst] if algorithm.refills() => Quota::bucket(rate, per, burst),
        [w, slices] if algorithm.is_sliced() => {
            window(w)?.with_algorithm(algorithm.with_slices(slices.try_into().ok()?)).ok()
        }
        [w] if !algorithm.refills() && !algorithm.is_sliced() => window(w)?.with_algorithm(algorithm).ok(),
        _ => None,
    }
}

/// Modulus of the instants in the names of entries and notes: see `modulus_of` in `lua/common.lua`.
pub(super) fn modulus(quota: &Quota) -> u64 {
    if !quota.algorithm().has_entries() || quota.is_held() {
        return 1 << 52;
    }
    let mut modulus = 16;
    while modulus <= 2 * quota.horizon().get() {
        modulus *= 16;
    }
    modulus
}

/// Lowest number of admissions of requests with an id: see [`id_digits`]. Numbers of requests without an id are
/// smaller.
pub(crate) const FIRST_ID_SEQ: u64 = 1_000_000_000_000_000_000;

/// Name of the note that a request was admitted.
pub(super) fn id_note(id: &RequestId, cost: u64) -> String {
    format!("id:{}", id_digits(id, cost))
}

/// Name of the note that proves the admission with the number `seq`, of a request with an id.
pub(super) fn id_note_of(seq: u64) -> String {
    let (digits, k) = (seq / 100, seq % 100);
    if k == 0 { format!("id:{digits}") } else { format!("id:{digits}/{k}") }
}

/// Seventeen digits that are derived from the id and the cost of a request, for the notes and the numbers of its
/// admissions. A number has two more digits, which count how often the request was admitted again in one instant.
pub(super) fn id_digits(id: &RequestId, cost: u64) -> u64 {
    let digest = Sha256::digest(format!("id:{id}*{cost}").as_bytes());
    let number = digest.iter().take(8).fold(0u64, |number, &byte| number << 8 | u64::from(byte));
    10_000_000_000_000_000 + number % 90_000_000_000_000_000
}
