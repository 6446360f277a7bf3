//! Reader for the replies of the scripts.

use redis::Value;

use super::record::{Number, Record};
use crate::Error;
use crate::store::redis::bad_reply;

/// Reply of records, as little-endian doubles.
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
            Value::BulkString(bytes) => Ok(Numbers::from(bytes)),
            _ => Err(bad_reply()),
        }
    }

    pub(super) fn next<N: Number>(&mut self) -> Result<N, Error> {
        let number = self.bytes.get(self.read..).and_then(|rest| rest.first_chunk()).ok_or_else(bad_reply)?;
        self.read += size_of::<f64>();
        N::decode(f64::from_le_bytes(*number)).ok_or_else(bad_reply)
    }

    pub(in crate::store::redis) fn take<R: Record>(&mut self) -> Result<R, Error> {
        R::read(self)
    }

    pub(crate) fn finish(self) -> Result<(), Error> {
        if self.read == self.bytes.len() { Ok(()) } else { Err(bad_reply()) }
    }
}

impl From<Vec<u8>> for Numbers {
    fn from(bytes: Vec<u8>) -> Self {
        Numbers { bytes, read: 0 }
    }
}
