//! One recording: lines that wait to be taken, in bounded memory.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Sleep;

use super::{Line, Recorder, Sample};

/// Bytes that may wait; lines that come when they do are dropped.
const ROOM: usize = 8 << 20;

/// How much is recorded, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Bytes of lines.
    pub(crate) bytes: u64,
    /// None is until it is full.
    pub(crate) time: Option<Duration>,
    /// Whether a client takes them, and not a file.
    pub(crate) streamed: bool,
}

/// Why a recording is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It has as many bytes as it may.
    Full,
    /// Its time is over.
    Time,
    /// The server stops.
    Stopped,
}

/// What became of a line.
pub(super) enum Put {
    Written,
    /// Too many wait.
    Dropped,
    /// The recording is over.
    Over,
}

/// Lines that wait to be taken.
pub(super) struct Tape {
    pub(super) sample: Sample,
    bounds: Bounds,
    waiting: Mutex<Waiting>,
    more: Notify,
}

#[derive(Default)]
struct Waiting {
    text: Vec<u8>,
    /// Of all that were written down, taken or not.
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
        // Our own types can be written, and memory takes them.
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

/// What a recording came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) lines: u64,
    pub(crate) dropped: u64,
    /// None if who took it has left.
    pub(crate) end: Option<End>,
}

/// Takes the lines of a recording, which is over when this is dropped.
pub(crate) struct Reel {
    recorder: Arc<Recorder>,
    tape: Arc<Tape>,
    over: Option<Pin<Box<Sleep>>>,
}

impl Reel {
    /// Its time runs from now.
    pub(super) fn new(recorder: Arc<Recorder>, tape: Arc<Tape>) -> Self {
        let over = tape.bounds.time.map(|time| Box::pin(tokio::time::sleep(time)));
        Reel { recorder, tape, over }
    }

    /// The lines that wait, once there are any; none when the recording is over.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            // Also while lines come faster than they are taken.
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
