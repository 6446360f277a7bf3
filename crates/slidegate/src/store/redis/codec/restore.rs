//! Encodes admissions that a node writes back, and decodes the result for each line.

use redis::Value;

use super::admit::{add_keys, line_of};
use super::record::{EntryCount, Numbers, ReplyHead, RestoreEntry, RestoreHead, RestoredReply};
use crate::store::redis::Expiry;
use crate::store::redis::layout::{self, Kind, Names};
use crate::store::redis::restore::{RestoreLine, Restored, Writer};
use crate::store::redis::script::Arguments;
use crate::{Check, Error};

/// Arguments of `lua/restore.lua` for admissions of a node.
pub(in crate::store::redis) fn restore_plan(
    writer: Writer<'_>,
    lines: &[&RestoreLine],
    names: &Names,
    expiry: Expiry,
) -> Arguments {
    let mut arguments = Arguments::default();
    let node = arguments.add_text(writer.node.to_owned());
    // The first eight digits are enough to distinguish run ids.
    let run = arguments.add_text(writer.run_id.chars().take(8).collect());
    let batch_id = arguments.add_text(batch_id(writer, lines));
    let Writer { lost, since, nodes, .. } = writer;
    let line_count = lines.len() as u64;
    arguments.add(RestoreHead { node, run, batch: batch_id, lost, since, nodes, line_count });
    for RestoreLine { key, quota, encoding, entries } in lines {
        let check = Check { encoding: *encoding, ..Check::new(key.clone(), *quota, 0) };
        let kind = Kind::of(&check);
        let keys = add_keys(&mut arguments, names, &check.key, kind.parts(true));
        let quota_tag = arguments.add_text(layout::quota_tag(quota));
        arguments.add(line_of(keys, kind, quota_tag, quota, expiry));
        arguments.add(EntryCount { entry_count: entries.len() as u64 });
        for &(at, cost, admitted) in entries {
            arguments.add(RestoreEntry { at, cost, admitted });
        }
    }
    arguments
}

/// Id of a batch, the same for the same lines, so that the script recognizes a batch that is sent again.
fn batch_id(writer: Writer<'_>, lines: &[&RestoreLine]) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    writer.run_id.hash(&mut hasher);
    for line in lines {
        (line.key.as_str(), &line.entries).hash(&mut hasher);
    }
    format!("{:x}", hasher.finish())
}

/// Decodes the result for each line.
pub(in crate::store::redis) fn decode_restored(
    reply: Value,
    expected: usize,
) -> Result<Vec<Restored>, Error> {
    let mut numbers = Numbers::new(reply)?;
    let ReplyHead { .. } = numbers.take()?;
    let restored = (0..expected).map(|_| {
        let RestoredReply { added, used } = numbers.take()?;
        Ok(Restored { added, used })
    });
    let restored = restored.collect::<Result<_, Error>>()?;
    numbers.finish()?;
    Ok(restored)
}
