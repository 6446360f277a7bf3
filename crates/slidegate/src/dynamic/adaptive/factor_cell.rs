//! Where a rule keeps its factor, and what was reported since the last step.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::load::Reports;
use super::{Adaptive, WHOLE};

/// A latency longer than this is taken for this.
const LONGEST: Duration = Duration::from_secs(3600);

/// How a rule adapts, and how far it has. A copy starts with the same factor and goes its own way: the rules of two
/// limiters are steered apart.
#[derive(Debug)]
pub(crate) struct AdaptiveState {
    pub(crate) terms: Adaptive,
    pub(crate) gauge: FactorCell,
}

/// Read and written by every decision, without a lock.
#[derive(Debug)]
pub(crate) struct FactorCell {
    factor: AtomicU32,
    count: AtomicU64,
    latency: AtomicU64,
    failed: AtomicU64,
}

impl AdaptiveState {
    pub(crate) fn new(terms: Adaptive) -> Self {
        AdaptiveState { terms, gauge: FactorCell::new(WHOLE) }
    }
}

impl Clone for AdaptiveState {
    fn clone(&self) -> Self {
        AdaptiveState { terms: self.terms.clone(), gauge: FactorCell::new(self.gauge.factor()) }
    }
}

/// What a file says, not how far it has come.
impl PartialEq for AdaptiveState {
    fn eq(&self, other: &Self) -> bool {
        self.terms == other.terms
    }
}

impl Eq for AdaptiveState {}

impl FactorCell {
    fn new(factor: u32) -> Self {
        FactorCell {
            factor: AtomicU32::new(factor),
            count: AtomicU64::new(0),
            latency: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// In ten-thousandths.
    #[inline]
    pub(crate) fn factor(&self) -> u32 {
        self.factor.load(Ordering::Relaxed)
    }

    pub(crate) fn set_factor(&self, factor: u32) {
        self.factor.store(factor, Ordering::Relaxed);
    }

    pub(crate) fn report(&self, latency: Duration, ok: bool) {
        let micros = latency.min(LONGEST).as_micros() as u64;
        self.latency.fetch_add(micros, Ordering::Relaxed);
        self.failed.fetch_add(u64::from(!ok), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// What was reported since the last time. A report that arrives meanwhile may be split between two steps.
    pub(crate) fn take(&self) -> Reports {
        Reports {
            count: self.count.swap(0, Ordering::Relaxed),
            latency: self.latency.swap(0, Ordering::Relaxed),
            failed: self.failed.swap(0, Ordering::Relaxed),
        }
    }
}
