//! See [`crate::fuzzing`].

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};
use tonic::Status;

use super::{framing, rate_limit};
use crate::app::request_budget::RequestBudget;
use crate::protocol::connection_slots::ConnectionState;
use crate::telemetry::stats::Instrumented;

/// The frames of an answer to a call whose body comes in these pieces.
pub(crate) async fn should_rate_limit(
    deciding: Instrumented<'_>,
    pieces: &[&[u8]],
) -> Result<Vec<u8>, Status> {
    let pieces = pieces.iter().rev().map(|piece| Bytes::copy_from_slice(piece)).collect();
    let asked = framing::message(Pieces(pieces), &ConnectionState::default(), || {
        RequestBudget::default().share(usize::MAX)
    })
    .await?;
    let response = rate_limit::decide(deciding, asked).await?;
    let Ok(body) = framing::reply(&response).into_body().collect().await;
    Ok(body.to_bytes().to_vec())
}

/// The last first.
struct Pieces(Vec<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop().map(|piece| Ok(Frame::data(piece))))
    }
}
