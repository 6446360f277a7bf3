//! Encodes settlements, and decodes their outcomes.

use redis::Value;

use super::record::{
    ExpirySettings, Numbers, ReplyHead, SettleHead, SettledCode, SettledReply, SettlementLine,
};
use crate::store::redis::Expiry;
use crate::store::redis::layout::Names;
use crate::store::redis::script::Arguments;
use crate::{Correction, Entry, Error, Micros, Settled, Settlement};

/// Arguments of the script that settles.
pub(in crate::store::redis) fn settlement_plan(
    settlements: &[Settlement],
    names: &Names,
    expiry: Expiry,
) -> Arguments {
    let mut arguments = Arguments::default();
    let channel = arguments.add_text(names.freed_channel());
    arguments.add(ExpirySettings { min_expire: expiry.min, buffer: expiry.buffer });
    arguments.add(SettleHead { channel, settlement_count: settlements.len() as u64 });
    for settlement in settlements {
        let [key, notes, log, log_notes] = names.counted(&settlement.key).map(|name| arguments.add_key(name));
        let Entry { at, seq, cost: from } = settlement.entry;
        let (to, extends) = match settlement.correction {
            Correction::Cost(permits) => (permits, false),
            Correction::Extend => (from, true),
        };
        let seq = arguments.add_text(seq.to_string());
        let name = arguments.add_text(settlement.key.as_str().to_owned());
        arguments.add(SettlementLine { key, notes, log, log_notes, at, from, to, extends, seq, name });
    }
    arguments
}

/// Decodes the instant and the outcomes of settlements; the outcome is none if the settlement must be sent again.
pub(in crate::store::redis) fn decode_settled(
    reply: Value,
    expected: usize,
) -> Result<(Micros, Vec<Option<Settled>>), Error> {
    let mut numbers = Numbers::new(reply)?;
    let ReplyHead { at } = numbers.take()?;
    let mut settled = Vec::with_capacity(expected);
    for _ in 0..expected {
        let SettledReply { outcome } = numbers.take()?;
        settled.push(match outcome {
            SettledCode::Done => Some(Settled::Done),
            SettledCode::Already => Some(Settled::Already),
            SettledCode::Gone => Some(Settled::Gone),
            SettledCode::Unfinished => None,
        });
    }
    numbers.finish()?;
    Ok((at, settled))
}
