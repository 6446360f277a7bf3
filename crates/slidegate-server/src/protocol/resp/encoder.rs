//! What is said to a client, in the version of the protocol that it speaks.

use std::fmt::{self, Write};

use slidegate::Error;

/// The longest text of an error, in bytes.
const MAX_ERROR: usize = 512;

/// Answers in their order, not yet sent.
#[derive(Default)]
pub(super) struct ReplyBuffer {
    pub(super) bytes: Vec<u8>,
    /// Version 3 of the protocol, which has maps and a null of its own.
    pub(super) version_3: bool,
}

impl ReplyBuffer {
    pub(super) fn simple(&mut self, text: &str) {
        self.put(&[b"+", text.as_bytes(), b"\r\n"]);
    }

    pub(super) fn integer(&mut self, n: i64) {
        self.put(&[b":", itoa::Buffer::new().format(n).as_bytes(), b"\r\n"]);
    }

    pub(super) fn bulk(&mut self, text: &[u8]) {
        self.put(&[b"$", itoa::Buffer::new().format(text.len()).as_bytes(), b"\r\n", text, b"\r\n"]);
    }

    pub(super) fn nil(&mut self) {
        self.put(&[if self.version_3 { b"_\r\n" } else { b"$-1\r\n" }]);
    }

    /// So many answers follow, which are one.
    pub(super) fn array(&mut self, length: usize) {
        self.put(&[b"*", itoa::Buffer::new().format(length).as_bytes(), b"\r\n"]);
    }

    /// So many names with their values follow.
    pub(super) fn map(&mut self, length: usize) {
        if self.version_3 {
            self.put(&[b"%", itoa::Buffer::new().format(length).as_bytes(), b"\r\n"]);
        } else {
            self.array(2 * length);
        }
    }

    /// A code that programs know, and what people should.
    pub(super) fn error(&mut self, code: &str, message: impl fmt::Display) {
        self.put(&[b"-", code.as_bytes(), b" "]);
        // It only fails when the text is too long.
        let _ = write!(Printable { bytes: &mut self.bytes, left: MAX_ERROR }, "{message}");
        self.put(&[b"\r\n"]);
    }

    /// What the library has to say against a request.
    pub(super) fn failure(&mut self, error: &Error) {
        self.error(if error.is_unavailable() { "UNAVAILABLE" } else { "ERR" }, error);
    }

    fn put(&mut self, parts: &[&[u8]]) {
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
    }
}

/// Text on one line, whatever a client has put into it.
struct Printable<'b> {
    bytes: &'b mut Vec<u8>,
    left: usize,
}

impl Write for Printable<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            let byte = u8::try_from(c).ok().filter(|b| b.is_ascii_graphic() || *b == b' ');
            self.bytes.push(byte.unwrap_or(b'?'));
        }
        Ok(())
    }
}

/// The start of a word from a client, for a person to read.
pub(super) struct Excerpt<'a>(pub(super) &'a [u8]);

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Excerpt(word) = self;
        let start = &word[..word.len().min(32)];
        for byte in start {
            f.write_char(if byte.is_ascii() { char::from(*byte) } else { '?' })?;
        }
        if start.len() < word.len() { f.write_str("...") } else { Ok(()) }
    }
}
