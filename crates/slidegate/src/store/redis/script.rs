//! Lua scripts: assembled from parts, called by their digest, loaded where they are missing.

use std::sync::OnceLock;

use redis::{Cmd, Script};

use super::codec::lua;
use super::codec::record::{ExpirySettings, Record};
use super::layout::{Kind, Names};
use super::options::Expiry;
use crate::Key;

const PRELUDE: &str = include_str!("lua/prelude.lua");
const FAST_ZSET: &str = include_str!("lua/fast_zset.lua");
const FAST_PACKED: &str = include_str!("lua/fast_packed.lua");
const COMMON: &str = include_str!("lua/common.lua");
const NOTES: &str = include_str!("lua/notes.lua");
const ZSET: &str = include_str!("lua/zset.lua");
const PACKED: &str = include_str!("lua/packed.lua");
const COUNTERS: &str = include_str!("lua/counters.lua");
const SLIDING_COUNTER: &str = include_str!("lua/sliding_counter.lua");
const WARM: &str = include_str!("lua/warm.lua");
const ADMIT: &str = include_str!("lua/admit.lua");
const SETTLE: &str = include_str!("lua/settle.lua");
const RESTORE: &str = include_str!("lua/restore.lua");
const QUOTA_TAG: &str = include_str!("lua/quota_tag.lua");
const LOAD_ANY: &str = include_str!("lua/load_any.lua");
const AUDIT: &str = include_str!("lua/audit.lua");
const GC: &str = include_str!("lua/gc.lua");

/// Set of the script parts that a call needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts(u8);

impl Parts {
    const ALL: Parts = Parts(0b100_1111);
    const NOTES: Parts = Parts(0b1000);
    const FAST_PATH: Parts = Parts(0b1_0000);
    const WARM: Parts = Parts(0b10_0000);

    pub(super) fn add_kind(&mut self, kind: Kind) {
        self.0 |= Parts::of(kind);
    }

    fn of(kind: Kind) -> u8 {
        match kind {
            Kind::Zset => 1,
            Kind::Packed => 2,
            Kind::Counter(5) => 4 | 64,
            Kind::Counter(_) => 4,
        }
    }

    pub(super) fn add_notes(&mut self) {
        self.0 |= Parts::NOTES.0;
    }

    /// Adds the part for limits that warm up.
    pub(super) fn add_warm(&mut self) {
        self.0 |= Parts::WARM.0;
    }

    /// Adds the fast path: for runs of equal requests, each on a key of its own. One run on a log, or any number of
    /// runs on sorted sets.
    pub(super) fn add_fast_path(&mut self, kind: Kind) {
        self.0 |= Parts::FAST_PATH.0 | Parts::of(kind);
    }

    fn has(self, bits: u8) -> bool {
        self.0 & bits == bits
    }

    fn text(self) -> String {
        let parts = [
            (true, PRELUDE),
            (self.has(Parts::FAST_PATH.0 | 1), FAST_ZSET),
            (self.has(Parts::FAST_PATH.0 | 2), FAST_PACKED),
            (true, COMMON),
            (self.has(Parts::NOTES.0), NOTES),
            (self.has(1), ZSET),
            (self.has(2), PACKED),
            (self.has(4), COUNTERS),
            (self.has(64), SLIDING_COUNTER),
            (self.has(Parts::WARM.0), WARM),
        ];
        parts.iter().filter(|(needed, _)| *needed).map(|(_, text)| *text).collect()
    }
}

/// KEYS and ARGV of a script call.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    pub(super) keys: Vec<String>,
    /// Records for the script: the first of ARGV.
    pub(super) plan: Vec<u8>,
    pub(super) texts: Vec<String>,
}

impl Arguments {
    /// All keys in Redis that may hold data of `key`, and the expiry settings: for `lua/load_any.lua`.
    pub(super) fn for_key(key: &Key, names: &Names, expiry: Expiry) -> Self {
        let mut arguments = Arguments { keys: names.counted(key).into(), ..Arguments::default() };
        arguments.add(ExpirySettings { min_expire: expiry.min, buffer: expiry.buffer });
        arguments
    }

    /// Adds a key and returns its index in `KEYS`.
    pub(super) fn add_key(&mut self, name: String) -> u64 {
        self.keys.push(name);
        self.keys.len() as u64
    }

    /// Adds a text and returns its index in `ARGV`, of which the plan is the first.
    pub(super) fn add_text(&mut self, text: String) -> u64 {
        self.texts.push(text);
        self.texts.len() as u64 + 1
    }

    /// Appends a record to the plan.
    pub(super) fn add(&mut self, record: impl Record) {
        record.write(&mut self.plan);
    }
}

/// First lines of a script on Redis 6.2, which lets a script write anything once it has written something, also when
/// its memory is full. So the script first makes a write that changes nothing, and ends if Redis denies it.
const PROBE: &str = "\
local probe = redis.pcall('ZADD', KEYS[1], 'XX', '0', 'probe')
if type(probe) == 'table' and probe.err and string.find(probe.err, 'OOM', 1, true) then return probe end
";

/// One script in two forms: with the shebang of Redis 7, and without it.
pub(super) struct PreparedScript {
    /// With the shebang. Redis 7 then denies the whole script when its memory is full, before anything is written.
    with_shebang: Script,
    without_shebang: Script,
    text: String,
    oom_policy: OomPolicy,
}

/// Policy for a script when the memory of Redis is full.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OomPolicy {
    /// The script does not run.
    Deny,
    /// The script runs: it takes no more memory than it finds.
    Allow,
}

impl PreparedScript {
    fn new(parts: &str, oom_policy: OomPolicy) -> Self {
        // A test expands every part, so this does not fail.
        let text = lua::expand(parts).unwrap_or_else(|error| format!("error({error:?})"));
        let (with_shebang, without_shebang) =
            (Script::new(&oom_policy.with_shebang(&text)), Script::new(&oom_policy.without_shebang(&text)));
        PreparedScript { with_shebang, without_shebang, text, oom_policy }
    }

    pub(super) fn by_digest(&self, without_shebang: bool, arguments: &Arguments) -> Cmd {
        let digest =
            if without_shebang { self.without_shebang.get_hash() } else { self.with_shebang.get_hash() };
        command("EVALSHA", digest, arguments)
    }

    pub(super) fn by_text(&self, without_shebang: bool, arguments: &Arguments) -> Cmd {
        let text = if without_shebang {
            self.oom_policy.without_shebang(&self.text)
        } else {
            self.oom_policy.with_shebang(&self.text)
        };
        command("EVAL", &text, arguments)
    }
}

/// The scripts of one store.
pub(super) struct Scripts {
    admit: [OnceLock<PreparedScript>; 128],
    settle: OnceLock<PreparedScript>,
    restore: OnceLock<PreparedScript>,
    audit: OnceLock<PreparedScript>,
    gc: OnceLock<PreparedScript>,
}

impl Default for Scripts {
    fn default() -> Self {
        Scripts {
            admit: std::array::from_fn(|_| OnceLock::new()),
            settle: OnceLock::new(),
            restore: OnceLock::new(),
            audit: OnceLock::new(),
            gc: OnceLock::new(),
        }
    }
}

impl Scripts {
    pub(super) fn admit(&self, parts: Parts) -> &PreparedScript {
        self.admit[usize::from(parts.0)]
            .get_or_init(|| PreparedScript::new(&(parts.text() + ADMIT), OomPolicy::Deny))
    }

    pub(super) fn settle(&self) -> &PreparedScript {
        self.settle
            .get_or_init(|| PreparedScript::new(&(Parts::ALL.text() + QUOTA_TAG + SETTLE), OomPolicy::Deny))
    }

    pub(super) fn restore(&self) -> &PreparedScript {
        self.restore.get_or_init(|| PreparedScript::new(&(Parts::ALL.text() + RESTORE), OomPolicy::Deny))
    }

    pub(super) fn audit(&self) -> &PreparedScript {
        self.audit.get_or_init(|| {
            PreparedScript::new(&(Parts::ALL.text() + QUOTA_TAG + LOAD_ANY + AUDIT), OomPolicy::Allow)
        })
    }

    pub(super) fn gc(&self) -> &PreparedScript {
        self.gc.get_or_init(|| {
            PreparedScript::new(&(Parts::ALL.text() + QUOTA_TAG + LOAD_ANY + GC), OomPolicy::Allow)
        })
    }
}

impl OomPolicy {
    fn with_shebang(self, text: &str) -> String {
        let flags = if self == OomPolicy::Allow { " flags=allow-oom" } else { "" };
        format!("#!lua{flags}\n{text}")
    }

    fn without_shebang(self, text: &str) -> String {
        let probe = if self == OomPolicy::Allow { "" } else { PROBE };
        format!("{probe}{text}")
    }
}

fn command(name: &str, script: &str, arguments: &Arguments) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(arguments.keys.len());
    for key in &arguments.keys {
        command.arg(key);
    }
    command.arg(&arguments.plan);
    for text in &arguments.texts {
        command.arg(text);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_uses_declared_records() {
        let parts = Parts(u8::MAX).text() + ADMIT + SETTLE + RESTORE + QUOTA_TAG + LOAD_ANY + AUDIT + GC;
        let expanded = lua::expand(&parts);
        assert!(expanded.is_ok(), "{expanded:?}");
    }
}
