//! Asks that leave together, and those who wait for them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::{BatchVerdicts, Checks, Error, Micros, Verdicts};

pub(super) type Answer = Result<Verdicts, Error>;

/// Asks that leave together: they gather, leave, and are answered.
pub(super) struct Batch(Mutex<State>);

struct State {
    /// None once it has left, or who asked has.
    asks: Vec<Option<Checks>>,
    /// When the first of them came.
    since: Micros,
    left: bool,
    answers: Vec<Option<Answer>>,
    wakers: Vec<Option<Waker>>,
}

/// One who waits for his answer.
pub(super) struct Waiter {
    batch: Arc<Batch>,
    index: usize,
}

/// A batch on its way. If it is lost, those who wait are told.
pub(super) struct InFlightBatch {
    batch: Arc<Batch>,
    pub(super) asks: Vec<Checks>,
    pub(super) since: Micros,
    /// Whose they are.
    places: Vec<usize>,
}

impl Batch {
    pub(super) fn of(ask: &Checks, now: Micros) -> (Arc<Batch>, Waiter) {
        let state = State {
            asks: vec![Some(ask.clone())],
            since: now,
            left: false,
            answers: Vec::new(),
            wakers: Vec::new(),
        };
        let batch = Arc::new(Batch(Mutex::new(state)));
        (Arc::clone(&batch), Waiter { batch, index: 0 })
    }

    /// A place in it, if it has one.
    pub(super) fn join(self: &Arc<Self>, ask: &Checks, size: usize) -> Option<Waiter> {
        let mut state = self.0.lock();
        let index = state.asks.len();
        if index >= size {
            return None;
        }
        state.asks.push(Some(ask.clone()));
        Some(Waiter { batch: Arc::clone(self), index })
    }

    /// How many joined.
    pub(super) fn len(&self) -> usize {
        self.0.lock().asks.len()
    }

    pub(super) fn leave(self: Arc<Self>) -> InFlightBatch {
        let (mut asks, mut places) = (Vec::new(), Vec::new());
        let since = {
            let mut state = self.0.lock();
            state.left = true;
            asks.reserve_exact(state.asks.len());
            places.reserve_exact(state.asks.len());
            for (place, ask) in state.asks.iter_mut().enumerate() {
                if let Some(ask) = ask.take() {
                    asks.push(ask);
                    places.push(place);
                }
            }
            state.since
        };
        InFlightBatch { batch: self, asks, since, places }
    }

    fn answer(&self, answers: impl Iterator<Item = (usize, Answer)>) {
        let wakers = {
            let mut state = self.0.lock();
            let size = state.asks.len();
            state.answers.resize_with(size, || None);
            for (place, answer) in answers {
                state.answers[place] = Some(answer);
            }
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

/// Nobody will send it: who waits in it waits in vain.
fn lost() -> Error {
    Error::unavailable("the call that this request was to share was lost")
}

impl InFlightBatch {
    pub(super) fn arrive(mut self, answers: Vec<Answer>) {
        let places = std::mem::take(&mut self.places);
        let answers = answers.into_iter().chain(std::iter::repeat_with(|| Err(Error::short_answer())));
        self.batch.answer(places.into_iter().zip(answers));
    }
}

impl Drop for InFlightBatch {
    fn drop(&mut self) {
        if !self.places.is_empty() {
            self.batch.answer(self.places.drain(..).map(|place| (place, Err(lost()))));
        }
    }
}

impl Waiter {
    /// Whether it is the last of a batch of this size.
    pub(super) fn is_last(&self, size: usize) -> bool {
        self.index + 1 >= size
    }
}

impl Future for Waiter {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let mut state = self.batch.0.lock();
        if let Some(answer) = state.answers.get_mut(self.index).and_then(Option::take) {
            return Poll::Ready(answer);
        }
        if state.wakers.len() <= self.index {
            let size = state.asks.len().max(self.index + 1);
            state.wakers.resize_with(size, || None);
        }
        state.wakers[self.index] = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Waiter {
    /// Who leaves before his ask does is not charged.
    fn drop(&mut self) {
        let mut state = self.batch.0.lock();
        if !state.left {
            state.asks[self.index] = None;
        }
    }
}

/// The answer to the only ask.
pub(super) fn only(readings: BatchVerdicts) -> Answer {
    readings.into_iter().next().ok_or_else(Error::short_answer)
}
