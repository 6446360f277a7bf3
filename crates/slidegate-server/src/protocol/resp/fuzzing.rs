//! See [`crate::fuzzing`].

use super::CommandName;
use super::parser::{self, CommandLimits};
use super::session::SessionCommand;

/// One answer a command, and one to what is none; nothing after that, or after the client has left.
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
            if CommandName::parse(first) == Some(CommandName::Session(SessionCommand::Quit)) {
                return expected_replies;
            }
        }
    }
}
