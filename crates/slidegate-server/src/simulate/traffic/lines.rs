//! Lines of a file that a stranger may have written: none is longer than it may be.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

/// The longest line. Browsers send no more than 8 KiB of a header.
pub(super) const MAX_LINE: usize = 64 << 10;

const BUFFER: usize = 256 << 10;

/// What begins a file that gzip has written.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A file, line by line.
pub(super) struct Lines {
    input: Box<dyn BufRead + Send>,
    /// Bytes of the file itself, packed or not.
    read: Arc<AtomicU64>,
    line: Vec<u8>,
    number: u64,
}

/// One line, without its end.
pub(super) enum Line<'a> {
    Whole(&'a [u8]),
    TooLong,
}

impl Lines {
    /// Unpacks what begins as gzip does.
    pub(super) fn new(file: impl Read + Send + 'static) -> io::Result<Self> {
        let read = Arc::new(AtomicU64::new(0));
        let mut input = BufReader::with_capacity(BUFFER, Counted { file, read: Arc::clone(&read) });
        let input: Box<dyn BufRead + Send> = if input.fill_buf()?.starts_with(&GZIP) {
            Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(input)))
        } else {
            Box::new(input)
        };
        Ok(Lines { input, read, line: Vec::new(), number: 0 })
    }

    /// The beginning of the file, which stays to be read.
    pub(super) fn peek(&mut self) -> io::Result<&[u8]> {
        self.input.fill_buf()
    }

    /// The next one and its number, from 1; none at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, Line<'_>)>> {
        self.line.clear();
        let most = MAX_LINE as u64 + 2;
        if self.input.by_ref().take(most).read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        if !ends(&self.line) && self.line.len() as u64 == most {
            self.skip()?;
            return Ok(Some((self.number, Line::TooLong)));
        }
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = if line.len() > MAX_LINE { Line::TooLong } else { Line::Whole(line) };
        Ok(Some((self.number, line)))
    }

    /// How many bytes of the file were read.
    pub(super) fn position(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// The rest of a line.
    fn skip(&mut self) -> io::Result<()> {
        loop {
            self.line.clear();
            let read = self.input.by_ref().take(BUFFER as u64).read_until(b'\n', &mut self.line)?;
            if read == 0 || ends(&self.line) {
                return Ok(());
            }
        }
    }
}

fn ends(line: &[u8]) -> bool {
    line.last() == Some(&b'\n')
}

/// Counts what is read, for whoever shows progress.
struct Counted<R> {
    file: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
