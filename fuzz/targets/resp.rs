//! RESP input, split as the first byte says: answers are well-formed, one for each command, and the same for any split
//! of the input.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_fuzz::resp::answers;
use slidegate_fuzz::{bounded, cut};
use slidegate_server::fuzzing::{resp, resp_due};

fuzz_target!(|bytes: &[u8]| {
    let Some((whole, pieces)) = cut(bytes) else { return };
    // A decision is longer than the shortest command that requests it.
    let replies =
        |pieces: &[&[u8]], closed| answers(&bounded(whole.len(), 4 << 20, 256, || resp(pieces, closed)));
    let closed = whole.len() % 4 == 3;
    let all = replies(&[whole], closed);
    assert_eq!(replies(&pieces, closed), all);
    if !closed {
        assert_eq!(all.len(), resp_due(whole));
    }
});
