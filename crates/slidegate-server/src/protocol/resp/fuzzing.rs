//! Expected number of replies, for fuzzing; see [`crate::fuzzing`].

use super::CommandName;
use super::parser::{self, CommandLimits};

/// Returns how many replies the server must send for `bytes`: one per command and one for malformed input.
/// Nothing is answered after malformed input or after the client has quit.
pub(crate) fn expected_replies(mut bytes: &[u8]) -> usize {
    let (mut words, mut expected_replies) = (Vec::new(), 0);
    loop {
        match parser::next(bytes, CommandLimits::AUTHENTICATED, &mut words) {
            Ok(Some(length)) => bytes = &bytes[length..],
            Ok(None) => return expected_replies,
            Err(_) => return expected_replies + 1,
        }
        if let Some(first) = words.first() {
            expected_replies += 1;
            if CommandName::parse(first) == Some(CommandName::Quit) {
                return expected_replies;
            }
        }
    }
}
