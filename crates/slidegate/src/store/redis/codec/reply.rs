//! Reader for the replies of the scripts.

use redis::Value;

use crate::quota::MAX_TOTAL;
use crate::store::redis::bad_reply;
use crate::{Error, Micros};

/// Reply of whole numbers, none below zero, as little-endian doubles.
pub(crate) struct Numbers {
    bytes: Vec<u8>,
    read: usize,
}

impl Numbers {
    /// Returns true for the reply of a script that did not finish: more entries have expired than one call may sum
    /// up, and nothing was decided.
    pub(crate) fn is_unfinished(reply: &Value) -> bool {
        *reply == Value::Int(1)
    }

    pub(crate) fn new(reply: Value) -> Result<Self, Error> {
        match reply {
            Value::BulkString(bytes) => Ok(Numbers { bytes, read: 0 }),
            _ => Err(bad_reply()),
        }
    }

    /// Returns true if the reply is the short form: all of one run was granted, at this instant and as its first
    /// admissions. See `lua/fast_zset.lua`.
    pub(crate) fn is_short(&self) -> bool {
        self.bytes.len() == 4 * size_of::<f64>()
    }

    /// Reads the reply to a run of this many requests.
    pub(crate) fn take_run(&mut self, at: Micros, times: u64) -> Result<[u64; 7], Error> {
        let reply = if self.is_short() {
            let [granted, used, reset_after] = self.take()?;
            [granted, used, 0, reset_after, at.get(), 0, 0]
        } else {
            self.take()?
        };
        if reply[0] > times { Err(bad_reply()) } else { Ok(reply) }
    }

    /// Returns true if the next number has a fraction of a half, which marks a fully granted run: see
    /// `lua/fast_zset.lua`.
    pub(crate) fn is_fully_granted(&self) -> bool {
        let next = self.bytes.get(self.read..).and_then(|rest| rest.first_chunk());
        next.is_some_and(|next| f64::from_le_bytes(*next).fract() == 0.5)
    }

    pub(crate) fn next(&mut self) -> Result<u64, Error> {
        let number = self.bytes.get(self.read..).and_then(|rest| rest.first_chunk()).ok_or_else(bad_reply)?;
        self.read += size_of::<f64>();
        let number = f64::from_le_bytes(*number);
        if (0.0..=MAX_TOTAL as f64).contains(&number) { Ok(number as u64) } else { Err(bad_reply()) }
    }

    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u64; N], Error> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = self.next()?;
        }
        Ok(numbers)
    }

    pub(crate) fn finish(self) -> Result<(), Error> {
        if self.read == self.bytes.len() { Ok(()) } else { Err(bad_reply()) }
    }
}
