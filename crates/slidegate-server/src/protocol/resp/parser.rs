//! Parses commands: finds where a command ends, and splits it into words.
//!
//! A command is an array of bulk strings (`*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n`), or a line of plain words (`PING\r\n`). A
//! general decoder reads nested frames to any depth. This parser reads only commands and allocates nothing for
//! announced lengths. It starts again from the first byte of a command whenever more of it has arrived. That takes one
//! step per word, for words of any length.

use std::fmt;

use slidegate::bounds::MAX_ATTRIBUTES;

/// Maximum size of a command, in bytes.
const MAX_COMMAND: usize = 1 << 20;

/// Maximum length of a line of plain words, in bytes.
const MAX_LINE: usize = 16 << 10;

/// Maximum length of a `*` or `$` with its number and line end, in bytes.
const MAX_HEADER: usize = 16;

/// Maximum size of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandLimits {
    words: usize,
    /// Maximum length of each word, in bytes.
    word_bytes: usize,
}

impl CommandLimits {
    /// Limits of an authenticated client: a name and a value for each attribute, the command, and its
    /// options.
    pub(super) const AUTHENTICATED: CommandLimits =
        CommandLimits { words: 2 * MAX_ATTRIBUTES + 8, word_bytes: 64 << 10 };

    /// Limits of a client that has not authenticated yet, the same as in Redis.
    pub(super) const UNAUTHENTICATED: CommandLimits = CommandLimits { words: 10, word_bytes: 16 << 10 };
}

/// Malformed command. The bytes after it cannot be parsed either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProtocolError(&'static str);

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protocol error: {}", self.0)
    }
}

/// Parses the command at the start of `bytes` into `words`. Returns its length, or `None` if it is
/// incomplete.
///
/// An empty line and an empty array are commands without words, and get no reply.
pub(super) fn next<'a>(
    bytes: &'a [u8],
    limits: CommandLimits,
    words: &mut Vec<&'a [u8]>,
) -> Result<Option<usize>, ProtocolError> {
    words.clear();
    match bytes.first() {
        None => Ok(None),
        Some(b'*') => array(bytes, limits, words),
        Some(_) => line(bytes, limits, words),
    }
}

fn array<'a>(
    bytes: &'a [u8],
    limits: CommandLimits,
    words: &mut Vec<&'a [u8]>,
) -> Result<Option<usize>, ProtocolError> {
    let Some((count, mut at)) = length_header(bytes, 1, "invalid multibulk length")? else { return Ok(None) };
    // As in Redis, -1 is an empty array.
    let count = count.unwrap_or(0);
    if count > limits.words {
        return Err(ProtocolError("invalid multibulk length: too many arguments"));
    }
    for _ in 0..count {
        match bytes.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(_) => return Err(ProtocolError("expected '$': a command is an array of bulk strings")),
        }
        let Some((length, start)) = length_header(bytes, at + 1, "invalid bulk length")? else {
            return Ok(None);
        };
        let Some(length) = length.filter(|length| *length <= limits.word_bytes) else {
            return Err(ProtocolError("invalid bulk length"));
        };
        let end = start + length;
        at = end + 2;
        if at > MAX_COMMAND {
            return Err(ProtocolError("too big a command"));
        }
        match bytes.get(end..at) {
            None => return Ok(None),
            Some(b"\r\n") => words.push(&bytes[start..end]),
            Some(_) => return Err(ProtocolError("a bulk string is longer than its length")),
        }
    }
    Ok(Some(at))
}

/// Parses the number that starts at `at` and ends with the line. Returns the number (`None` for -1) and the
/// start of the next line.
#[inline]
fn length_header(
    bytes: &[u8],
    at: usize,
    error: &'static str,
) -> Result<Option<(Option<usize>, usize)>, ProtocolError> {
    let mut number = 0;
    for (i, byte) in bytes[at..].iter().enumerate().take(MAX_HEADER) {
        match byte {
            b'0'..=b'9' if i < 10 => number = number * 10 + usize::from(byte - b'0'),
            b'\r' if i > 0 => {
                return match bytes.get(at + i + 1) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some((Some(number), at + i + 2))),
                    Some(_) => Err(ProtocolError(error)),
                };
            }
            b'-' if i == 0 => {
                return match bytes.get(at..at + 4) {
                    Some(b"-1\r\n") => Ok(Some((None, at + 4))),
                    None if b"-1\r\n".starts_with(&bytes[at..]) => Ok(None),
                    _ => Err(ProtocolError(error)),
                };
            }
            _ => return Err(ProtocolError(error)),
        }
    }
    Ok(None)
}

fn line<'a>(
    bytes: &'a [u8],
    limits: CommandLimits,
    words: &mut Vec<&'a [u8]>,
) -> Result<Option<usize>, ProtocolError> {
    let searched = bytes.len().min(MAX_LINE);
    let Some(end) = bytes[..searched].iter().position(|b| *b == b'\n') else {
        return if searched < MAX_LINE { Ok(None) } else { Err(ProtocolError("too big inline request")) };
    };
    if bytes[..end].iter().any(|b| b"\"'".contains(b)) {
        return Err(ProtocolError("quotes are not supported in an inline command"));
    }
    for word in bytes[..end].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
        if words.len() == limits.words {
            return Err(ProtocolError("too many arguments"));
        }
        words.push(word);
    }
    // A web page could make a browser send commands in the body of a request, so HTTP requests are rejected.
    let http = |name: &[u8]| words.first().is_some_and(|word| word.eq_ignore_ascii_case(name));
    if http(b"POST") || http(b"Host:") {
        return Err(ProtocolError("received an HTTP request: this port serves the Redis protocol"));
    }
    Ok(Some(end + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redis_protocol::resp2::encode::encode_borrowed;
    use redis_protocol::resp2::types::BorrowedFrame;

    use super::*;

    /// Returns every command in `pieces`, fed one after the other, the error if there was one, and the number
    /// of remaining bytes.
    fn read(pieces: &[&[u8]]) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>, usize) {
        let (mut buffer, mut commands) = (Vec::new(), Vec::new());
        for piece in pieces {
            buffer.extend_from_slice(piece);
            let mut taken = 0;
            loop {
                let mut words = Vec::new();
                match next(&buffer[taken..], CommandLimits::AUTHENTICATED, &mut words) {
                    Ok(Some(length)) => {
                        commands.push(words.iter().map(|word| word.to_vec()).collect());
                        taken += length;
                    }
                    Ok(None) => break,
                    Err(error) => return (commands, Some(error), 0),
                }
            }
            buffer.drain(..taken);
        }
        (commands, None, buffer.len())
    }

    fn split_at_cuts<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        at.extend([0, bytes.len()]);
        at.sort_unstable();
        at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
    }

    /// Encodes commands with the library `redis_protocol`.
    fn encoded(commands: &[Vec<Vec<u8>>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for command in commands {
            let words: Vec<BorrowedFrame<'_>> =
                command.iter().map(|w| BorrowedFrame::BulkString(w)).collect();
            let frame = BorrowedFrame::Array(&words);
            let start = bytes.len();
            bytes.resize(start + frame.encode_len(false), 0);
            encode_borrowed(&mut bytes[start..], &frame, false).unwrap();
        }
        bytes
    }

    /// Generates bytes that begin like commands.
    fn noise() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just(b"*2\r\n".to_vec()),
            Just(b"*-1\r\n".to_vec()),
            Just(b"*1\r\n*1\r\n".to_vec()),
            Just(b"$4\r\nPING\r\n".to_vec()),
            Just(b"$3\r\nPING\r\n".to_vec()),
            Just(b"$99999999\r\n".to_vec()),
            Just(b"PING a b\r\n".to_vec()),
            Just(b"\r\n".to_vec()),
            prop::collection::vec(any::<u8>(), 0..20),
            prop::collection::vec(prop::sample::select(b"*$-1239\r\n ab".to_vec()), 0..20),
        ];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn parses_commands_split_anywhere(
            commands in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..8), 0..8),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let bytes = encoded(&commands);
            prop_assert_eq!(read(&split_at_cuts(&bytes, &cuts)), (commands, None, 0));
        }

        #[test]
        fn parses_noise_alike_split_anywhere(
            bytes in noise(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            prop_assert_eq!(read(&split_at_cuts(&bytes, &cuts)), read(&[&bytes]));
        }
    }

    #[test]
    fn bounds_announced_lengths() {
        let error = |bytes: &[u8], limits| next(bytes, limits, &mut Vec::new()).unwrap_err().to_string();
        let authenticated = CommandLimits::AUTHENTICATED;
        assert!(error(b"*73\r\n", authenticated).contains("too many arguments"));
        assert!(error(b"*11\r\n", CommandLimits::UNAUTHENTICATED).contains("too many arguments"));
        assert!(error(b"*1\r\n$65537\r\n", authenticated).contains("invalid bulk length"));
        assert!(error(b"*1\r\n$16385\r\n", CommandLimits::UNAUTHENTICATED).contains("invalid bulk length"));
        assert!(error(b"*1\r\n$-1\r\n", authenticated).contains("invalid bulk length"));
        assert!(error(b"*99999999999", authenticated).contains("invalid multibulk length"));
        assert!(error(b"*-2\r\n", authenticated).contains("invalid multibulk length"));
        assert!(error(b"*1\r\n*1\r\n", authenticated).contains("expected '$'"));
        assert!(error(&[b'a'; MAX_LINE], authenticated).contains("too big inline request"));
        let word = [&b"$65536\r\n"[..], &[b'x'; 65536], b"\r\n"].concat();
        let large = [&b"*17\r\n"[..], &word.repeat(17)].concat();
        assert!(error(&large, authenticated).contains("too big a command"));
    }
}
