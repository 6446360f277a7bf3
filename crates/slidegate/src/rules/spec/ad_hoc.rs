//! Section `ad-hoc`: bounds for requests that give their own limit.

use crate::Micros;
use crate::rules::{AdHoc, Bounds};

crate::section! {
    /// Bounds for requests that give their own limit.
    pub struct AdHocFile("AdHoc", dotted: true) {
        /// Limits.
        limit: Bounds<u64> as LimitBounds = AdHoc::default().limit(),
        /// Windows.
        window: Bounds<Micros> as WindowBounds = AdHoc::default().window(),
    }
}

crate::section! {
    /// Default and bounds of limits.
    struct LimitBounds("LimitBounds", dotted: true, base: AdHoc::default().limit()) for Bounds<u64> {
        /// Used if a request gives none.
        default: u64,
        /// The lowest value a request may give.
        min: u64,
        /// The highest value a request may give.
        max: u64,
    }
}

crate::section! {
    /// Default and bounds of windows.
    struct WindowBounds("WindowBounds", dotted: true, base: AdHoc::default().window()) for Bounds<Micros> {
        /// Used if a request gives none.
        default: Micros,
        /// The lowest value a request may give.
        min: Micros,
        /// The highest value a request may give.
        max: Micros,
    }
}

impl From<&AdHoc> for AdHocFile {
    fn from(ad_hoc: &AdHoc) -> Self {
        AdHocFile { limit: ad_hoc.limit(), window: ad_hoc.window() }
    }
}
