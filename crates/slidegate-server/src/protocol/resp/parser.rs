//! Where a command ends, and its words.
//!
//! A command is an array of bulk strings (`*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n`), or a line of plain words (`PING\r\n`). A
//! general decoder reads frames in frames as deep as it is told; this reads commands and nothing else, allocates nothing
//! that is only announced, and starts again from a command's first byte whenever more of it has come: that is one step a
//! word, however long the words are.

use std::fmt;

use slidegate::MAX_ATTRIBUTES;

/// The longest command, in bytes.
const MAX_COMMAND: usize = 1 << 20;

/// The longest line of plain words, in bytes.
const MAX_LINE: usize = 16 << 10;

/// The longest `*` or `$` with its number and line end.
const MAX_HEADER: usize = 16;

/// How much a command may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandLimits {
    words: usize,
    /// Bytes of each.
    word_bytes: usize,
}

impl CommandLimits {
    /// Of a client that may ask: a name and a value for each attribute, the options, and what is asked.
    pub(super) const AUTHENTICATED: CommandLimits =
        CommandLimits { words: 2 * MAX_ATTRIBUTES + 8, word_bytes: 64 << 10 };

    /// Of a client that has not shown a token yet, as Redis has it.
    pub(super) const UNAUTHENTICATED: CommandLimits = CommandLimits { words: 10, word_bytes: 16 << 10 };
}

/// Bytes that cannot be the start of a command. What comes after them cannot be read either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProtocolError(&'static str);

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protocol error: {}", self.0)
    }
}

/// Reads the command at the start of `bytes` into `words`; none if more of it must come. Returns its length.
///
/// An empty line and an empty array are commands without words: there is nothing to answer.
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
    // As Redis has it: an array of none, or no array.
    let count = count.unwrap_or(0);
    if count > limits.words {
        return Err(ProtocolError("invalid multibulk length: too many words"));
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
            Some(_) => return Err(ProtocolError("a bulk string is longer than it says")),
        }
    }
    Ok(Some(at))
}

/// The number in `bytes` from `at` to the line's end, none if it is -1, and where the next line starts.
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
        return Err(ProtocolError("quotes are not understood in an inline command"));
    }
    for word in bytes[..end].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
        if words.len() == limits.words {
            return Err(ProtocolError("too many words"));
        }
        words.push(word);
    }
    // A web page could make a browser send commands in the body of a request.
    let http = |name: &[u8]| words.first().is_some_and(|word| word.eq_ignore_ascii_case(name));
    if http(b"POST") || http(b"Host:") {
        return Err(ProtocolError("this is HTTP, and here the Redis protocol is spoken"));
    }
    Ok(Some(end + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redis_protocol::resp2::encode::encode_borrowed;
    use redis_protocol::resp2::types::BorrowedFrame;

    use super::*;

    /// Every command of `pieces`, fed as they come, and how it ended.
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

    /// Commands as another library writes them.
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

    /// What looks like a command for a while.
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
        assert!(error(b"*73\r\n", authenticated).contains("too many words"));
        assert!(error(b"*11\r\n", CommandLimits::UNAUTHENTICATED).contains("too many words"));
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
