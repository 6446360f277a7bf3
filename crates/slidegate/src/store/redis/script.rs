//! Lua scripts: assembled from parts, called by their digest, loaded where they are missing.

use std::sync::OnceLock;

use redis::{Cmd, Script};

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
    const ALL: Parts = Parts(0b1111);
    const NOTES: Parts = Parts(0b1000);
    const QUICK: Parts = Parts(0b1_0000);
    const WARM: Parts = Parts(0b10_0000);

    pub(super) fn add_kind(&mut self, kind: Kind) {
        self.0 |= Parts::of(kind);
    }

    fn of(kind: Kind) -> u8 {
        match kind {
            Kind::Zset => 1,
            Kind::Packed => 2,
            Kind::Fixed | Kind::Bucket => 4,
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
    pub(super) fn add_quick(&mut self, kind: Kind) {
        self.0 |= Parts::QUICK.0 | Parts::of(kind);
    }

    fn has(self, bits: u8) -> bool {
        self.0 & bits == bits
    }

    fn text(self) -> String {
        let parts = [
            (true, PRELUDE),
            (self.has(Parts::QUICK.0 | 1), FAST_ZSET),
            (self.has(Parts::QUICK.0 | 2), FAST_PACKED),
            (true, COMMON),
            (self.has(Parts::NOTES.0), NOTES),
            (self.has(1), ZSET),
            (self.has(2), PACKED),
            (self.has(4), COUNTERS),
            (self.has(Parts::WARM.0), WARM),
        ];
        parts.iter().filter(|(needed, _)| *needed).map(|(_, text)| *text).collect()
    }
}

/// KEYS and ARGV of a script call.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    pub(super) keys: Vec<String>,
    /// Numbers for the script, as little-endian doubles: the first of ARGV.
    pub(super) plan: Vec<u8>,
    pub(super) texts: Vec<String>,
}

impl Arguments {
    /// All keys in Redis that may hold data of `key`, and the expiry settings: for `lua/load_any.lua`.
    pub(super) fn of_key(key: &Key, names: &Names, expiry: Expiry) -> Self {
        let mut arguments = Arguments { keys: names.counted(key).into(), ..Arguments::default() };
        arguments.numbers(&[expiry.min.get(), expiry.buffer.get()]);
        arguments
    }

    /// Adds a key and returns its index in `KEYS`.
    pub(super) fn key(&mut self, name: String) -> u64 {
        self.keys.push(name);
        self.keys.len() as u64
    }

    /// Adds a text and returns its index in `ARGV`, of which the plan is the first.
    pub(super) fn text(&mut self, text: String) -> u64 {
        self.texts.push(text);
        self.texts.len() as u64 + 1
    }

    /// Appends numbers to the plan. Every number is below 2^53, so the conversion to doubles is exact.
    pub(super) fn numbers(&mut self, numbers: &[u64]) {
        for &number in numbers {
            self.plan.extend_from_slice(&(number as f64).to_le_bytes());
        }
    }
}

/// First lines of a script on Redis 6.2, which lets a script write anything once it has written something, also when
/// its memory is full. So the script first makes a write that changes nothing, and ends if Redis denies it.
const PROBE: &str = "\
local probe = redis.pcall('ZADD', KEYS[1], 'XX', '0', 'probe')
if type(probe) == 'table' and probe.err and string.find(probe.err, 'OOM', 1, true) then return probe end
";

/// One script in two forms: with the shebang of Redis 7, and without it.
pub(super) struct Prepared {
    /// With the shebang. Redis 7 then denies the whole script when its memory is full, before anything is written.
    strict: Script,
    plain: Script,
    text: String,
    when: When,
}

/// Policy for a script when the memory of Redis is full.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// The script does not run.
    Room,
    /// The script runs: it takes no more memory than it finds.
    Always,
}

impl Prepared {
    fn new(text: String, when: When) -> Self {
        let (strict, plain) = (Script::new(&when.strict(&text)), Script::new(&when.plain(&text)));
        Prepared { strict, plain, text, when }
    }

    pub(super) fn by_digest(&self, plain: bool, arguments: &Arguments) -> Cmd {
        let digest = if plain { self.plain.get_hash() } else { self.strict.get_hash() };
        command("EVALSHA", digest, arguments)
    }

    pub(super) fn by_text(&self, plain: bool, arguments: &Arguments) -> Cmd {
        let text = if plain { self.when.plain(&self.text) } else { self.when.strict(&self.text) };
        command("EVAL", &text, arguments)
    }
}

/// The scripts of one store.
pub(super) struct Scripts {
    admit: [OnceLock<Prepared>; 64],
    settle: OnceLock<Prepared>,
    heal: OnceLock<Prepared>,
    audit: OnceLock<Prepared>,
    clean: OnceLock<Prepared>,
}

impl Default for Scripts {
    fn default() -> Self {
        Scripts {
            admit: std::array::from_fn(|_| OnceLock::new()),
            settle: OnceLock::new(),
            heal: OnceLock::new(),
            audit: OnceLock::new(),
            clean: OnceLock::new(),
        }
    }
}

impl Scripts {
    pub(super) fn admit(&self, parts: Parts) -> &Prepared {
        self.admit[usize::from(parts.0)].get_or_init(|| Prepared::new(parts.text() + ADMIT, When::Room))
    }

    pub(super) fn settle(&self) -> &Prepared {
        self.settle.get_or_init(|| Prepared::new(Parts::ALL.text() + QUOTA_TAG + SETTLE, When::Room))
    }

    pub(super) fn heal(&self) -> &Prepared {
        self.heal.get_or_init(|| Prepared::new(Parts::ALL.text() + RESTORE, When::Room))
    }

    pub(super) fn audit(&self) -> &Prepared {
        self.audit.get_or_init(|| Prepared::new(Parts::ALL.text() + QUOTA_TAG + LOAD_ANY + AUDIT, When::Always))
    }

    pub(super) fn clean(&self) -> &Prepared {
        self.clean.get_or_init(|| Prepared::new(Parts::ALL.text() + QUOTA_TAG + LOAD_ANY + GC, When::Always))
    }
}

impl When {
    fn strict(self, text: &str) -> String {
        let flags = if self == When::Always { " flags=allow-oom" } else { "" };
        format!("#!lua{flags}\n{text}")
    }

    fn plain(self, text: &str) -> String {
        let probe = if self == When::Always { "" } else { PROBE };
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
