//! Operations on stored keys beside decisions: inspection, audit, garbage collection, memory usage.

pub(crate) mod audit;
pub(crate) mod gc;
pub(crate) mod inspect;
pub(crate) mod memory_usage;
