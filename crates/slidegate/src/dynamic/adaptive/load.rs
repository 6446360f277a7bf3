//! Inputs of the adaptive policy: host load, latencies and failures, of one process or of all processes.

use crate::Micros;

/// Load of this host, in hundredths of a percent; `None` means unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostLoad {
    /// Share of the CPUs available to this process.
    pub cpu: Option<u32>,
    /// Share of the memory available to this process.
    pub memory: Option<u32>,
}

/// Input of one step of an [`AdaptivePolicy`](super::AdaptivePolicy).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Load of the hosts.
    pub host: HostLoad,
    /// Mean of the reported latencies.
    pub latency: Option<Micros>,
    /// Share of the reports that failed, in hundredths of a percent.
    pub failed: u32,
}

/// Reports about one rule since the last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reports {
    pub(crate) count: u64,
    /// Sum of all latencies, in microseconds.
    pub(crate) latency: u64,
    pub(crate) failed: u64,
}

/// Load seen by one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeLoad {
    pub(crate) host: HostLoad,
    /// Reports by rule name.
    pub(crate) reports: Vec<(String, Reports)>,
}

impl NodeLoad {
    fn of(&self, rule: &str) -> Reports {
        self.reports.iter().find(|(name, _)| name == rule).map(|(_, reports)| *reports).unwrap_or_default()
    }
}

/// Combines the loads of all processes for one rule. It takes the median of each input, so that wrong values of
/// one process among three have little effect. The weight of a latency is its number of reports.
pub(crate) fn combine(nodes: &[NodeLoad], rule: &str) -> Load {
    let host = |input: fn(&HostLoad) -> Option<u32>| {
        median(nodes.iter().filter_map(|node| Some((u64::from(input(&node.host)?), 1))).collect())
            .and_then(|share| u32::try_from(share).ok())
    };
    let reports: Vec<Reports> =
        nodes.iter().map(|node| node.of(rule)).filter(|reports| reports.count > 0).collect();
    let latency = median(reports.iter().map(|some| (some.latency / some.count, some.count)).collect());
    let failed = reports.iter().map(|some| (ten_thousandths(some.failed, some.count), some.count));
    let failed = median(failed.collect()).unwrap_or_default();
    Load {
        host: HostLoad { cpu: host(|host| host.cpu), memory: host(|host| host.memory) },
        latency: latency.map(Micros::new),
        failed: u32::try_from(failed).unwrap_or(super::WHOLE),
    }
}

fn ten_thousandths(part: u64, whole: u64) -> u64 {
    let share = u128::from(part) * u128::from(super::WHOLE) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX).min(super::WHOLE.into())
}

/// Returns the weighted median; the mean of the two middle values if the weight is split evenly.
fn median(mut weighed: Vec<(u64, u64)>) -> Option<u64> {
    weighed.sort_unstable();
    let whole: u128 = weighed.iter().map(|(_, weight)| u128::from(*weight)).sum();
    let at = |place: u128| {
        let mut passed = 0;
        let past = |(_, weight): &&(u64, u64)| {
            passed += u128::from(*weight);
            passed > place
        };
        weighed.iter().find(past).map(|(value, _)| *value)
    };
    Some(at(whole.checked_sub(1)? / 2)?.midpoint(at(whole / 2)?))
}

#[cfg(test)]
mod tests {
    use super::{HostLoad, Micros, NodeLoad, Reports, combine, median};

    #[test]
    fn computes_the_weighted_median() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![(7, 1)]), Some(7));
        assert_eq!(median(vec![(9, 1), (5, 1)]), Some(7));
        assert_eq!(median(vec![(9, 1), (1, 1), (5, 1)]), Some(5));
        assert_eq!(median(vec![(9, 5), (1, 1), (5, 1)]), Some(9));
        assert_eq!(median(vec![(u64::MAX, u64::MAX), (u64::MAX, u64::MAX)]), Some(u64::MAX));
    }

    #[test]
    fn one_of_three_nodes_is_outvoted() {
        let node = |cpu, count, millis: u64| NodeLoad {
            host: HostLoad { cpu, memory: None },
            reports: vec![("a".into(), Reports { count, latency: count * millis * 1_000, failed: 0 })],
        };
        let nodes = [node(Some(4_000), 10, 80), node(Some(10_000), 9, 3_600_000), node(Some(5_000), 10, 90)];
        let load = combine(&nodes, "a");
        assert_eq!(load.host, HostLoad { cpu: Some(5_000), memory: None });
        assert_eq!(load.latency, Some(Micros::from_millis(90)));
        assert_eq!(combine(&nodes, "b").latency, None);
    }
}
