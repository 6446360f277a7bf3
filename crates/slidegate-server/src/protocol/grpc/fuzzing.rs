//! Entry point of the gRPC service for fuzzing; see [`crate::fuzzing`].

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

/// Returns the response frames of a call whose body arrives in these pieces.
pub(crate) async fn should_rate_limit(
    instrumented: Instrumented<'_>,
    pieces: &[&[u8]],
) -> Result<Vec<u8>, Status> {
    let pieces = pieces.iter().rev().map(|piece| Bytes::copy_from_slice(piece)).collect();
    let request = framing::read_message(Pieces(pieces), &ConnectionState::default(), || {
        RequestBudget::default().share(usize::MAX)
    })
    .await?;
    let response = rate_limit::decide(instrumented, request).await?;
    let Ok(body) = framing::unary_response(&response).into_body().collect().await;
    Ok(body.to_bytes().to_vec())
}

/// Request body in pieces, in reverse order.
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
