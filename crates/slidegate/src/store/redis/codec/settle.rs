//! Encodes settlements, and decodes their outcomes.

use redis::Value;

use super::reply::Numbers;
use crate::store::redis::layout::Names;
use crate::store::redis::script::Arguments;
use crate::store::redis::{Expiry, bad_reply};
use crate::{Correction, Error, Micros, Settled, Settlement};

/// Stands for a cost in `lua/settle.lua` and means extend; no cost is as large.
const EXTEND: u64 = 1 << 52;

/// Arguments of the script that settles.
pub(in crate::store::redis) fn settlement_plan(
    settlements: &[Settlement],
    names: &Names,
    expiry: Expiry,
) -> Arguments {
    let mut arguments = Arguments::default();
    let channel = arguments.add_text(names.freed_channel());
    arguments.add_numbers(&[expiry.min.get(), expiry.buffer.get(), channel, settlements.len() as u64]);
    for Settlement { key, entry, correction } in settlements {
        let keys = names.counted(key).map(|name| arguments.add_key(name));
        let seq = arguments.add_text(entry.seq.to_string());
        arguments.add_numbers(&keys);
        let name = arguments.add_text(key.as_str().to_owned());
        let permits = match correction {
            Correction::Cost(permits) => *permits,
            Correction::Extend => EXTEND,
        };
        arguments.add_numbers(&[entry.at.get(), entry.cost, permits, seq, name]);
    }
    arguments
}

/// Decodes the instant and the outcomes of settlements; none for those to send again.
pub(in crate::store::redis) fn decode_settled(
    reply: Value,
    expected: usize,
) -> Result<(Micros, Vec<Option<Settled>>), Error> {
    let mut numbers = Numbers::new(reply)?;
    let at = Micros::new(numbers.next()?);
    let mut settled = Vec::with_capacity(expected);
    for _ in 0..expected {
        settled.push(match numbers.next()? {
            0 => Some(Settled::Done),
            1 => Some(Settled::Already),
            2 => Some(Settled::Gone),
            3 => None,
            _ => return Err(bad_reply()),
        });
    }
    numbers.finish()?;
    Ok((at, settled))
}
