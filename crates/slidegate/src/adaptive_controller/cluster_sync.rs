//! Synchronization of adaptive factors between all processes that count in one Redis: every process publishes its load, and
//! one process publishes the factors.
//!
//! The leader is the process with the lowest name among those that published recently, so no election and no lease is
//! needed. For a moment after a process has started, two processes may consider themselves the leader. Both then use
//! the same loads, and the last message applies.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::dynamic::adaptive::load::{NodeLoad, Reports};
use crate::dynamic::adaptive::{HostLoad, WHOLE};
use crate::store::failover;
use crate::store::redis::GossipMessage;
use crate::{Error, RedisStore};

/// Name of the gossip stream in Redis.
const STREAM: &str = "adaptive";

/// A process that has published nothing for this long counts as gone.
const MEMBER_TIMEOUT: Duration = Duration::from_millis(3_500);

const LOAD: &str = "load";
const FACTORS: &str = "factors";

/// Factors by rule name, in ten-thousandths.
pub(crate) type Factors = BTreeMap<String, u32>;

/// Member of the cluster: this process.
pub(crate) struct ClusterMember {
    store: RedisStore,
    name: String,
}

/// State of the cluster, collected from the messages of one exchange.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ClusterState {
    /// The latest load of each process.
    pub(crate) loads: Vec<NodeLoad>,
    /// The latest factors.
    pub(crate) factors: Option<Factors>,
    /// True if this process is the leader and publishes the next factors.
    pub(crate) is_leader: bool,
}

impl ClusterMember {
    pub(crate) fn new(store: RedisStore) -> Self {
        ClusterMember { store, name: failover::random_node_name() }
    }

    /// Publishes the load of this process, and returns the messages of all processes.
    pub(crate) async fn exchange(&self, own: &NodeLoad) -> Result<ClusterState, Error> {
        let message = GossipMessage { who: format!("{LOAD}:{}", self.name), text: own.to_text() };
        Ok(collect(self.store.announce(STREAM, &message, MEMBER_TIMEOUT).await?, &self.name))
    }

    pub(crate) async fn publish_factors(&self, factors: &Factors) -> Result<(), Error> {
        let words: Vec<String> = factors.iter().map(|(rule, factor)| format!("{rule}={factor}")).collect();
        let message = GossipMessage { who: format!("{FACTORS}:{}", self.name), text: words.join(" ") };
        self.store.announce(STREAM, &message, Duration::ZERO).await.map(drop)
    }
}

fn collect(messages: Vec<GossipMessage>, own_name: &str) -> ClusterState {
    let (mut loads, mut state) = (BTreeMap::new(), ClusterState::default());
    for GossipMessage { who, text } in messages {
        match who.split_once(':') {
            Some((LOAD, name)) => drop(loads.insert(name.to_owned(), NodeLoad::from_text(&text))),
            Some((FACTORS, _)) => state.factors = Some(parse_factors(&text)),
            _ => {}
        }
    }
    state.is_leader = loads.keys().next().is_some_and(|name| name == own_name);
    state.loads = loads.into_values().collect();
    state
}

fn parse_factors(text: &str) -> Factors {
    let pairs = text.split(' ').filter_map(|word| word.split_once('='));
    pairs.filter_map(|(rule, factor)| Some((rule.to_owned(), factor.parse().ok()?))).collect()
}

/// Text format: `cpu=5012 memory=7000 rule:orders=17,2310000,0`. Unreadable parts are skipped.
impl NodeLoad {
    fn to_text(&self) -> String {
        let share = |name: &str, share: Option<u32>| share.map(|share| format!("{name}={share}"));
        let reports = self.reports.iter().map(|(rule, some)| {
            let Reports { count, latency, failed } = some;
            format!("rule:{rule}={count},{latency},{failed}")
        });
        let host = [share("cpu", self.host.cpu), share("memory", self.host.memory)];
        host.into_iter().flatten().chain(reports).collect::<Vec<_>>().join(" ")
    }

    fn from_text(text: &str) -> Self {
        let mut load = NodeLoad::default();
        for (name, value) in text.split(' ').filter_map(|word| word.split_once('=')) {
            let share = || value.parse().ok().filter(|share| *share <= WHOLE);
            match name.strip_prefix("rule:") {
                Some(rule) => load.reports.extend(parse_reports(value).map(|some| (rule.to_owned(), some))),
                None if name == "cpu" => load.host = HostLoad { cpu: share(), ..load.host },
                None if name == "memory" => load.host = HostLoad { memory: share(), ..load.host },
                None => {}
            }
        }
        load
    }
}

fn parse_reports(text: &str) -> Option<Reports> {
    let mut numbers = text.split(',').map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten();
    Some(Reports { count: next()?, latency: next()?, failed: next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(who: &str, text: &str) -> GossipMessage {
        GossipMessage { who: who.into(), text: text.into() }
    }

    #[test]
    fn load_round_trips_through_text() {
        let load = NodeLoad {
            host: HostLoad { cpu: Some(5_012), memory: None },
            reports: vec![
                ("a/b.c-d".into(), Reports { count: 17, latency: 2_310_000, failed: 1 }),
                ("z".into(), Reports { count: u64::MAX, latency: 0, failed: 0 }),
            ],
        };
        assert_eq!(load.to_text(), "cpu=5012 rule:a/b.c-d=17,2310000,1 rule:z=18446744073709551615,0,0");
        assert_eq!(NodeLoad::from_text(&load.to_text()), load);
    }

    #[test]
    fn skips_unreadable_parts() {
        let load =
            NodeLoad::from_text("cpu=10001 memory=x rule:=1,2 rule:a=1,2,three b ===, rule:c=1,2,0,9 d=1");
        assert_eq!(load.host, HostLoad::default());
        assert_eq!(load.reports, [("c".to_owned(), Reports { count: 1, latency: 2, failed: 0 })]);
        assert_eq!(
            parse_factors("a=1 b=-1 c= =3 d=99999999999"),
            Factors::from([("a".into(), 1), (String::new(), 3)])
        );
    }

    #[test]
    fn lowest_name_leads_and_latest_factors_apply() {
        let messages = vec![
            message("load:b", "cpu=1"),
            message("factors:b", "r=9000"),
            message("load:a", "cpu=2"),
            message("load:b", "cpu=3"),
            message("factors:a", "r=9100"),
            message("other", "x"),
        ];
        let state = collect(messages.clone(), "a");
        let cpus: Vec<_> = state.loads.iter().map(|load| load.host.cpu).collect();
        assert_eq!(cpus, [Some(2), Some(3)], "the newest of each");
        assert_eq!((state.factors, state.is_leader), (Some(Factors::from([("r".into(), 9_100)])), true));
        assert!(!collect(messages, "b").is_leader);
    }
}
