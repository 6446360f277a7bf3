//! Shared state of an adaptive rule: its factor, and the reports since the last step.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::load::Reports;
use super::{Adaptive, WHOLE};

/// Maximum latency of a report. A longer latency counts as this maximum.
const MAX_LATENCY: Duration = Duration::from_secs(3600);

/// Settings of an adaptive rule, and its present factor. A clone starts with the same factor and then changes
/// independently: the rules of two limiters are controlled separately.
#[derive(Debug)]
pub(crate) struct AdaptiveState {
    pub(crate) terms: Adaptive,
    pub(crate) cell: FactorCell,
}

/// Factor and reports. All decisions read and write it, without a lock.
#[derive(Debug, Default)]
pub(crate) struct FactorCell {
    factor: AtomicU32,
    count: AtomicU64,
    latency: AtomicU64,
    failed: AtomicU64,
}

impl AdaptiveState {
    pub(crate) fn new(terms: Adaptive) -> Self {
        AdaptiveState { terms, cell: FactorCell::new(WHOLE) }
    }
}

impl Clone for AdaptiveState {
    fn clone(&self) -> Self {
        AdaptiveState { terms: self.terms.clone(), cell: FactorCell::new(self.cell.factor()) }
    }
}

/// Compares the settings, not the present factors.
impl PartialEq for AdaptiveState {
    fn eq(&self, other: &Self) -> bool {
        self.terms == other.terms
    }
}

impl Eq for AdaptiveState {}

impl FactorCell {
    fn new(factor: u32) -> Self {
        FactorCell { factor: AtomicU32::new(factor), ..FactorCell::default() }
    }

    /// Returns the factor in ten-thousandths.
    #[inline]
    pub(crate) fn factor(&self) -> u32 {
        self.factor.load(Ordering::Relaxed)
    }

    pub(crate) fn set_factor(&self, factor: u32) {
        self.factor.store(factor, Ordering::Relaxed);
    }

    pub(crate) fn report(&self, latency: Duration, ok: bool) {
        let micros = latency.min(MAX_LATENCY).as_micros() as u64;
        self.latency.fetch_add(micros, Ordering::Relaxed);
        self.failed.fetch_add(u64::from(!ok), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the reports since the last call. A report that arrives during the call may be split between two steps.
    pub(crate) fn take(&self) -> Reports {
        Reports {
            count: self.count.swap(0, Ordering::Relaxed),
            latency: self.latency.swap(0, Ordering::Relaxed),
            failed: self.failed.swap(0, Ordering::Relaxed),
        }
    }
}
