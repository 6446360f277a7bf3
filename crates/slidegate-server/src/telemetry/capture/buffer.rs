//! Buffer of one recording: bounded memory for lines that wait to be written or sent.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Sleep;

use super::{Line, Recorder, Sample};

/// Upper bound on buffered bytes. Lines beyond it are dropped.
const ROOM: usize = 8 << 20;

/// Bounds of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Total bytes of all lines.
    pub(crate) bytes: u64,
    /// Duration. None records until `bytes` is reached.
    pub(crate) time: Option<Duration>,
    /// True if a client receives the lines, false if a file does.
    pub(crate) streamed: bool,
}

/// Reason why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It has reached its size.
    Full,
    /// It has reached its duration.
    Time,
    /// The server stops.
    Stopped,
}

/// Result of adding a line.
pub(super) enum Put {
    Written,
    /// The buffer is full.
    Dropped,
    /// The recording has ended.
    Over,
}

/// Buffer of lines between the deciding threads and one receiver.
pub(super) struct Tape {
    pub(super) sample: Sample,
    bounds: Bounds,
    waiting: Mutex<Waiting>,
    more: Notify,
}

#[derive(Default)]
struct Waiting {
    text: Vec<u8>,
    /// Bytes of all lines that were added, taken or not.
    bytes: u64,
    lines: u64,
    dropped: u64,
    end: Option<End>,
}

impl Tape {
    pub(super) fn new(sample: Sample, bounds: Bounds) -> Self {
        Tape { sample, bounds, waiting: Mutex::default(), more: Notify::new() }
    }

    pub(super) fn is_streamed(&self) -> bool {
        self.bounds.streamed
    }

    pub(super) fn put(&self, line: &Line<'_, '_>) -> Put {
        let mut waiting = self.waiting.lock();
        if waiting.end.is_some() {
            return Put::Over;
        }
        let before = waiting.text.len();
        // Serializing our own types to memory does not fail.
        let _ = serde_json::to_writer(&mut waiting.text, line);
        waiting.text.push(b'\n');
        let bytes = waiting.bytes + (waiting.text.len() - before) as u64;
        let put = if bytes > self.bounds.bytes {
            waiting.text.truncate(before);
            waiting.end = Some(End::Full);
            Put::Over
        } else if waiting.text.len() > ROOM {
            waiting.text.truncate(before);
            waiting.dropped += 1;
            Put::Dropped
        } else {
            (waiting.bytes, waiting.lines) = (bytes, waiting.lines + 1);
            Put::Written
        };
        drop(waiting);
        self.more.notify_one();
        put
    }

    pub(super) fn end(&self, end: End) {
        self.waiting.lock().end.get_or_insert(end);
        self.more.notify_one();
    }

    fn take(&self) -> Taken {
        let mut waiting = self.waiting.lock();
        match waiting.end {
            _ if !waiting.text.is_empty() => Taken::Lines(std::mem::take(&mut waiting.text)),
            Some(_) => Taken::End,
            None => Taken::Nothing,
        }
    }
}

enum Taken {
    Lines(Vec<u8>),
    Nothing,
    End,
}

/// Result of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) lines: u64,
    pub(crate) dropped: u64,
    /// None if the receiver has left.
    pub(crate) end: Option<End>,
}

/// Receiver of the lines of a recording. The recording ends when it is dropped.
pub(crate) struct Reel {
    recorder: Arc<Recorder>,
    tape: Arc<Tape>,
    over: Option<Pin<Box<Sleep>>>,
}

impl Reel {
    /// Creates the receiver. The duration of the recording starts now.
    pub(super) fn new(recorder: Arc<Recorder>, tape: Arc<Tape>) -> Self {
        let over = tape.bounds.time.map(|time| Box::pin(tokio::time::sleep(time)));
        Reel { recorder, tape, over }
    }

    /// Waits for lines and returns all that are buffered. None when the recording has ended.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            // Checked first, so that it also ends while lines come faster than they are taken.
            if self.over.as_mut().is_some_and(|over| over.now_or_never().is_some()) {
                self.over = None;
                self.tape.end(End::Time);
            }
            match self.tape.take() {
                Taken::Lines(lines) => return Some(lines),
                Taken::End => return None,
                Taken::Nothing => {}
            }
            match &mut self.over {
                None => self.tape.more.notified().await,
                Some(over) => tokio::select! {
                    () = self.tape.more.notified() => {}
                    () = over => {}
                },
            }
        }
    }

    pub(crate) fn summary(&self) -> Summary {
        let waiting = self.tape.waiting.lock();
        Summary { lines: waiting.lines, dropped: waiting.dropped, end: waiting.end }
    }
}

impl Drop for Reel {
    fn drop(&mut self) {
        self.recorder.forget(&self.tape);
    }
}
