//! Batch of commands that are decided in as few store calls as possible.

use std::pin::{Pin, pin};
use std::time::Duration;

use slidegate::{Decision, Error, Fault, Request};

use super::commands::{DecisionCommand, ReplyFormat};
use super::{CommandName, ConnectionHandler};
use crate::common::protocol::Protocol;
use crate::common::timeout::within;

/// Maximum number of decisions in one call to the store.
pub(super) const MAX_BATCH: usize = 256;

/// Commands that are decided together, in their order.
#[derive(Default)]
pub(super) struct Batch<'a> {
    pub(super) requests: Vec<Request<'a>>,
    pub(super) entries: Vec<BatchEntry>,
}

/// Entry of a batch, in the order of the commands.
pub(super) enum BatchEntry {
    /// The next decision of the batch, and the format of its reply.
    Decision(ReplyFormat),
    /// Command with invalid arguments.
    Invalid(Error),
}

impl<'a> Batch<'a> {
    pub(super) fn push(&mut self, command: Result<DecisionCommand<'a>, Error>) {
        self.entries.push(match command {
            Ok(DecisionCommand { request, format }) => {
                self.requests.push(request);
                BatchEntry::Decision(format)
            }
            Err(error) => BatchEntry::Invalid(error),
        });
    }
}

/// Requests that are decided in as few calls as possible.
pub(super) struct BatchSplitter<'b, 'a> {
    pub(super) remaining: &'b [Request<'a>],
    /// Maximum number of requests in one call.
    pub(super) max_requests: usize,
}

impl BatchSplitter<'_, '_> {
    /// Decides the next requests. Returns no decisions if no requests remain.
    pub(super) async fn decide_next(
        &mut self,
        handler: &ConnectionHandler,
        timeout: Duration,
    ) -> Result<Vec<Result<Decision, Error>>, Error> {
        let instrumented = handler.app.instrumented(Protocol::Resp);
        loop {
            let (head, tail) = self.remaining.split_at(self.max_requests.min(self.remaining.len()));
            let decided = with_timeout(timeout, pin!(instrumented.acquire_many(head))).await;
            match decided {
                // A single request never has too many checks for one call.
                Err(error) if error.is_too_many_checks() && head.len() > 1 => {
                    self.max_requests = head.len().div_ceil(2)
                }
                decided => {
                    self.remaining = tail;
                    return decided;
                }
            }
        }
    }
}

/// Parses the arguments of a command that decides.
pub(super) type DecisionParser<'a> = fn(&[&'a [u8]]) -> Result<DecisionCommand<'a>, Error>;

/// Returns the parser of a command's arguments; `None` if the command is not decided in a batch.
pub(super) fn decision_parser<'a>(name: CommandName) -> Option<DecisionParser<'a>> {
    Some(match name {
        CommandName::Acquire => DecisionCommand::acquire,
        CommandName::Check => DecisionCommand::check,
        CommandName::RedisCell => DecisionCommand::redis_cell,
        CommandName::Throttlecrab => DecisionCommand::throttlecrab,
        _ => return None,
    })
}

/// Waits for the store, at most for `timeout`.
pub(super) async fn with_timeout<T, F>(timeout: Duration, future: Pin<&mut F>) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let late = || Err(Error::store(Fault::Timeout, "no decision within the time limit"));
    within(timeout, future).await.unwrap_or_else(late)
}
