//! Encodes replies in the protocol version of the client.

use std::fmt::{self, Write};

use slidegate::{Decision, Error, Limiter, Store};

/// Maximum length of an error text, in bytes.
const MAX_ERROR: usize = 512;

/// Largest reservation buffer that a connection keeps, in bytes.
const MAX_KEPT_RESERVATION: usize = 1024;

/// Encoded replies in order, not yet sent.
#[derive(Default)]
pub(super) struct ReplyBuffer {
    pub(super) bytes: Vec<u8>,
    /// True for version 3 of the protocol, which has maps and its own null.
    pub(super) version_3: bool,
    /// Text of the last reservation. Its memory is reused for the next reservation.
    reservation: String,
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

    /// Writes the signed reservation of a decision, or nil if nothing was charged.
    pub(super) fn reservation<S: Store>(&mut self, limiter: &Limiter<S>, decision: &Decision) {
        let mut text = std::mem::take(&mut self.reservation);
        match limiter.sign_decision_into(decision, &mut text) {
            true => self.bulk(text.as_bytes()),
            false => self.nil(),
        }
        if text.capacity() <= MAX_KEPT_RESERVATION {
            self.reservation = text;
        }
    }

    pub(super) fn nil(&mut self) {
        self.put(&[if self.version_3 { b"_\r\n" } else { b"$-1\r\n" }]);
    }

    /// Starts an array of `length` replies.
    pub(super) fn array(&mut self, length: usize) {
        self.put(&[b"*", itoa::Buffer::new().format(length).as_bytes(), b"\r\n"]);
    }

    /// Starts a map of `length` names with their values; in version 2 this is a flat array.
    pub(super) fn map(&mut self, length: usize) {
        if self.version_3 {
            self.put(&[b"%", itoa::Buffer::new().format(length).as_bytes(), b"\r\n"]);
        } else {
            self.array(2 * length);
        }
    }

    /// Writes an error: a code for programs and a message for people.
    pub(super) fn error(&mut self, code: &str, message: impl fmt::Display) {
        self.put(&[b"-", code.as_bytes(), b" "]);
        // Writing fails only if the text is too long; the reply then contains the start of the text.
        let _ = write!(Printable { bytes: &mut self.bytes, left: MAX_ERROR }, "{message}");
        self.put(&[b"\r\n"]);
    }

    /// Writes an error of the library.
    pub(super) fn failure(&mut self, error: &Error) {
        self.error(if error.is_unavailable() { "UNAVAILABLE" } else { "ERR" }, error);
    }

    fn put(&mut self, parts: &[&[u8]]) {
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
    }
}

/// Writer that keeps a text on one line and within a maximum length, whatever bytes a client sent.
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

/// Displays the start of a word that a client sent.
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
