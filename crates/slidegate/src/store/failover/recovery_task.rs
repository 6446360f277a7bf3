//! Background task of one server: heartbeats, probes, and writing back after an outage.
//!
//! - While the server decides, the task announces this node at each heartbeat.
//! - During an outage the task probes the server. When the server answers, the task writes back the missing
//!   admissions, in small steps.
//! - Then the server and this node's share decide together, until the other nodes have written back too or the time of
//!   the option `write_back` is over. Until then the shares bound the admissions of all nodes; after that the server
//!   knows all of them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Inner;
use super::journal::Journal;
use super::membership::Presence;
use super::pending_write::PendingWrite;
use super::server_state::ServerState;
use super::state_machine::{Effect, Event, Phase};
use crate::store::remote::{RemoteStore, RestoreLine, ServerIdentity, Writer};
use crate::{Error, Fault, Key, Micros};

/// Pause between two checks of whether the other nodes have written back.
const JOIN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum number of keys written back in one call.
const MAX_KEYS_PER_STEP: usize = 32;

/// Maximum number of admissions written back in one call.
const MAX_ENTRIES_PER_STEP: usize = 500;

/// Maximum number of rounds that write back the admissions made during the write-back itself. Admissions that remain
/// after these rounds are written back after the server decides again.
const MAX_ROUNDS: usize = 10;

/// Runs until the [`Failover`](super::Failover) is dropped or the server leaves the topology.
pub(super) async fn run<R: RemoteStore>(inner: Weak<Inner<R>>, server: Arc<ServerState>) {
    loop {
        let wait = {
            let Some(inner) = inner.upgrade() else { return };
            inner.ensure_discovered().await;
            if inner.retire_if_removed(&server) {
                return;
            }
            match server.phase() {
                Phase::Direct => heartbeat(&inner, &server).await,
                Phase::Away => probe(&inner, &server).await,
                Phase::Joining => join(&inner, &server).await,
            }
        };
        let _ = tokio::time::timeout(wait, server.task_wake.notified()).await;
    }
}

/// Writes back the admissions made without the server after single failures, and announces this node. Returns the
/// wait until the next heartbeat.
async fn heartbeat<R: RemoteStore>(inner: &Arc<Inner<R>>, server: &ServerState) -> Duration {
    let heartbeat = inner.node.options.heartbeat;
    match heartbeat_once(inner, server).await {
        Ok(()) => {
            let now = server.earliest_now(&inner.node);
            // The server may have failed meanwhile.
            let back = server.phase() == Phase::Direct;
            inner.journal.sweep(|key| inner.store.server_of(key) == server.id, now, back);
        }
        Err(error) => server.record_failure(&inner.node, error.fault().unwrap_or(Fault::Other), 1),
    }
    if server.phase() != Phase::Direct {
        return Duration::ZERO;
    }
    // Jitter, so that nodes that started together do not send their heartbeats together.
    heartbeat.mul_f64(0.9 + (inner.node.random() % 200) as f64 / 1_000.0)
}

async fn heartbeat_once<R: RemoteStore>(inner: &Arc<Inner<R>>, server: &ServerState) -> Result<(), Error> {
    let identity = verify_identity(inner, server).await?;
    write_unwritten(inner, server, &identity).await?;
    publish_presence(inner, server, Presence::Direct, &identity).await
}

/// Checks that the server has the epoch that this node knows. If no epoch is known yet, a server of the first discovery
/// is accepted, because it has lost no admission of this node.
pub(super) async fn verify_identity<R: RemoteStore>(
    inner: &Inner<R>,
    server: &ServerState,
) -> Result<ServerIdentity, Error> {
    let identity = inner.store.identify(server.id).await?;
    let event = Event::Identified { epoch: identity.epoch, initial: inner.is_initial(server.id) };
    let mut rejected = false;
    server.apply_with(&inner.node, event, |effect| match effect {
        Effect::Acknowledge(epoch) => inner.store.acknowledge(server.id, epoch),
        Effect::Reject => rejected = true,
        Effect::WakeTask => {}
    });
    if !rejected {
        return Ok(identity);
    }
    let address = inner.store.server_address(server.id);
    Err(Error::store(Fault::Restarted, format!("the server at {address} has restarted or was replaced")))
}

/// Probes the server if it is time, and writes back the missing admissions when it answers.
async fn probe<R: RemoteStore>(inner: &Arc<Inner<R>>, server: &ServerState) -> Duration {
    let wait = server.until_probe(&inner.node);
    if wait > Micros::ZERO {
        return wait.into();
    }
    let answered = probe_once(inner, server).await;
    if answered.is_err() {
        // Another server may have taken over the keys of this server.
        inner.refresh_topology().await;
        let now = server.earliest_now(&inner.node);
        inner.journal.sweep(|key| inner.store.server_of(key) == server.id, now, false);
    }
    let Ok(identity) = answered else {
        server.apply(&inner.node, Event::ProbeFailed);
        return Duration::ZERO;
    };
    server.apply(&inner.node, Event::ProbeAnswered);
    if server.machine().is_writing_back()
        && let Err(error) = write_back(inner, server, &identity).await
    {
        let fault = error.fault().unwrap_or(Fault::Other);
        server.apply(&inner.node, Event::WriteBackFailed { fault });
    }
    Duration::ZERO
}

async fn probe_once<R: RemoteStore>(
    inner: &Arc<Inner<R>>,
    server: &ServerState,
) -> Result<ServerIdentity, Error> {
    let identity = inner.store.identify(server.id).await?;
    publish_presence(inner, server, Presence::Away, &identity).await?;
    Ok(identity)
}

/// Writes back the missing admissions. Admissions made between the last round and the change of the phase are written
/// back in the joining phase.
async fn write_back<R: RemoteStore>(
    inner: &Arc<Inner<R>>,
    server: &ServerState,
    identity: &ServerIdentity,
) -> Result<(), Error> {
    write_snapshot(inner, server, identity, identity.epoch != server.epoch()).await?;
    for _ in 0..MAX_ROUNDS {
        if write_unwritten(inner, server, identity).await? == 0 {
            break;
        }
    }
    let event = Event::WrittenBack { epoch: identity.epoch };
    server.apply_with(&inner.node, event, |_| inner.store.acknowledge(server.id, identity.epoch));
    Ok(())
}

/// Waits until the other nodes have written back, but no longer than the option `write_back`.
async fn join<R: RemoteStore>(inner: &Arc<Inner<R>>, server: &ServerState) -> Duration {
    let since = server.machine().answering_since.unwrap_or_else(|| inner.node.clock.now());
    loop {
        match join_once(inner, server).await {
            Ok(identity) => {
                let all_written_back = server.membership.lock().all_written_back(&identity.run_id, since);
                server.apply(&inner.node, Event::JoinPolled { all_written_back });
            }
            Err(error) => server.record_failure(&inner.node, error.fault().unwrap_or(Fault::Other), 1),
        }
        if server.phase() != Phase::Joining {
            return Duration::ZERO;
        }
        tokio::time::sleep(JOIN_POLL_INTERVAL).await;
    }
}

async fn join_once<R: RemoteStore>(
    inner: &Arc<Inner<R>>,
    server: &ServerState,
) -> Result<ServerIdentity, Error> {
    let identity = verify_identity(inner, server).await?;
    write_unwritten(inner, server, &identity).await?;
    // The server refills a bucket for all nodes, even if other nodes have not written back the permits that they took.
    // So this node writes its buckets again.
    write_snapshot(inner, server, &identity, false).await?;
    publish_presence(inner, server, Presence::Joined, &identity).await?;
    Ok(identity)
}

/// Announces the state of this node on the server, and reads the states of the other nodes.
async fn publish_presence<R: RemoteStore>(
    inner: &Arc<Inner<R>>,
    server: &ServerState,
    presence: Presence,
    identity: &ServerIdentity,
) -> Result<(), Error> {
    let message = server.membership.lock().next_message(presence, &identity.run_id);
    let heartbeat = Micros::from(inner.node.options.heartbeat);
    let sent = inner.node.clock.now();
    let (at, all) = inner.store.publish_presence(server.id, &inner.node.name, &message, heartbeat).await?;
    let now = inner.node.clock.now();
    server.record_server_time(sent, now, at);
    let expired = {
        let mut membership = server.membership.lock();
        membership.update(all, now, heartbeat, presence == Presence::Direct);
        inner.journal.nodes.store(membership.share.0, Ordering::Relaxed);
        membership.remove_expired(now)
    };
    if !expired.is_empty() {
        inner.store.remove_presence(server.id, &expired).await?;
    }
    Ok(())
}

pub(super) async fn leave<R: RemoteStore>(inner: &Arc<Inner<R>>, server: &ServerState) -> Result<(), Error> {
    let identity = inner.store.identify(server.id).await?;
    publish_presence(inner, server, Presence::Left, &identity).await
}

/// Writes back all admissions that count, if the server has `lost` its data. Otherwise it writes back only buckets,
/// because the server has refilled them during the outage as if no node had taken permits.
async fn write_snapshot<R: RemoteStore>(
    inner: &Arc<Inner<R>>,
    server: &ServerState,
    identity: &ServerIdentity,
    lost: bool,
) -> Result<(), Error> {
    let is_ours = |key: &Key| inner.store.server_of(key) == server.id;
    for step in 0..Journal::STEPS {
        let (now, earliest) = (server.latest_now(&inner.node), server.earliest_now(&inner.node));
        let pending = inner.journal.snapshot_step(step, is_ours, lost, now, earliest);
        write(inner, server, identity, true, &pending).await?;
        pending.iter().for_each(|pending| inner.journal.mark_written(pending, now));
    }
    Ok(())
}

/// Writes back the unwritten admissions; returns the number of keys.
async fn write_unwritten<R: RemoteStore>(
    inner: &Arc<Inner<R>>,
    server: &ServerState,
    identity: &ServerIdentity,
) -> Result<usize, Error> {
    let pending = inner.journal.take_unwritten(|key| inner.store.server_of(key) == server.id);
    let written = write(inner, server, identity, false, &pending).await;
    if written.is_err() {
        inner.journal.restore_unwritten(&pending);
    }
    written.map(|()| pending.len())
}

async fn write<R: RemoteStore>(
    inner: &Arc<Inner<R>>,
    server: &ServerState,
    identity: &ServerIdentity,
    lost: bool,
    pending: &[PendingWrite],
) -> Result<(), Error> {
    if !inner.store.can_restore() {
        return Ok(());
    }
    let (nodes, _) = server.membership.lock().share;
    let since = server.current_outage(&inner.node).since;
    let writer = Writer { node: &inner.node.name, run_id: &identity.run_id, lost, since, nodes };
    let lines: Vec<(usize, RestoreLine)> =
        (0..).zip(pending).flat_map(|(i, pending)| to_lines(pending).map(move |line| (i, line))).collect();
    let mut rest = lines.as_slice();
    while !rest.is_empty() {
        let (step, after) = rest.split_at(lines_in_step(rest));
        let step_lines: Vec<&RestoreLine> = step.iter().map(|(_, line)| line).collect();
        for ((i, _), healed) in step.iter().zip(inner.store.restore(writer, &step_lines).await?) {
            server.written_back.fetch_add(healed.added, Ordering::Relaxed);
            let over = healed.used.saturating_sub(pending[*i].quota.capacity()).min(healed.added);
            server.excess.fetch_add(over, Ordering::Relaxed);
        }
        rest = after;
    }
    Ok(())
}

/// Returns the number of lines that fit into one call: at least one.
fn lines_in_step(lines: &[(usize, RestoreLine)]) -> usize {
    let mut entries = 0;
    let fit = lines.iter().take(MAX_KEYS_PER_STEP).take_while(|(_, line)| {
        entries += line.entries.len();
        entries <= MAX_ENTRIES_PER_STEP
    });
    fit.count().max(1)
}

/// Converts the admissions of a key into lines. A key with many entries gives several lines, so that no call restores
/// more than [`MAX_ENTRIES_PER_STEP`]. A counter stores only sums, so its key gives one line.
fn to_lines(pending: &PendingWrite) -> impl Iterator<Item = RestoreLine> {
    let algorithm = pending.quota.algorithm();
    // If the algorithm keeps instants, the store replaces the entry of an instant, so the line has the total of the
    // instant. Otherwise the store adds to a sum, so the line has the amount to add.
    let replaced = algorithm.keeps_instants();
    let entries = if replaced { pending.instant_totals.clone() } else { pending.entry_totals() };
    let size = if algorithm.has_entries() { MAX_ENTRIES_PER_STEP } else { entries.len().max(1) };
    let parts: Vec<Vec<(Micros, u64, bool)>> = entries.chunks(size).map(<[_]>::to_vec).collect();
    let (key, quota, encoding) = (pending.key.clone(), pending.quota, pending.encoding);
    parts.into_iter().map(move |entries| RestoreLine { key: key.clone(), quota, encoding, entries })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::failover::admission_log::Admission;
    use crate::{Algorithm, Encoding, Quota};

    fn pending(algorithm: Algorithm) -> PendingWrite {
        let quota = Quota::new(1_000_000, Duration::from_secs(10)).unwrap();
        let entries = (1..=2_001).map(|n| Admission { at: Micros::new(n), cost: 3, written: false });
        PendingWrite {
            key: Key::new("rule", [("n", "1")]),
            quota: quota.with_algorithm(algorithm).unwrap(),
            encoding: Encoding::Zset,
            entries: entries.collect(),
            instant_totals: Vec::new(),
        }
    }

    #[test]
    fn time_slices_are_restored_in_bounded_calls() {
        let lines: Vec<RestoreLine> = to_lines(&pending(Algorithm::TimeSlice { slices: 10_000 })).collect();
        let sizes: Vec<usize> = lines.iter().map(|line| line.entries.len()).collect();
        assert_eq!(sizes, [500, 500, 500, 500, 1]);
        let permits: u64 = lines.iter().flat_map(|line| &line.entries).map(|(_, cost, _)| cost).sum();
        assert_eq!(permits, 3 * 2_001);
        // If one call had two parts of a key, the server would take the second for a repetition of the first.
        let numbered: Vec<(usize, RestoreLine)> = lines.into_iter().map(|line| (0, line)).collect();
        assert_eq!((0..5).map(|first| lines_in_step(&numbered[first..])).collect::<Vec<_>>(), [1; 5]);
    }

    #[test]
    fn sum_is_restored_in_one_line() {
        assert_eq!(to_lines(&pending(Algorithm::FixedWindow)).count(), 1);
    }
}
