//! Lua scripts: assembled from parts, called by their digest, loaded where they are missing.

use std::sync::{LazyLock, OnceLock};

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
    pub(super) const NOTES: Parts = Parts(0b1000);
    const FAST_PATH: Parts = Parts(0b1_0000);
    /// The part for limits that warm up.
    pub(super) const WARM: Parts = Parts(0b10_0000);

    pub(super) fn add(&mut self, part: Parts) {
        self.0 |= part.0;
    }

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

    /// Adds the fast path, for runs of equal requests, each run on a key of its own: one run on a log, or any number of
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

/// First lines of a script on Redis 6.2. If its memory is full, Redis 6.2 denies only the first write of a script. So
/// the script first makes a write that changes nothing, and ends if Redis denies that write.
const PROBE: &str = "\
local probe = redis.pcall('ZADD', KEYS[1], 'XX', '0', 'probe')
if type(probe) == 'table' and probe.err and string.find(probe.err, 'OOM', 1, true) then return probe end
";

/// One script in two forms.
pub(super) struct PreparedScript {
    /// With the shebang of Redis 7. If its memory is full, Redis 7 denies the whole script, before anything is written.
    with_shebang: ScriptForm,
    without_shebang: ScriptForm,
}

struct ScriptForm {
    text: String,
    digest: String,
}

/// Policy for a script when the memory of Redis is full.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OomPolicy {
    /// The script does not run.
    Deny,
    /// The script runs, because it does not increase the memory in use.
    Allow,
}

impl PreparedScript {
    fn new(parts: &str, oom_policy: OomPolicy) -> Self {
        // A test expands every part, so this does not fail.
        let text = lua::expand(parts).unwrap_or_else(|error| format!("error({error:?})"));
        let (flags, probe) = match oom_policy {
            OomPolicy::Deny => ("", PROBE),
            OomPolicy::Allow => (" flags=allow-oom", ""),
        };
        let form = |text: String| ScriptForm { digest: Script::new(&text).get_hash().to_owned(), text };
        PreparedScript {
            with_shebang: form(format!("#!lua{flags}\n{text}")),
            without_shebang: form(format!("{probe}{text}")),
        }
    }

    fn form(&self, without_shebang: bool) -> &ScriptForm {
        if without_shebang { &self.without_shebang } else { &self.with_shebang }
    }

    pub(super) fn by_digest(&self, without_shebang: bool, arguments: &Arguments) -> Cmd {
        command("EVALSHA", &self.form(without_shebang).digest, arguments)
    }

    pub(super) fn by_text(&self, without_shebang: bool, arguments: &Arguments) -> Cmd {
        command("EVAL", &self.form(without_shebang).text, arguments)
    }
}

/// Returns the script that admits a batch which needs these parts.
pub(super) fn admit_script(parts: Parts) -> &'static PreparedScript {
    static SCRIPTS: [OnceLock<PreparedScript>; 128] = [const { OnceLock::new() }; 128];
    SCRIPTS[usize::from(parts.0)]
        .get_or_init(|| PreparedScript::new(&(parts.text() + ADMIT), OomPolicy::Deny))
}

pub(super) static SETTLE_SCRIPT: LazyLock<PreparedScript> =
    LazyLock::new(|| PreparedScript::new(&(Parts::ALL.text() + QUOTA_TAG + SETTLE), OomPolicy::Deny));

pub(super) static RESTORE_SCRIPT: LazyLock<PreparedScript> =
    LazyLock::new(|| PreparedScript::new(&(Parts::ALL.text() + RESTORE), OomPolicy::Deny));

pub(super) static AUDIT_SCRIPT: LazyLock<PreparedScript> = LazyLock::new(|| maintenance_script(AUDIT));

pub(super) static GC_SCRIPT: LazyLock<PreparedScript> = LazyLock::new(|| maintenance_script(GC));

fn maintenance_script(script: &str) -> PreparedScript {
    PreparedScript::new(&(Parts::ALL.text() + QUOTA_TAG + LOAD_ANY + script), OomPolicy::Allow)
}

fn command(name: &str, script: &str, arguments: &Arguments) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(arguments.keys.len());
    command.arg(&arguments.keys).arg(&arguments.plan).arg(&arguments.texts);
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
