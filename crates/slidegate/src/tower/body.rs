//! Body of a response: the body that the service returned, or the body of a denial.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::permit_guard::PermitGuard;

pin_project! {
    /// Body of the responses of a [`RateLimit`](super::RateLimit). Held permits are released when the body has been read to
    /// its end, or is dropped.
    pub struct ResponseBody<B> {
        // `None` for a denial.
        #[pin]
        inner: Option<B>,
        denial: Option<Bytes>,
        guard: Option<PermitGuard>,
    }
}

impl<B> ResponseBody<B> {
    pub(super) fn from_service(body: B, guard: Option<PermitGuard>) -> Self {
        ResponseBody { inner: Some(body), denial: None, guard }
    }

    pub(super) fn denial(body: Bytes) -> Self {
        ResponseBody { inner: None, denial: Some(body).filter(|body| !body.is_empty()), guard: None }
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let Some(body) = this.inner.as_pin_mut() else {
            return Poll::Ready(this.denial.take().map(|body| Ok(Frame::data(body.into()))));
        };
        let frame = ready!(body.poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            *this.guard = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().map_or(self.denial.is_none(), Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let denial = || SizeHint::with_exact(self.denial.as_ref().map_or(0, Bytes::len) as u64);
        self.inner.as_ref().map_or_else(denial, Body::size_hint)
    }
}
