//! This node: its name, options, clock and random numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::FailoverOptions;
use super::membership::node_name;
use crate::Clock;

pub(super) struct Node {
    /// Name of this node among the nodes that use the same servers.
    pub(super) name: String,
    pub(super) options: FailoverOptions,
    pub(super) clock: Arc<dyn Clock>,
    /// State of the random number generator.
    random: AtomicU64,
    /// Number of the last outage, over all servers.
    pub(super) outages: AtomicU64,
}

impl Node {
    /// Creates the node. Its name and its random numbers follow from `seed`.
    pub(super) fn new(options: FailoverOptions, clock: Arc<dyn Clock>, seed: u64) -> Self {
        Node {
            name: node_name(seed),
            options,
            clock,
            random: AtomicU64::new(seed),
            outages: AtomicU64::new(0),
        }
    }

    pub(super) fn random(&self) -> u64 {
        // A Weyl sequence with a mixing function (SplitMix64).
        let step = self.random.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        let mixed = (step ^ step >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ mixed >> 27
    }
}
