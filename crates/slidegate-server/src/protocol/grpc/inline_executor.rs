//! Where hyper puts the calls of a connection: what can be answered at once is answered where it is read.

use std::future::Future;
use std::task::{Context, Waker};

use hyper::rt::Executor;

/// Tries each call once before it makes a task of it.
///
/// A decision in memory is ready at the first try, its message having come with its headers; a task would cost more
/// than that, and move it to another core. What is not ready becomes a task, whose first poll says whom to wake: nobody
/// needs to be woken for the try.
#[derive(Clone, Copy)]
pub(super) struct InlineExecutor;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for InlineExecutor {
    fn execute(&self, call: F) {
        let mut call = Box::pin(call);
        if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            tokio::spawn(call);
        }
    }
}
