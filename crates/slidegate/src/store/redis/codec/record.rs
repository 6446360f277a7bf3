//! Records in script arguments, script replies and packed logs. Each record is declared here, once, and both Rust and
//! Lua use its names: see [`lua`](super::lua).
//!
//! A record is a sequence of little-endian doubles. Every number is a whole number that a double holds exactly.

use redis::Value;

use crate::quota::MAX_TOTAL;
use crate::store::redis::bad_reply;
use crate::{Error, Micros};

/// Type of a number in a record.
pub(in crate::store::redis) trait Number: Sized {
    fn encode(self) -> f64;

    /// Returns none for a number that the type cannot represent.
    fn decode(number: f64) -> Option<Self>;
}

/// Sequence of numbers with names.
pub(in crate::store::redis) trait Record: Sized {
    const FIELDS: &'static [&'static str];
    /// Length in bytes.
    const SIZE: usize = Self::FIELDS.len() * size_of::<f64>();

    fn write(self, bytes: &mut Vec<u8>);

    fn read(numbers: &mut Numbers) -> Result<Self, Error>;
}

/// Reply of records, as little-endian doubles.
pub(in crate::store::redis) struct Numbers {
    bytes: Vec<u8>,
    read: usize,
}

impl Numbers {
    /// Returns true for the reply of a script that did not finish: more entries have expired than one call may sum
    /// up, and nothing was decided.
    pub(in crate::store::redis) fn is_unfinished(reply: &Value) -> bool {
        *reply == Value::Int(1)
    }

    pub(in crate::store::redis) fn new(reply: Value) -> Result<Self, Error> {
        match reply {
            Value::BulkString(bytes) => Ok(Numbers::from(bytes)),
            _ => Err(bad_reply()),
        }
    }

    fn next<N: Number>(&mut self) -> Result<N, Error> {
        let number = self.bytes.get(self.read..).and_then(|rest| rest.first_chunk()).ok_or_else(bad_reply)?;
        self.read += size_of::<f64>();
        N::decode(f64::from_le_bytes(*number)).ok_or_else(bad_reply)
    }

    pub(in crate::store::redis) fn take<R: Record>(&mut self) -> Result<R, Error> {
        R::read(self)
    }

    pub(in crate::store::redis) fn finish(self) -> Result<(), Error> {
        if self.read == self.bytes.len() { Ok(()) } else { Err(bad_reply()) }
    }
}

impl From<Vec<u8>> for Numbers {
    fn from(bytes: Vec<u8>) -> Self {
        Numbers { bytes, read: 0 }
    }
}

impl Number for u64 {
    fn encode(self) -> f64 {
        self as f64
    }

    fn decode(number: f64) -> Option<Self> {
        (0.0..=MAX_TOTAL as f64).contains(&number).then_some(number as u64)
    }
}

impl Number for Micros {
    fn encode(self) -> f64 {
        self.get().encode()
    }

    fn decode(number: f64) -> Option<Self> {
        u64::decode(number).map(Micros::new)
    }
}

impl Number for bool {
    fn encode(self) -> f64 {
        u64::from(self).encode()
    }

    fn decode(number: f64) -> Option<Self> {
        [false, true].into_iter().find(|flag| flag.encode() == number)
    }
}

macro_rules! records {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub(in crate::store::redis) struct $name {
                $(pub(in crate::store::redis) $field: $type),*
            }

            impl Record for $name {
                const FIELDS: &'static [&'static str] = &[$(stringify!($field)),*];

                fn write(self, bytes: &mut Vec<u8>) {
                    $(bytes.extend_from_slice(&self.$field.encode().to_le_bytes());)*
                }

                fn read(numbers: &mut Numbers) -> Result<Self, Error> {
                    Ok($name { $($field: numbers.next()?),* })
                }
            }
        )*

        /// Name and fields of every record.
        pub(super) const RECORDS: &[(&str, &[&str])] = &[$((stringify!($name), $name::FIELDS)),*];
    };
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident { $($code:ident),* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub(in crate::store::redis) enum $name { $($code),* }

            impl Number for $name {
                fn encode(self) -> f64 {
                    self as u64 as f64
                }

                fn decode(number: f64) -> Option<Self> {
                    [$($name::$code),*].into_iter().find(|code| code.encode() == number)
                }
            }
        )*

        /// Name and values of every code; a value is encoded as its index.
        pub(super) const CODES: &[(&str, &[&str])] =
            &[$((stringify!($name), &[$(stringify!($code)),*])),*];
    };
}

codes! {
    /// Form of a request in a plan: [`Run`] follows, or [`Request`] and its checks.
    RequestForm { Run, Checks }

    /// Form of the reply to a run: [`RunReply`] follows, or [`GrantedRun`].
    RunForm { Full, Granted }

    /// Outcome of a check.
    OutcomeCode { Charged, Fits, Denied, Impossible }

    /// Outcome of a settlement. An unfinished settlement is sent again: its key has more expired entries than one call
    /// may sum up.
    SettledCode { Done, Already, Gone, Unfinished }

    /// Form of the reply to an audit of one key in Redis. Nothing follows `Missing`, which is also the reply for a key
    /// that is too large. [`AuditReply`] follows `Counted`, and [`ForeignReply`] follows `Foreign`.
    AuditForm { Missing, Counted, Foreign }

    /// Work of a garbage collection that is left for another call: none, entries to trim, or also keys to look at.
    GcRest { Done, Entries, Keys }
}

// Keys are indexes in KEYS; texts are indexes in ARGV: quota tag, digits, channel, seq, name, node, run and batch. The
// index 0 means that there is no key or text.
records! {
    /// Start of a plan for `lua/admit.lua`. The lines follow, then the warm-ups, then the requests.
    Batch { line_count: u64, warm_up_count: u64, request_count: u64 }

    /// A key and the quota with which it is evaluated. `notes` is 0 unless the notes are needed and in a separate key.
    /// `slice` is the length of a time slice. A microsecond adds `rate` units to a bucket, and a permit is `per` units.
    /// Fields that do not apply to the algorithm are 0.
    Line {
        key: u64, notes: u64, kind: u64, quota_tag: u64, attempts: bool, slice: Micros, rate: u64, per: u64,
        horizon: Micros, window: Micros, capacity: u64, period: Micros, ttl: Micros, modulus: u64,
    }

    /// Warm-up of a line; `start` is a share in ten-thousandths.
    WarmUpLine { line: u64, key: u64, start: u64, over: Micros, idle: Micros, steps: bool }

    RequestHead { form: RequestForm }

    /// Equal requests of one check. `same_quota` is set if the run before has the same quota and each run has its own
    /// line.
    Run { times: u64, cost: u64, same_quota: bool, line: u64 }

    /// A request; its checks follow.
    Request { is_peek: bool, check_count: u64, has_id: bool }

    /// A check of a request, with the digits of the request's id.
    RequestCheck { line: u64, cost: u64, enforced: bool, digits: u64 }

    /// Start of a reply: the instant of the call.
    ReplyHead { at: Micros }

    RunHead { form: RunForm }

    /// Reply to a run if every request is granted, at the instant of the call, and no admission of that instant came
    /// before the run.
    GrantedRun { used: u64 }

    /// Reply to a run; `lower_bound` is true if the wait is a lower bound.
    RunReply {
        granted: u64, used: u64, retry_after: Micros, reset_after: Micros, recorded_at: Micros, first_seq: u64,
        lower_bound: bool,
    }

    CheckReply {
        outcome: OutcomeCode, used: u64, retry_after: Micros, reset_after: Micros, recorded_at: Micros, seq: u64,
        lower_bound: bool,
    }

    /// Current limit of a line that warms up.
    WarmLimit { limit: u64 }

    /// Start of the plans of calls that take the quota from the stored quota tag.
    ExpirySettings { min_expire: Micros, buffer: Micros }

    /// Plan for `lua/settle.lua`, after the expiry settings; the settlements follow.
    SettleHead { channel: u64, settlement_count: u64 }

    /// A settlement from the cost that was charged to the actual cost, or an extension of a permit, which keeps its cost.
    SettlementLine {
        key: u64, notes: u64, log: u64, log_notes: u64, at: Micros, from: u64, to: u64, extends: bool, seq: u64, name: u64,
    }

    SettledReply { outcome: SettledCode }

    /// Start of a plan for `lua/restore.lua`: whether the server may have lost its data, the instant since which it was
    /// unreachable, and the number of nodes that write back. Each line follows, with its entries.
    RestoreHead { node: u64, run: u64, batch: u64, lost: bool, since: Micros, nodes: u64, line_count: u64 }

    EntryCount { entry_count: u64 }

    /// An admission that a node writes back; `admitted` if the server had admitted it.
    RestoreEntry { at: Micros, cost: u64, admitted: bool }

    RestoredReply { added: u64, used: u64 }

    /// Plan for `lua/audit.lua`, after the expiry settings: whether to repair, and the maximum number of entries to
    /// read.
    AuditHead { repair: bool, most: u64 }

    AuditReplyHead { form: AuditForm }

    /// Time until a key expires; 0 if it does not.
    ForeignReply { expires: Micros }

    /// Reply to an audit; `expires` as in [`ForeignReply`], and `needed` is the time that the key must be kept.
    AuditReply {
        expires: Micros, at: Micros, counted: u64, stored: u64, total_is_wrong: bool, costs_are_wrong: bool,
        newest_stored: Micros, newest_counted: Micros, oldest_stored: Micros, oldest_counted: Micros, needed: Micros,
        repaired: bool,
    }

    /// Plan for `lua/gc.lua`, after the expiry settings: bit mask (1, 2, 4, 8) of the KEYS to report if foreign.
    GcHead { reported: u64 }

    GcReply { trimmed: u64, dropped: u64, expiries: u64, freed: u64, foreign: u64, rest: GcRest }

    /// Start of a packed log in Redis, after its mark: bytes per record, capacity of the ring in records, index of the
    /// first record in the ring, number of records in the ring, window, end of the front. See `lua/packed.lua`.
    LogShape { width: u64, room: u64, head: u64, size: u64, log_window: Micros, to: u64 }

    /// Fields of a packed log that every admission changes, after the [`LogShape`]: permits in use, newest instant that
    /// counts, last instant, instant of the oldest record, number of the next admission at the newest record's instant,
    /// start of the front, number of recent records.
    LogCounts { used: u64, newest: Micros, last: Micros, oldest: Micros, next_ordinal: u64, from: u64, recent: u64 }
}
