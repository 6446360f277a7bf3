//! Trace context of the caller from the W3C `traceparent` header: our span becomes a child of the caller's span.
//!
//! Without the feature `otel` the context is empty.

use axum::http::HeaderMap;
use tracing::Span;

const HEADER: &str = "traceparent";

/// Span of the caller, if the request names one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TraceContext {
    #[cfg(feature = "otel")]
    parent: ParentHeader,
}

impl TraceContext {
    /// Reads the headers of a request.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut caller = TraceContext::default();
        if cfg!(feature = "otel") && super::enabled() {
            let values = headers.get_all(HEADER).iter();
            values.for_each(|value| caller.read_header(HEADER, value.as_bytes()));
        }
        caller
    }

    /// Reads one header, if it is `traceparent`.
    #[inline]
    pub(crate) fn read_header(&mut self, name: &str, value: &[u8]) {
        #[cfg(feature = "otel")]
        if name.eq_ignore_ascii_case(HEADER) && super::enabled() {
            self.parent = match self.parent {
                ParentHeader::Missing => {
                    Parent::parse(value).map_or(ParentHeader::Invalid, ParentHeader::Parent)
                }
                _ => ParentHeader::Invalid,
            };
        }
        #[cfg(not(feature = "otel"))]
        let _ = (name, value);
    }

    /// Makes `span` a child of the caller's span.
    pub(super) fn adopt(self, span: &Span) {
        #[cfg(feature = "otel")]
        if let ParentHeader::Parent(parent) = self.parent {
            parent.adopt(span);
        }
        #[cfg(not(feature = "otel"))]
        let _ = span;
    }
}

#[cfg(feature = "otel")]
use self::parent::{Parent, ParentHeader};

#[cfg(feature = "otel")]
mod parent {
    use opentelemetry::Context;
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    #[derive(Clone, Copy, Debug, Default)]
    pub(super) enum ParentHeader {
        #[default]
        Missing,
        Parent(Parent),
        /// If the header is invalid or repeated, the span has no parent.
        Invalid,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Parent {
        trace: TraceId,
        span: SpanId,
        sampled: bool,
    }

    impl Parent {
        /// Parses `00-TRACE-SPAN-FLAGS` in lower-case hex. Later versions may have more fields after that.
        pub(super) fn parse(value: &[u8]) -> Option<Self> {
            let (known, more) = value.split_at_checked(55)?;
            let mut parts = str::from_utf8(known).ok()?.split('-');
            let is_hex = |part: &&str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            let mut part = |length| parts.next().filter(|part| part.len() == length).filter(is_hex);
            let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
            let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
            let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
            let ends = more.is_empty() || (version != "00" && more[0] == b'-');
            let nonzero = trace != TraceId::INVALID && span != SpanId::INVALID;
            (version != "ff" && ends && nonzero).then_some(Parent { trace, span, sampled })
        }

        pub(super) fn adopt(self, span: &Span) {
            let flags = if self.sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
            let context = SpanContext::new(self.trace, self.span, flags, true, TraceState::default());
            // Without an exporter this has no effect.
            let _ = span.set_parent(Context::new().with_remote_span_context(context));
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

        #[test]
        fn malformed_headers_are_ignored() {
            let parent = Parent::parse(GOOD.as_bytes()).unwrap();
            let (trace, span) = (parent.trace.to_bytes(), parent.span.to_bytes());
            assert_eq!((trace[0], trace[15], span[7]), (0x0a, 0x9c, 0x31));
            assert!(parent.sampled && !Parent::parse(GOOD.replace("-01", "-02").as_bytes()).unwrap().sampled);
            // A version that does not exist yet.
            for later in [GOOD.replacen("00", "cc", 1), GOOD.replacen("00", "cc", 1) + "-more"] {
                assert_eq!(Parent::parse(later.as_bytes()), Some(parent), "{later}");
            }
            let zero = |n| "0".repeat(n);
            for bad in [
                String::new(),
                GOOD[..54].to_owned(),
                format!("{GOOD}-more"),
                format!("{GOOD}0"),
                format!(" {GOOD}"),
                GOOD.to_uppercase(),
                GOOD.replace('-', "_"),
                GOOD.replacen("00", "ff", 1),
                GOOD.replacen("00", "0x", 1),
                GOOD.replacen("00", "cc", 1) + ".more",
                GOOD.replace("0af7651916cd43dd8448eb211c80319c", &zero(32)),
                GOOD.replace("b7ad6b7169203331", &zero(16)),
                GOOD.replace("0af7", "0ag7"),
                GOOD.replace("0af7", "0é7"),
            ] {
                assert_eq!(Parent::parse(bad.as_bytes()), None, "{bad}");
            }
        }
    }
}
