//! Section `ad-hoc`: bounds for requests that give their own limit.

use crate::Micros;
use crate::rules::{AdHoc, Bounds};

crate::section! {
    /// Default and bounds for requests that give their own limit and window.
    pub struct AdHocFile("AdHoc", dotted: true) {
        /// Default and bounds of the limit.
        limit: Bounds<u64> as LimitBounds = AdHoc::default().limit(),
        /// Default and bounds of the window.
        window: Bounds<Micros> as WindowBounds = AdHoc::default().window(),
    }
}

crate::section! {
    /// Default and bounds of the limit that a request may give.
    struct LimitBounds("LimitBounds", dotted: true, base: AdHoc::default().limit()) for Bounds<u64> {
        /// Limit of a request that gives none.
        default: u64,
        /// The lowest limit that a request may give.
        min: u64,
        /// The highest limit that a request may give.
        max: u64,
    }
}

crate::section! {
    /// Default and bounds of the window that a request may give.
    struct WindowBounds("WindowBounds", dotted: true, base: AdHoc::default().window()) for Bounds<Micros> {
        /// Window of a request that gives none.
        default: Micros,
        /// The shortest window that a request may give.
        min: Micros,
        /// The longest window that a request may give.
        max: Micros,
    }
}

impl From<&AdHoc> for AdHocFile {
    fn from(ad_hoc: &AdHoc) -> Self {
        AdHocFile { limit: ad_hoc.limit(), window: ad_hoc.window() }
    }
}
