//! Reads an untrusted file line by line, with a maximum length per line. Unpacks gzip.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use memchr::memchr;

/// Maximum length of a line, in bytes. Browsers send at most 8 KiB per header.
pub(super) const MAX_LINE: usize = 64 << 10;

const BUFFER_SIZE: usize = 256 << 10;

/// First bytes of a gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Reader for the lines of a file.
pub(super) struct LineReader {
    input: Box<dyn BufRead + Send>,
    /// Bytes read from the file, before it is unpacked.
    bytes_read: Arc<AtomicU64>,
    /// Bytes of the buffer that the last line takes.
    used: usize,
    /// True if the file is empty. A terminal reports the end of its input only once, so the first read must be remembered.
    is_empty: bool,
    /// A line that is not completely in the buffer.
    line: Vec<u8>,
    number: u64,
}

/// One line, without its line ending.
pub(super) enum Line<'a> {
    Whole(&'a [u8]),
    TooLong,
}

impl<'a> Line<'a> {
    /// `line` is without its `\n`.
    fn new(line: &'a [u8]) -> Self {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > MAX_LINE { Line::TooLong } else { Line::Whole(line) }
    }
}

impl LineReader {
    /// Creates a reader. Unpacks the file if it begins with [`GZIP_MAGIC`].
    pub(super) fn new(file: impl Read + Send + 'static) -> io::Result<Self> {
        let bytes_read = Arc::new(AtomicU64::new(0));
        let mut input = BufReader::with_capacity(
            BUFFER_SIZE,
            CountingReader { file, bytes_read: Arc::clone(&bytes_read) },
        );
        let beginning = fill_buffer(&mut input)?;
        let (is_empty, is_packed) = (beginning.is_empty(), beginning.starts_with(&GZIP_MAGIC));
        let input: Box<dyn BufRead + Send> = if is_packed {
            Box::new(BufReader::with_capacity(BUFFER_SIZE, MultiGzDecoder::new(input)))
        } else {
            Box::new(input)
        };
        Ok(LineReader { input, bytes_read, used: 0, is_empty, line: Vec::new(), number: 0 })
    }

    /// Returns the buffered beginning of the file without consuming it.
    pub(super) fn peek(&mut self) -> io::Result<&[u8]> {
        if self.is_empty { Ok(&[]) } else { fill_buffer(&mut self.input) }
    }

    /// Returns the next line and its number, from 1; none at the end.
    #[inline(always)]
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, Line<'_>)>> {
        self.input.consume(std::mem::take(&mut self.used));
        let buffer = self.peek()?;
        if buffer.is_empty() {
            return Ok(None);
        }
        let end = memchr(b'\n', buffer);
        self.number += 1;
        let Some(end) = end else { return self.next_unbuffered() };
        self.used = end + 1;
        let (number, buffer) = (self.number, self.peek()?);
        Ok(Some((number, Line::new(&buffer[..end]))))
    }

    /// Reads a line that is not completely in the buffer.
    #[cold]
    fn next_unbuffered(&mut self) -> io::Result<Option<(u64, Line<'_>)>> {
        self.line.clear();
        let most = MAX_LINE as u64 + 2;
        self.input.by_ref().take(most).read_until(b'\n', &mut self.line)?;
        if !ends_with_newline(&self.line) && self.line.len() as u64 == most {
            self.skip_rest_of_line()?;
            return Ok(Some((self.number, Line::TooLong)));
        }
        Ok(Some((self.number, Line::new(self.line.strip_suffix(b"\n").unwrap_or(&self.line)))))
    }

    /// Returns the number of lines read so far.
    pub(super) fn line_count(&self) -> u64 {
        self.number
    }

    /// Returns the number of bytes read from the file so far.
    pub(super) fn position(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Consumes the rest of a line that is too long.
    fn skip_rest_of_line(&mut self) -> io::Result<()> {
        loop {
            self.line.clear();
            let read = self.input.by_ref().take(BUFFER_SIZE as u64).read_until(b'\n', &mut self.line)?;
            if read == 0 || ends_with_newline(&self.line) {
                return Ok(());
            }
        }
    }
}

/// Returns the content of the buffer, and fills it first if it is empty. Repeats a read that a signal interrupts.
#[inline]
fn fill_buffer(input: &mut (impl BufRead + ?Sized)) -> io::Result<&[u8]> {
    let empty = loop {
        match input.fill_buf() {
            Ok(buffer) => break buffer.is_empty(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    };
    // At the end of the input, another `fill_buf` would read again.
    if empty { Ok(&[]) } else { input.fill_buf() }
}

fn ends_with_newline(line: &[u8]) -> bool {
    line.last() == Some(&b'\n')
}

/// Reader that counts the bytes read, for the progress bar.
struct CountingReader<R> {
    file: R,
    bytes_read: Arc<AtomicU64>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.bytes_read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;

    /// Input that returns a few bytes at a time, is interrupted sometimes, and reports its end only once.
    struct Pieces {
        text: Cursor<Vec<u8>>,
        sizes: Vec<usize>,
        reads: usize,
        /// True to behave like a terminal.
        typed: bool,
        ended: bool,
    }

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.reads += 1;
            let size = self.sizes[self.reads % self.sizes.len()];
            if size == 0 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            // The format of a file is recognised only if the first read returns two bytes.
            let most = buffer.len().min(if self.text.position() == 0 { size.max(2) } else { size });
            let read = self.text.read(&mut buffer[..most])?;
            assert!(read > 0 || !(self.typed && self.ended), "the end was reported already");
            self.ended |= read == 0;
            Ok(read)
        }
    }

    fn line() -> impl Strategy<Value = Vec<u8>> {
        let long = (MAX_LINE - 3..MAX_LINE + 4).prop_map(|n| vec![b'x'; n]);
        let very_long = (0..2usize).prop_map(|n| vec![b'y'; 3 * BUFFER_SIZE + n]);
        prop_oneof![
            20 => prop::collection::vec(prop_oneof![Just(b'a'), Just(b'\r'), any::<u8>()], 0..40),
            2 => long,
            1 => very_long,
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn lines_do_not_depend_on_read_sizes(
            lines in prop::collection::vec(line(), 0..12),
            ended in any::<bool>(),
            packed in any::<bool>(),
            sizes in prop::collection::vec(prop_oneof![Just(0), 1..8usize, 1_000..100_000usize], 2..6),
        ) {
            let mut text = lines.join(&b'\n');
            if ended {
                text.push(b'\n');
            }
            prop_assume!(!text.starts_with(&GZIP_MAGIC) && sizes.iter().any(|size| *size > 999));
            let file = if packed {
                let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
                packed.write_all(&text).unwrap();
                packed.finish().unwrap()
            } else {
                text.clone()
            };
            let mut expected: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
            // A final newline does not begin another line.
            if expected.last().is_some_and(|last| last.is_empty()) {
                expected.pop();
            }
            let length = file.len() as u64;
            // Input from a terminal ends after a complete line.
            let typed = !packed && (text.is_empty() || text.ends_with(b"\n"));
            let mut read =
                LineReader::new(Pieces { text: Cursor::new(file), sizes, reads: 0, typed, ended: false }).unwrap();
            for (number, line) in (1..).zip(expected) {
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                match read.next().unwrap() {
                    Some((at, Line::Whole(found))) => {
                        prop_assert_eq!((at, found), (number, line));
                        prop_assert!(line.len() <= MAX_LINE);
                    }
                    Some((at, Line::TooLong)) => prop_assert!(at == number && line.len() > MAX_LINE),
                    None => prop_assert!(false, "line {} is missing", number),
                }
            }
            prop_assert!(read.next().unwrap().is_none());
            prop_assert_eq!(read.position(), length);
        }
    }
}
