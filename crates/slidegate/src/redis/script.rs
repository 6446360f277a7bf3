//! The scripts: put together from parts, called by their digest, loaded where they are missing.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::{Cmd, RedisError, Script, Value};

use super::connection::Connections;
use super::layout::Kind;
use crate::{Algorithm, Error, Quota};

const HEAD: &str = include_str!("lua/head.lua");
const QUICK_ZSET: &str = include_str!("lua/quick_zset.lua");
const QUICK_PACKED: &str = include_str!("lua/quick_packed.lua");
const COMMON: &str = include_str!("lua/common.lua");
const NOTES: &str = include_str!("lua/notes.lua");
const ZSET: &str = include_str!("lua/zset.lua");
const PACKED: &str = include_str!("lua/packed.lua");
const COUNTERS: &str = include_str!("lua/counters.lua");
const ADMIT: &str = include_str!("lua/admit.lua");
const SETTLE: &str = include_str!("lua/settle.lua");

/// Which parts a call needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts(u8);

impl Parts {
    const ALL: Parts = Parts(0b1111);
    const NOTES: Parts = Parts(0b1000);
    const QUICK: Parts = Parts(0b1_0000);

    pub(super) fn add_kind(&mut self, kind: Kind) {
        self.0 |= match kind {
            Kind::Zset => 1,
            Kind::Packed => 2,
            Kind::Fixed | Kind::Bucket => 4,
        };
    }

    pub(super) fn add_notes(&mut self) {
        self.0 |= Parts::NOTES.0;
    }

    /// One run of asks that are alike, which has a way of its own.
    pub(super) fn add_quick(&mut self, kind: Kind, quota: &Quota) {
        if kind == Kind::Packed || (kind == Kind::Zset && quota.algorithm() == Algorithm::SlidingWindow) {
            self.0 |= Parts::QUICK.0;
        }
    }

    fn has(self, bits: u8) -> bool {
        self.0 & bits == bits
    }

    fn text(self) -> String {
        let parts = [
            (true, HEAD),
            (self.has(Parts::QUICK.0 | 1), QUICK_ZSET),
            (self.has(Parts::QUICK.0 | 2), QUICK_PACKED),
            (true, COMMON),
            (self.has(1), ZSET),
            (self.has(2), PACKED),
            (self.has(4), COUNTERS),
            (self.has(Parts::NOTES.0), NOTES),
        ];
        parts.iter().filter(|(needed, _)| *needed).map(|(_, text)| *text).collect()
    }
}

/// What a call brings.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    pub(super) keys: Vec<String>,
    /// Little-endian doubles.
    pub(super) plan: Vec<u8>,
    pub(super) texts: Vec<String>,
}

impl Arguments {
    /// The number of a text in `ARGV`, of which the plan is the first.
    pub(super) fn text(&mut self, text: String) -> u64 {
        self.texts.push(text);
        self.texts.len() as u64 + 1
    }

    /// Every number is below 2^53, so nothing is lost on the way.
    pub(super) fn numbers(&mut self, numbers: &[u64]) {
        for &number in numbers {
            self.plan.extend_from_slice(&(number as f64).to_le_bytes());
        }
    }
}

/// Redis 6.2 lets a script write whatever it likes once it has written anything, also when its memory is full.
/// So before all else something is written that changes nothing, and is refused if so.
const PROBE: &str = "\
local probe = redis.pcall('ZADD', KEYS[1], 'XX', '0', 'probe')
if type(probe) == 'table' and probe.err and string.find(probe.err, 'OOM', 1, true) then return probe end
";

/// One text, as servers with and without the shebang take it.
struct Variants {
    /// With it Redis 7 refuses the whole script when its memory is full, before anything is written.
    strict: Script,
    plain: Script,
}

impl Variants {
    fn new(text: &str) -> Self {
        Variants { strict: Script::new(&strict(text)), plain: Script::new(&plain(text)) }
    }
}

/// The scripts of one store.
#[derive(Default)]
pub(super) struct Scripts {
    admit: [OnceLock<(Variants, String)>; 32],
    settle: OnceLock<(Variants, String)>,
    /// The server takes no shebang: Redis 6.2.
    plain: AtomicBool,
}

impl Scripts {
    pub(super) async fn admit(
        &self,
        connections: &Connections,
        parts: Parts,
        arguments: &Arguments,
    ) -> Result<Value, Error> {
        let script = self.admit[usize::from(parts.0)].get_or_init(|| prepared(parts.text() + ADMIT));
        self.call(connections, script, arguments).await
    }

    pub(super) async fn settle(
        &self,
        connections: &Connections,
        arguments: &Arguments,
    ) -> Result<Value, Error> {
        let script = self.settle.get_or_init(|| prepared(Parts::ALL.text() + SETTLE));
        self.call(connections, script, arguments).await
    }

    /// By digest; and where the server does not know it, by its text, on the same connection.
    async fn call(
        &self,
        connections: &Connections,
        (variants, text): &(Variants, String),
        arguments: &Arguments,
    ) -> Result<Value, Error> {
        let mut connection = connections.get().await?;
        loop {
            let plain = self.plain.load(Ordering::Relaxed);
            let digest = if plain { variants.plain.get_hash() } else { variants.strict.get_hash() };
            let answer = connection.send(&command("EVALSHA", digest, arguments)).await;
            let Err(error) = answer else { return answer.map_err(|error| connection.explain(error)) };
            if !is_noscript(&error) {
                return Err(connection.explain(error));
            }
            let text = if plain { self::plain(text) } else { strict(text) };
            match connection.send(&command("EVAL", &text, arguments)).await {
                Err(error) if !plain && takes_no_shebang(&error) => {
                    self.plain.store(true, Ordering::Relaxed);
                }
                answer => return answer.map_err(|error| connection.explain(error)),
            }
        }
    }
}

fn strict(text: &str) -> String {
    format!("#!lua\n{text}")
}

fn plain(text: &str) -> String {
    format!("{PROBE}{text}")
}

fn prepared(text: String) -> (Variants, String) {
    (Variants::new(&text), text)
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

fn is_noscript(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript)
}

fn takes_no_shebang(error: &RedisError) -> bool {
    error.to_string().contains("compiling script")
}
