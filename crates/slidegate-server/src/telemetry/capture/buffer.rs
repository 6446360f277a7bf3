//! Buffer of one recording: bounded memory for lines that wait to be written or sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::Sleep;

use super::{ClientSampler, Recorder};

/// Upper bound on buffered bytes. Lines beyond it are dropped.
const MAX_BUFFERED_BYTES: usize = 8 << 20;

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
pub(crate) enum EndReason {
    /// The recording has reached its size.
    Full,
    /// The recording has reached its duration.
    Time,
    /// The server stops.
    Stopped,
}

/// Result of adding a line.
pub(super) enum PutResult {
    Written,
    /// The buffer is full.
    Dropped,
    /// The recording has ended.
    Over,
}

/// Buffer of lines between the deciding threads and one receiver.
pub(super) struct LineBuffer {
    pub(super) sampler: ClientSampler,
    bounds: Bounds,
    state: Mutex<BufferState>,
    line_added: Notify,
}

#[derive(Default)]
struct BufferState {
    text: Vec<u8>,
    /// Bytes of all lines that were added, including lines that the receiver has taken already.
    bytes: u64,
    lines: u64,
    dropped: u64,
    end: Option<EndReason>,
}

impl LineBuffer {
    pub(super) fn new(sampler: ClientSampler, bounds: Bounds) -> Self {
        LineBuffer { sampler, bounds, state: Mutex::default(), line_added: Notify::new() }
    }

    pub(super) fn is_streamed(&self) -> bool {
        self.bounds.streamed
    }

    pub(super) fn put(&self, line: &impl Serialize) -> PutResult {
        let mut state = self.state.lock();
        if state.end.is_some() {
            return PutResult::Over;
        }
        let before = state.text.len();
        // Serializing our own types to memory does not fail.
        let _ = serde_json::to_writer(&mut state.text, line);
        state.text.push(b'\n');
        let bytes = state.bytes + (state.text.len() - before) as u64;
        let put = if bytes > self.bounds.bytes {
            state.text.truncate(before);
            state.end = Some(EndReason::Full);
            PutResult::Over
        } else if state.text.len() > MAX_BUFFERED_BYTES {
            state.text.truncate(before);
            state.dropped += 1;
            PutResult::Dropped
        } else {
            (state.bytes, state.lines) = (bytes, state.lines + 1);
            PutResult::Written
        };
        drop(state);
        self.line_added.notify_one();
        put
    }

    pub(super) fn end(&self, end: EndReason) {
        self.state.lock().end.get_or_insert(end);
        self.line_added.notify_one();
    }

    /// Takes all buffered lines. Returns `None` if the recording has ended, pending if no line is buffered.
    fn take(&self) -> Poll<Option<Vec<u8>>> {
        let mut state = self.state.lock();
        match state.end {
            _ if !state.text.is_empty() => Poll::Ready(Some(std::mem::take(&mut state.text))),
            Some(_) => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// Result of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) lines: u64,
    pub(crate) dropped: u64,
    /// Reason for the end. None if the receiver has left.
    pub(crate) end: Option<EndReason>,
}

/// Receiver of the lines of a recording. The recording ends when it is dropped.
pub(crate) struct LineReceiver {
    recorder: Arc<Recorder>,
    buffer: Arc<LineBuffer>,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl LineReceiver {
    /// Creates the receiver. The duration of the recording starts now.
    pub(super) fn new(recorder: Arc<Recorder>, buffer: Arc<LineBuffer>) -> Self {
        let deadline = buffer.bounds.time.map(|time| Box::pin(tokio::time::sleep(time)));
        LineReceiver { recorder, buffer, deadline }
    }

    /// Waits for lines and returns all that are buffered. None when the recording has ended.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            // The duration is checked first, so that the recording ends even if lines come faster than they are taken.
            if self.deadline.as_mut().is_some_and(|deadline| deadline.now_or_never().is_some()) {
                self.deadline = None;
                self.buffer.end(EndReason::Time);
            }
            if let Poll::Ready(lines) = self.buffer.take() {
                return lines;
            }
            match &mut self.deadline {
                None => self.buffer.line_added.notified().await,
                Some(deadline) => tokio::select! {
                    () = self.buffer.line_added.notified() => {}
                    () = deadline => {}
                },
            }
        }
    }

    pub(crate) fn summary(&self) -> Summary {
        let state = self.buffer.state.lock();
        Summary { lines: state.lines, dropped: state.dropped, end: state.end }
    }
}

impl Drop for LineReceiver {
    fn drop(&mut self) {
        self.recorder.remove(&self.buffer);
    }
}
