//! See [`crate::fuzzing`].

use super::Name;
use super::parser::{self, Caps};
use super::session::Plain;

/// One answer a command, and one to what is none; nothing after that, or after the client has left.
pub(crate) fn due(mut bytes: &[u8]) -> usize {
    let (mut words, mut due) = (Vec::new(), 0);
    loop {
        match parser::next(bytes, Caps::KNOWN, &mut words) {
            Ok(Some(length)) => bytes = &bytes[length..],
            Ok(None) => return due,
            Err(_) => return due + 1,
        }
        if let Some(first) = words.first() {
            due += 1;
            if Name::of(first) == Some(Name::Plain(Plain::Quit)) {
                return due;
            }
        }
    }
}
